"""`python -m tests.regression [NAME ...]`: runs the frozen scenarios, shows what moved, and writes their baselines anew.

Look at the difference before you commit it: CHANGELOG tells, under "Results changed", by how much and why it is right.
"""

import sys
import tempfile
from pathlib import Path

from experiments import run
from experiments.regression import check, write_baseline
from sim.errors import ConfigError
from tests.regression import SCENARIOS, baseline_of


def regenerate(scenario: Path, out: Path) -> None:
    """Runs one scenario, prints how it differs from its baseline, and replaces that."""
    folders = [one.folder for one in run(scenario, out=out, progress=False).runs]
    baseline = baseline_of(scenario)
    try:
        moved = check(folders, baseline)
        print("\n".join(moved) or f"{scenario.stem}: nothing moved further than allowed")
    except ConfigError as error:
        print(f"{scenario.stem}: written for the first time ({error})")
    write_baseline(folders, baseline)


def main(names: list[str]) -> int:
    """Regenerates the scenarios of these names, or all."""
    known = {scenario.stem: scenario for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no scenario named {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as out:
        for name in names or known:
            regenerate(known[name], Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
