"""Daybreak as people install it: the wheel in a fresh environment, used from a folder that has names of ours in it."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import daybreak
from tests.commands import CONFIG, ROOT

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"NUMBA_DISABLE_JIT": "1"}
ROUTER = "from routers import KINDS\n\n\ndef last(view):\n    return view.candidates[-1]\n"
CALIBRATION = "vllm-0.15_h100-sxm_served"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it; what the wheel needs is borrowed from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"  # a build leaves folders where it is made
    for name in (*daybreak.PACKAGES, "configs", "calibrations"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "daybreak.py"):
        shutil.copy(ROOT / name, sources / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, sources], check=True)
    venv.create(folder / "environment")
    found = folder / "environment" / "bin" / "python"
    pure = subprocess.check_output([found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip()
    Path(pure, "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    (wheel,) = folder.glob("*.whl")
    options = ["--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
    subprocess.run([found, *pip[1:], "install", *options, wheel], check=True)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder, with a script and a folder that are named like packages of ours."""
    (tmp_path / "sim.py").write_text("raise RuntimeError('the wrong sim')\n")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise RuntimeError('the wrong experiments')\n")
    (tmp_path / "my_routers.py").write_text(ROUTER)
    calibrated = CONFIG.replace("max_model_len: 8192", f"max_model_len: 8192, calibration: {CALIBRATION}")
    (tmp_path / "mine.yaml").write_text(calibrated)
    return tmp_path


def ran(call: list[str | Path], folder: Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(call, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_the_command_runs_anywhere_in_parallel_with_a_shipped_calibration_and_a_router_of_ones_own(
    python: Path, elsewhere: Path
) -> None:
    variants = ["--set", "sweep={router.kind: ['my_routers:last', random]}", "--jobs", "2"]
    done = ran([python.with_name("daybreak"), "mine.yaml", *variants], elsewhere)
    assert done.stdout.splitlines()[3].split() == ["my_routers-last", "random"]
    assert "the wrong" not in done.stderr


def test_a_shipped_config_is_found_by_its_name_and_the_command_says_so(python: Path, elsewhere: Path) -> None:
    for given in ("cpu_overlap", "configs/cpu_overlap.yaml"):
        done = ran([python.with_name("daybreak"), given, "--smoke", "--dry-run"], elsewhere)
        assert "name: cpu_overlap" in done.stdout
        assert done.stderr.startswith(f"{given}: not here; the shipped ")
    done = ran([python.with_name("daybreak"), "cpu_overlop"], elsewhere, code=2)
    assert done.stderr == "cpu_overlop: no such file; did you mean the shipped cpu_overlap?\n"


def test_the_command_is_called_daybreak_in_its_own_usage(python: Path, elsewhere: Path) -> None:
    assert ran([python.with_name("daybreak"), "--help"], elsewhere).stdout.startswith("usage: daybreak ")
    assert "daybreak: no option '--smok'" in ran([python.with_name("daybreak"), "--smok"], elsewhere, code=2).stderr
    here = ran([sys.executable, ROOT / "run_experiment.py", "--help"], elsewhere)
    assert here.stdout.startswith("usage: run_experiment.py ")


def test_python_runs_beside_names_of_ours_in_worker_processes_too(python: Path, elsewhere: Path) -> None:
    sets = ["sweep={router.kind: [random, least_loaded]}"]
    (elsewhere / "script.py").write_text(
        "if __name__ == '__main__':\n    from daybreak import run\n"
        f"    print(run('mine.yaml', jobs=2, sets={sets!r}).summary.run.tolist())\n"
    )
    assert ran([python, "script.py"], elsewhere).stdout == "['random', 'least_loaded']\n"


def test_a_module_of_ones_own_with_a_name_of_ours_is_named_when_it_came_first(python: Path, elsewhere: Path) -> None:
    (elsewhere / "sim.py").write_text("")
    done = ran([python, "-c", "import sim; import daybreak"], elsewhere, code=1)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: Daybreak has a package 'sim', and another module of that name was imported before it, "
        f"from {elsewhere}/sim.py; import daybreak first, or rename that module"
    )


def test_the_wheel_holds_every_calibration_and_every_config_that_needs_no_tests_beside_it(
    python: Path, elsewhere: Path
) -> None:
    """Those about other people's measurements name readers that lie in tests/accuracy."""
    script = "import daybreak; from sim.shipped import all_shipped\n"
    script += "print(*(path.name for kind in ('configs', 'calibrations') for path in all_shipped(kind)))"
    there = {path.name for folder in ("configs", "calibrations") for path in (ROOT / folder).glob("*.yaml")}
    assert set(ran([python, "-c", script], elsewhere).stdout.split()) == there


def test_every_package_is_in_the_wheel() -> None:
    """A folder with code in it that pyproject.toml does not list would be missing."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for name in daybreak.PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(listed)
