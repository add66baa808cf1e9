"""Runs one config of the campaign, and says what became of it."""

import contextlib
import faulthandler
import hashlib
import io
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments import report
from experiments.runner import run_one
from experiments.settings.loading import load
from experiments.wiring import Wiring
from sim.errors import ConfigError, TraceError
from tests.campaign.configs import config
from tests.campaign.draws import Section

TABLES = ("requests.parquet", "timeline.parquet", "replicas.parquet", "summary.parquet", "summary.json", "config.yaml")
MAX_SECONDS = 300  # of one config; a process that takes longer is ended, and says where it was
ONE_DRAWN_IN = 10  # a picture takes longer than a run


@dataclass(frozen=True)
class Outcome:
    """Of one run: a digest of all it left, why it was refused, or what went wrong."""

    digest: str = ""
    refusal: str = ""
    fault: str = ""
    num_requests: int = 0


def run_seed(seed: int) -> Outcome:
    """Makes the config of this seed, and runs it."""
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return run_config(config(seed, Path(folder)), Path(folder), is_drawn=seed % ONE_DRAWN_IN == 0)
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_config(document: Section, folder: Path, *, is_drawn: bool = False) -> Outcome:
    """Runs one config, which checks the invariants, reports it, and checks that no request of the traffic was lost.

    A refusal is the generator's: it makes few configs that are none. Anything else that is raised is a fault.
    """
    path, out = folder / "config.yaml", folder / document["name"]
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    wired: list[Wiring] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            run_one(load(path)[0], out, prepare=wired.append)
            lost = num_lost(wired[0])
            table = report.table([out])
            if is_drawn:
                with contextlib.redirect_stdout(io.StringIO()):
                    report.print_summary([out])
    except (ConfigError, TraceError) as error:
        return Outcome(refusal=str(error).replace(f"{folder}/", ""))
    except Exception as error:
        return Outcome(fault=f"{_where(error)}: {type(error).__name__}: {error}")
    if lost:
        return Outcome(fault=f"{lost} requests of the traffic are in no count")
    digests = hashlib.sha256(table.encode())
    for name in TABLES:
        digests.update((out / name).read_bytes().replace(str(folder).encode(), b""))
    return Outcome(digest=digests.hexdigest(), num_requests=wired[0].simulation.audit.num_requests)


def num_lost(wiring: Wiring) -> int:
    """Returns how many requests of the traffic neither arrived nor count as never sent."""
    simulation = wiring.simulation
    return int(wiring.traffic.counts["kept"]) - simulation.audit.num_requests - int(simulation.num_never_sent.sum())


def _where(error: BaseException) -> str:
    frame: Any = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
