"""What a command imports: who mistypes a key must not wait for a compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT

LATE = {"numba", "scipy", "pandas", "matplotlib"}
"""What takes as long to import as a config to read, or longer."""


def imported(script: str, *arguments: str) -> set[str]:
    """Runs a script in a process of its own and returns what of LATE it has imported."""
    ending = f"\nimport sys; print('\\n', *({LATE} & set(sys.modules)))"
    command = [sys.executable, "-c", script + ending, *arguments]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(ran.stdout.splitlines()[-1].split())


def test_no_shipped_config_needs_a_compiler_to_be_read() -> None:
    configs = sorted(map(str, (ROOT / "configs").rglob("*.yaml")))
    assert len(configs) > 30
    script = "import sys; from experiments.settings.loading import load; [load(path) for path in sys.argv[1:]]"
    assert imported(script, *configs) == set()


@pytest.mark.parametrize(
    ("change", "code"), [("--dry-run", 0), ("--set=router.knd=random", 2), ("--set=traffic.kind=diurnul", 2)]
)
def test_a_dry_run_or_a_typo_needs_no_compiler(change: str, code: int) -> None:
    script = f"import sys; from experiments.cli import main; assert main(sys.argv[1:]) == {code}"
    assert imported(script, "configs/day_forecast_vs_reactive.yaml", change) == set()


def test_a_run_of_one_seed_and_its_page_need_no_pandas_and_no_statistics(tmp_path: Path) -> None:
    script = (
        "import sys; from experiments.cli import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'pandas', 'scipy.stats', 'pyarrow.compute'} & set(sys.modules), set(sys.modules)"
    )
    options = ("--smoke", "--jobs=1", "--out", str(tmp_path), "--set", "sweep=null", "traffic.limit=20")
    assert "numba" in imported(script, "configs/cpu_overlap.yaml", *options)
