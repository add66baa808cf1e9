"""Serves our scheduler's steps as `record --serve` serves vLLM's, in a process of its own, which may crash or hang alone."""

import sys

from tests.conformance.record import serve
from tests.conformance.replay import Replay

if __name__ == "__main__":
    serve(lambda workload: Replay(workload).steps(), sys.stdout)
