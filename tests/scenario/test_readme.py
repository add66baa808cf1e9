"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli import parser
from tests.commands import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def shown(mark: str, page: Path = ROOT / "README.md") -> str:
    """Returns the fenced block below a `<!-- tested: ... -->` mark."""
    found = re.search(rf"<!-- tested: {re.escape(mark)} -->\n```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{page.name} has no block marked {mark}"
    return found[1]


def command(*arguments: str, cwd: Path) -> str:
    call = [sys.executable, "-m", "daybreak", *arguments]
    return subprocess.run(call, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


def test_the_run_prints_what_is_shown(tmp_path: Path) -> None:
    printed = command("cpu_overlap", "--smoke", cwd=tmp_path)
    assert shown("daybreak cpu_overlap --smoke") in printed


def test_the_python_example_runs(tmp_path: Path) -> None:
    call = [sys.executable, "-c", shown("from Python")]
    printed = subprocess.check_output(call, cwd=tmp_path, env=ENVIRONMENT, text=True)
    assert "async_scheduling=true" in printed


def test_every_option_of_the_usage_exists() -> None:
    usage = README[README.index("    daybreak CONFIG ...") :].split("\n\n")[0]
    known = {option for action in parser()._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", usage)) <= known


PLAIN = """
def fewest_waiting(view):
    return min(view.candidates, key=lambda r: view.loads[r].num_waiting)
"""


@pytest.mark.parametrize("kind", ["my_routers:least_ahead", "plain_routers:fewest_waiting"])
def test_a_router_of_your_own_runs(kind: str, tmp_path: Path) -> None:
    (tmp_path / "my_routers.py").write_text(shown("my_routers.py"))
    (tmp_path / "plain_routers.py").write_text(PLAIN)
    command(
        str(ROOT / "configs/cpu_overlap.yaml"), "--smoke", "--jobs", "1", "--out", "out",
        "--set", f"router.kind={kind}", "pools.main.autoscaler.replicas=2", "sweep=null", cwd=tmp_path,
    )  # fmt: skip
    requests = pd.read_parquet(tmp_path / "out" / "cpu_overlap" / "requests.parquet")
    assert set(requests["replica"]) == {0, 1}
    assert (requests["status"] == "finished").all()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
