"""`make mutants`: small changes that the tests should notice, and those that they do not.

python -m tests.mutants [--sample N] [--seed N] [--only FILE ...] [--jobs N] [--write docs/mutants.md]
"""

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from tests.mutants import ours, plain, trial
from tests.mutants.mutant import Mutant, Verdict, applied
from tests.mutants.page import page

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Tries the mutants, prints what survives and returns 1 if any that should not does."""
    options = _options(arguments)
    own = [applied(ROOT, change) for change in ours.CHANGES if not options.only or change.file in options.only]
    every = plain.places(ROOT, options.only)
    tried = plain.sample(ROOT, every, options.sample, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts = _judged([*own, *tried], Path(folder), options.jobs)
    groups = [
        ("A list of our own", len(own), [verdicts[mutant] for mutant in own]),
        ("Plain modules", len(every), [verdicts[mutant] for mutant in tried]),
    ]
    machine = f"{options.jobs} at a time, Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    text = page(f"python -m tests.mutants {shlex.join(arguments)}".rstrip(), machine, groups)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return 0 if all(verdicts[mutant].is_killed for mutant in own) else 1


def _judged(mutants: list[Mutant], folder: Path, jobs: int) -> dict[Mutant, Verdict]:
    print(f"{len(mutants)} mutants; first their tests without any, in {jobs} copies of the tree", file=sys.stderr)
    copies = [trial.Copy(ROOT, folder / f"copy{number}") for number in range(max(1, min(jobs, len(mutants))))]
    times = [trial.usual_times(copy, mutants) for copy in copies[:1]]
    at_most_s = sum(times[0][one.tests, one.is_compiled] for one in mutants) / len(copies)
    print(f"about {at_most_s / 60:.0f} minutes, if all survive; every other copy compiles once more", file=sys.stderr)
    started, found = time.monotonic(), {}
    for verdict in tqdm(trial.judged(copies, mutants, times[0]), total=len(mutants), unit="mutant"):
        found[verdict.mutant] = verdict
        if not verdict.is_killed:
            tqdm.write(f"survived: {verdict.mutant.file}: {verdict.mutant.said}", file=sys.stderr)
    print(f"{time.monotonic() - started:,.0f} s", file=sys.stderr)
    return found


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--sample", type=int, default=200, help="mutants of plain modules that are tried (default: 200)")
    add("--seed", type=int, default=1, help="of that sample (default: 1)")
    add("--only", nargs="+", default=[], help="files to keep to, such as sim/pool.py")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="at a time, each in a copy of the tree (default: one a core)")
    add("--write", type=Path, help="where the page goes, besides the terminal")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
