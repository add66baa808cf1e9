"""Code of the user's own, a full disk, a file in the way: said as theirs, in a line, and the other runs stand."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from experiments import run, runner
from experiments.cli import main
from experiments.results.writer import RunWriter
from sim.errors import ConfigError, TraceError
from tests.commands import CONFIG, ENVIRONMENT, command

THEIRS = """
import sys
import numpy as np
from autoscalers import Autoscaler, Wanted
from routers.pick import router
from sim.records import ARRIVAL
from traces import Traffic


def raises(view):
    if view.request.id == 3:
        return {}["no such key"]
    return view.candidates[0]


def leaves(view):
    sys.exit(7)


def nonsense(view):
    return "the first"


def scribbles(view):
    view.loads["num_waiting"] += 1
    return view.candidates[0]


def takes(view):
    view.candidates[:] = 0
    return 0


class Awkward(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.file = open(__file__)


def unpicklable(view):
    raise Awkward("not to be sent", 2)


def dies(view):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)


def crashes(view):
    import os, signal
    os.kill(os.getpid(), signal.SIGSEGV)


@router
def compiled(view):
    if view.request.id == 3:
        raise ValueError("no room")
    return view.candidates[0]


@router
def beyond(view):
    return view.candidates[1_000_000 + view.candidates.size]


class Raises(Autoscaler):
    def policy(self, known_rate, seed):
        return lambda view: Wanted(1 / (view.now_s - 15.0))


class AwkwardScaler(Autoscaler):
    def policy(self, known_rate, seed):
        def decide(view):
            raise Awkward("at the tick", 2)
        return decide


class Nothing(Autoscaler):
    def policy(self, known_rate, seed):
        return lambda view: None


class NotANumber(Autoscaler):
    def policy(self, known_rate, seed):
        return lambda view: Wanted(1 if view.now_s < 1 else float("nan"))


class Text(Autoscaler):
    def policy(self, known_rate, seed):
        return lambda view: Wanted("two")


class Signature(Autoscaler):
    def policy(self):
        return lambda view: Wanted(1)


class Abstract(Autoscaler):
    pass


class Known(Traffic):
    how: str = ""
    mean_prompt_tokens = property(lambda self: 100.0)
    mean_output_tokens = property(lambda self: 10.0)
    ends_at_s = property(lambda self: 20.0)

    def mean_rate_per_s(self, start_s, end_s):
        return 1.0

    def arrivals(self, seed, counts, segments, chunk_rows):
        rows = np.zeros(5, ARRIVAL)
        rows["num_prompt_tokens"], rows["num_output_tokens"] = 100, 10
        rows["arrived_at_s"] = [0, 1, 2, 3, 4]
        if self.how == "raises":
            raise LookupError("no traffic today")
        if self.how == "unsorted":
            rows["arrived_at_s"] = [0, 1, 2, 4, 3]
        if self.how == "nan":
            rows["arrived_at_s"][2] = np.nan
        if self.how == "empty prompt":
            rows["num_prompt_tokens"][2] = 0
        if self.how == "class":
            rows["class_id"][2] = 1
        if self.how == "none":
            return
        yield [1, 2] if self.how == "list" else rows
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a config with changes and a module of the user's own, `theirs`, and returns the config's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (tmp_path / "theirs.py").write_text(THEIRS)

    def write(changes: dict[str, str] | None = None, added: str = "") -> Path:
        text = CONFIG
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "day.yaml"
        path.write_text(text + added)
        return path

    return write


def line_of(text: str) -> int:
    return THEIRS.splitlines().index(text) + 1


def routed(name: str) -> dict[str, str]:
    return {"kind: round_robin": f"kind: 'theirs:{name}'"}


def scaled(name: str) -> dict[str, str]:
    return {"kind: fixed, replicas: 2": f"kind: 'theirs:{name}'"}


def sent(how: str) -> dict[str, str]:
    start = CONFIG.index("traffic:")
    return {CONFIG[start : CONFIG.index("router:")]: f"traffic: {{kind: 'theirs:Known', how: '{how}'}}\n"}


ANSWERED = "TypeError: a policy answers Wanted(replicas, reason), a number and a text; it answered"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (routed("raises"), "theirs:raises: KeyError: 'no such key' (theirs.py, line 12)"),
        (routed("leaves"), "theirs:leaves: SystemExit: 7 (theirs.py, line 17)"),
        (routed("nonsense"), "router theirs:nonsense: chose 'the first' for request 0; the candidates are [0, 1]"),
        (routed("scribbles"), "theirs:scribbles: ValueError: output array is read-only (theirs.py, line {scribbled})"),
        (routed("takes"), "theirs:takes: ValueError: assignment destination is read-only (theirs.py, line {took})"),
        (routed("unpicklable"), "theirs:unpicklable: Awkward: not to be sent (theirs.py, line {awkward})"),
        (routed("compiled"), "theirs:compiled: ValueError: no room (theirs.py, line {compiled})"),
        (routed("beyond"), "theirs:beyond: IndexError: index "),
        (scaled("Raises"), "theirs:Raises: ZeroDivisionError: float division by zero (theirs.py, line {divided})"),
        (scaled("AwkwardScaler"), "theirs:AwkwardScaler: Awkward: at the tick (theirs.py, line {tick})"),
        (scaled("Nothing"), f"theirs:Nothing: {ANSWERED} None"),
        (scaled("Text"), f"theirs:Text: {ANSWERED} Wanted(replicas='two', reason='')"),
        (scaled("Signature"), "theirs:Signature: TypeError: Signature.policy() takes 1 positional argument but 3 were given"),
        (sent("raises"), "theirs:Known: LookupError: no traffic today (theirs.py, line {traffic})"),
        (sent("unsorted"), "traffic: request 4: arrived_at_s is 3, before an earlier request's"),
        (sent("nan"), "traffic: request 2: arrived_at_s is nan; allowed: 0.0 to"),
        (sent("empty prompt"), "traffic: request 2: num_prompt_tokens is 0; allowed: 1 to"),
        (sent("class"), "traffic: request 2: class_id is 1; allowed: 0 to 0, as class_names has names"),
        (sent("list"), "traffic: arrivals must be rows of sim.records.ARRIVAL, given list of no dtype"),
        (sent("none"), "traffic: it has no request"),
    ],
)
def test_own_code_that_fails_in_the_run_fails_as_the_users(
    changes: dict[str, str], said: str, config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "awkward": line_of('    raise Awkward("not to be sent", 2)'),
        "scribbled": line_of('    view.loads["num_waiting"] += 1'),
        "took": line_of("    view.candidates[:] = 0"),
        "compiled": line_of('        raise ValueError("no room")'),
        "divided": line_of("        return lambda view: Wanted(1 / (view.now_s - 15.0))"),
        "tick": line_of('            raise Awkward("at the tick", 2)'),
        "traffic": line_of('            raise LookupError("no traffic today")'),
    }
    assert main([str(config(changes))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(**places) in line
    assert not Path("results/day").exists()


def test_answers_of_an_autoscaler_that_are_no_numbers_are_said(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config(scaled("NotANumber")))]) == 0
    said = "! pool main: 1 answers of its autoscaler were no finite number: dropped"  # at 15 s of 20
    assert said in capsys.readouterr().out


def test_an_out_where_no_folder_can_be_made_is_said(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config()), "--out", "/proc/results"]) == 2
    assert capsys.readouterr().err == "/proc/results: no folder can be made there; choose another --out\n"


def test_own_traffic_that_is_right_runs(config: Any) -> None:
    assert main([str(config(sent("")))]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module\n", "cannot import 'theirs' (it needs 'no_such_module')"),
        ("x = 1\ny = 1 / 0\n", "importing 'theirs' failed: ZeroDivisionError: division by zero (theirs.py, line 2)"),
        ("def choose(:\n", "importing 'theirs' failed: SyntaxError: "),
        ("import sys\nsys.exit('not today')\n", "importing 'theirs' failed: SystemExit: not today (theirs.py, line 2)"),
        ("def chose(): pass\n", "module 'theirs' has no 'choose'; did you mean 'chose'?"),
        ("def choose(): pass\n", "is neither a function (view) -> slot nor a RouterKind"),
        (
            "def choose(loads, candidates, request, state): pass\n",
            "takes (loads, candidates, request, state); a router takes one argument, the view, which has them",
        ),
        ("choose = None\n", "module 'theirs' has no 'choose'"),
        ("from pydantic import BaseModel\nraise ValueError('x' * 100_000)\n", "more)..."),
    ],
)
def test_own_code_that_fails_at_import_is_one_line(
    text: str, said: str, config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(routed("choose"))
    (tmp_path / "theirs.py").write_text(text)
    assert main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: router.kind: 'theirs:choose': ")
    assert said in line
    assert len(line) < 1000


def test_a_policy_without_its_method_is_refused_at_load(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config(scaled("Abstract")))]) == 2
    assert "'theirs:Abstract': lacks policy, which every autoscaler has" in capsys.readouterr().err


def test_a_validator_of_ones_own_that_raises_is_the_users(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "theirs.py").open("a") as file:
        file.write("class Checked(Raises):\n    def model_post_init(self, _):\n        raise RuntimeError('not like that')\n")
    assert main([str(config(scaled("Checked")))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pools.main.autoscaler.kind: theirs:Checked: RuntimeError: not like that (theirs.py, line " in line


def test_variants_that_fail_in_a_worker_do_not_suppress_the_others(config: Any) -> None:
    failures = {
        "raises": "theirs:raises: KeyError: 'no such key' (theirs.py, line 12)",
        "unpicklable": "theirs:unpicklable: Awkward: not to be sent",
        "leaves": "theirs:leaves: SystemExit: 7",
        "dies": "its process was killed from outside (SIGKILL), as a system does that has no memory left",
        "crashes": "its process crashed (SIGSEGV), with code of your own in it (theirs:crashes)",
    }
    kinds = ", ".join([*(f"'theirs:{name}'" for name in failures), "random", "least_loaded"])
    ran = command(config({}, f"sweep: {{router.kind: [{kinds}]}}\n"), "--jobs", "2")
    printed, complained = ran.communicate()
    assert ran.returncode == 2
    assert "Traceback" not in complained
    page = Path("results/day/report.md").read_text()
    for name, said in failures.items():
        assert f"day.yaml: day/theirs-{name}: {said}" in complained
        assert f"! theirs-{name} failed, and is not here: {said}" in printed
        assert f"! theirs-{name} failed, and is not here: {said}" in page
    assert all("random  least_loaded" in text for text in (printed, page))
    assert Path("results/day/plots/day.png").exists()


def test_python_gets_the_error_after_the_other_variants_are_done(config: Any) -> None:
    path = config({}, "sweep: {router.kind: ['theirs:raises', random]}\n")
    with pytest.raises(ConfigError, match="theirs:raises: KeyError") as caught:
        run(path, progress=False)
    assert caught.value.__notes__ == ["in run day/theirs-raises; 1 of 2 are done"]
    assert Path("results/day/random/manifest.json").exists()


def test_a_bug_of_ours_in_a_run_with_own_code_stays_ours(
    config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(runner, "run_one", broken)
    assert main([str(config(scaled("Raises")))]) == 1
    assert "our fault" in capsys.readouterr().err


# The machine


def is_one_line_of_the_machines(printed: str, *words: str) -> None:
    (line,) = printed.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.parametrize("out", ["file", "file/below", "results/day/file"])
def test_an_out_that_is_a_file_is_refused_in_a_line(out: str, config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = config()
    place = Path(out.removesuffix("/below"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    assert main([str(path), "--out", out]) == 2
    is_one_line_of_the_machines(capsys.readouterr().err, f"{place} is a file; choose a folder")
    assert place.read_text() == "mine"


def test_a_disk_that_is_full_in_the_run_is_a_line(
    config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device")  # as pyarrow has it

    monkeypatch.setattr(RunWriter, "finish", full)
    assert main([str(config())]) == 2
    is_one_line_of_the_machines(capsys.readouterr().err, "No space left on device; free some space, or choose another --out")
    assert [path.name for path in Path("results").iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_small_disk_that_fills_up_is_a_line_and_leaves_nothing_behind(config: Any, tmp_path: Path) -> None:
    path = config({"duration_s: 20": "duration_s: 20000"})
    (tmp_path / "small").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path / "small")], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert main([str(path), "--out", "small"]) == 2
        assert list((tmp_path / "small").iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "small")], check=True)


def test_a_folder_that_may_not_be_written_is_a_line(config: Any) -> None:
    text = config().read_text()
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is for nobody else
        path, locked = Path(folder, "day.yaml"), Path(folder, "locked")
        path.write_text(text)
        locked.mkdir(mode=0o555)
        Path(folder).chmod(0o755)
        script = (
            "import os, sys, experiments.running\n"  # before the interpreter's own files may no longer be read
            "from experiments.cli import main\n"
            "if os.geteuid() == 0: os.seteuid(65534)\nsys.exit(main(sys.argv[1:]))"
        )
        call = [sys.executable, "-c", script, str(path), "--out", str(locked)]
        ran = subprocess.run(call, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert ran.returncode == 2
        is_one_line_of_the_machines(ran.stderr, f"{locked}/.day.lock: Permission denied; it takes the right to do that")


def test_a_report_that_cannot_be_written_is_a_line(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = config({}, "sweep: {router.kind: [random, least_loaded]}\n")
    assert main([str(path), "--jobs", "1"]) == 0
    Path("results/day/report.md").unlink()
    Path("results/day/report.md").mkdir()
    capsys.readouterr()
    assert main([str(path), "--jobs", "1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "results/day/report.md: Is a directory; a folder is in the way; move it, or name another file"
    )


def test_output_onto_a_full_disk_is_a_line(config: Any) -> None:
    path = config()
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    call = [sys.executable, "-m", "daybreak", str(path), "--dry-run"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(call, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    is_one_line_of_the_machines(ran.stderr, "No space left on device")


def test_memory_that_runs_out_is_the_machines(
    config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunWriter, "finish", lambda *_: np.zeros(1 << 50))
    assert main([str(config())]) == 2
    is_one_line_of_the_machines(capsys.readouterr().err, "this machine has not enough memory", "fewer --jobs")


def test_a_baseline_that_cannot_be_written_is_said_before_anything_runs(
    config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config()), "--write-baseline", "nowhere/day.json"]) == 2
    is_one_line_of_the_machines(capsys.readouterr().err, "--write-baseline nowhere/day.json", "no such folder")
    assert not Path("results").exists()


# Workers


def test_a_killed_parent_leaves_no_workers(config: Any) -> None:
    path = config({"duration_s: 20": "duration_s: 2000000"}, "sweep: {router.kind: [random, least_loaded]}\n")
    parent = command(path, "--jobs", "2")
    ends_at = time.monotonic() + 60
    while len(list(Path("results").glob("day/.*.partial"))) < 2 and time.monotonic() < ends_at:
        time.sleep(0.1)
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert len(list(Path("results").glob("day/.*.partial"))) == 2
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    for one in alive:
        one.kill()
    assert alive == []


def test_a_script_without_a_main_guard_is_told_what_it_lacks(config: Any, tmp_path: Path) -> None:
    path = config({}, "sweep: {router.kind: [random, least_loaded]}\n")
    script = tmp_path / "script.py"
    script.write_text(f"from experiments import run\nrun({str(path)!r}, jobs=2, progress=False)\n")
    ran = subprocess.run([sys.executable, str(script)], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert 'do so under `if __name__ == "__main__":`' in ran.stderr.splitlines()[-1]


def test_a_traffic_file_that_is_missing_stays_a_traces_error(config: Any) -> None:
    start = CONFIG.index("traffic:")
    with pytest.raises(TraceError, match="no such file"):
        run(config({CONFIG[start : CONFIG.index("router:")]: "traffic: {kind: azure, path: nowhere.csv}\n"}), progress=False)
