"""What a run of mutants comes to: docs/mutants.md."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.mutants.mutant import Verdict
from tests.mutants.reasons import REASONS

HEAD = """# Do the tests notice?

Small changes to the sources, each made alone in a copy of the tree, and the tests meant for that module run on it. A change
that no test notices (it *survives*) asks for a test, or for the reason why it changes nothing that counts.

- **A list of our own** (`tests/mutants/ours.py`): of compiled modules, run as plain Python, and of plain modules what no test
  noticed once.
- **Plain modules** (`tests/mutants/plain.py`): a sample of what cosmic-ray's operators change in them: boundaries, signs,
  conditions, numbers, loops.

"""


def page(command: str, machine: str, groups: Sequence[tuple[str, int, Sequence[Verdict]]]) -> str:
    """Returns the page.

    Args:
        command: that made it.
        machine: on which it was made.
        groups: of mutants, each with a name, how many there are, and the verdicts of those that were tried.
    """
    return "".join([HEAD, f"    {command}\n\n({machine}; this page is its output.)\n", *map(_group, groups)])


def _group(group: tuple[str, int, Sequence[Verdict]]) -> str:
    name, num_all, verdicts = group
    known = [one for one in verdicts if not one.is_killed and _reason(one)]
    survivors = [one for one in verdicts if not one.is_killed and not _reason(one)]
    killed = len(verdicts) - len(known) - len(survivors)
    judged = len(verdicts) - len(known)
    share = f" ({killed / judged:.0%} of those that change something)" if judged else ""
    lines = [f"\n## {name}\n", f"{num_all:,} mutants, {len(verdicts):,} tried, {killed:,} noticed{share}, "
             f"{len(survivors):,} survived, {len(known):,} change nothing that counts.\n"]  # fmt: skip
    return "\n".join([*lines, *_table(verdicts), *_listed("Survivors", survivors), *_listed("Change nothing", known), ""])


def _table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    tried, noticed = Counter(one.mutant.file for one in verdicts), Counter(one.mutant.file for one in verdicts if one.is_killed)
    yield "| module | tried | noticed | not |"
    yield "|---|---:|---:|---:|"
    for file in sorted(tried):
        yield f"| `{file}` | {tried[file]} | {noticed[file]} | {tried[file] - noticed[file]} |"


def _listed(head: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    if verdicts:
        yield f"\n{head}:\n"
    for one in sorted(verdicts, key=lambda one: (one.mutant.file, one.mutant.said)):
        reason = _reason(one)
        yield f"- `{one.mutant.file}`: `{one.mutant.said}`{f': {reason}' if reason else ''}"


def _reason(verdict: Verdict) -> str:
    return REASONS.get((verdict.mutant.file, verdict.mutant.said), "")
