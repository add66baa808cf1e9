"""Runs experiments: `python run_experiment.py configs/*.yaml`; see --help."""

import sys

from experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
