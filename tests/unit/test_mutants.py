"""`make mutants`: its own list fits the sources as they are, and what a test notices is told from what none does."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import ROOT
from tests.mutants import meant, ours, trial
from tests.mutants.mutant import Change, applied
from tests.mutants.reasons import REASONS


@pytest.mark.parametrize("file", sorted({change.file for change in ours.CHANGES}))
def test_every_change_of_our_own_list_still_changes_its_file(file: str) -> None:
    for change in ours.CHANGES:
        if change.file == file:
            assert applied(ROOT, change).source != (ROOT / file).read_text(encoding="utf-8")


def test_the_tests_that_are_meant_for_modules_are_there_and_so_are_the_modules() -> None:
    assert len(meant.modules(ROOT)) > 80
    for pattern, tests in meant.TESTS.items():
        assert list(ROOT.glob(pattern)), pattern
        assert [name for name in tests if name.startswith("tests/") and not (ROOT / name.partition("::")[0]).exists()] == []


@pytest.mark.parametrize("file", sorted({file for file, _ in REASONS}))
def test_no_reason_is_left_of_a_line_that_has_changed(file: str) -> None:
    lines = [f"- {line.strip()} + " for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    assert [said for one, said in REASONS if one == file and not any(map(said.startswith, lines))] == []


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("tests", "experiments/results", "results"):
        (root / folder).mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    (root / "results" / "large.parquet").write_text("")
    (root / "experiments" / "results" / "sums.py").write_text("def more(x):\n    return x + 1 if x >= 0 else 0\n")
    (root / "tests" / "test_sums.py").write_text(
        "from experiments.results.sums import more\n\n\ndef test_more():\n    assert more(1) == 2\n"
    )
    return root


@pytest.mark.parametrize(("before", "after", "is_killed"), [("x + 1", "x - 1", True), ("x >= 0", "x > 0", False)])
def test_a_change_is_noticed_if_a_test_fails_and_the_tree_stays_as_it_was(
    small_project: Path, tmp_path: Path, before: str, after: str, is_killed: bool
) -> None:
    mutant = applied(small_project, Change("experiments/results/sums.py", before, after, ("tests/test_sums.py",)))
    copy = trial.Copy(small_project, tmp_path / "copy")
    usual_s = trial.usual_times(copy, [mutant])
    (verdict,) = trial.judged([copy], [mutant], usual_s)
    assert verdict.is_killed == is_killed
    for root in (small_project, copy.place):
        assert before in (root / mutant.file).read_text()
    assert not (copy.place / "results").exists()


def test_tests_that_fail_without_any_mutant_are_said(small_project: Path, tmp_path: Path) -> None:
    (small_project / "tests" / "test_sums.py").write_text("def test_more():\n    assert False\n")
    changes: Any = [Change("experiments/results/sums.py", "x + 1", "x - 1", ("tests/test_sums.py",))]
    copy = trial.Copy(small_project, tmp_path / "copy")
    with pytest.raises(ValueError, match=r"fail without any mutant: tests/test_sums\.py"):
        trial.usual_times(copy, [applied(small_project, change) for change in changes])


def test_tests_that_would_fill_the_memory_are_ended(
    small_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small_project / "tests" / "test_sums.py").write_text("import time\n\n\ndef test_more():\n    time.sleep(600)\n")
    monkeypatch.setattr(trial, "MOST_BYTES", 1)
    assert not trial.Copy(small_project, tmp_path / "copy").passes(["tests/test_sums.py"], is_compiled=False)
