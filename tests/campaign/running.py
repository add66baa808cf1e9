"""Runs one config of the campaign, and says what became of it."""

import faulthandler
import hashlib
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.runner import run_one
from experiments.settings.loading import load
from experiments.wiring import Wiring
from sim.errors import ConfigError, TraceError
from tests.campaign.configs import Section, config

TABLES = ("requests.parquet", "timeline.parquet", "replicas.parquet", "summary.parquet", "summary.json", "config.yaml")
MAX_SECONDS = 300  # of one config; a process that takes longer is ended, and says where it was


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
            return run_config(config(seed, Path(folder)), Path(folder))
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_config(document: Section, folder: Path) -> Outcome:
    """Runs one config, which checks the invariants, and then that no request of the traffic was lost.

    A refusal is the generator's: it makes few configs that are none. Anything else that is raised is a fault.
    """
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    wired: list[Wiring] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            run_one(load(path)[0], folder / "out", prepare=wired.append)
            lost = num_lost(wired[0])
    except (ConfigError, TraceError) as error:
        return Outcome(refusal=str(error).replace(f"{folder}/", ""))
    except Exception as error:
        return Outcome(fault=f"{_where(error)}: {type(error).__name__}: {error}")
    if lost:
        return Outcome(fault=f"{lost} requests of the traffic are in no count")
    digests = hashlib.sha256()
    for name in TABLES:
        digests.update((folder / "out" / name).read_bytes().replace(str(folder).encode(), b""))
    return Outcome(digest=digests.hexdigest(), num_requests=wired[0].simulation.audit.num_requests)


def num_lost(wiring: Wiring) -> int:
    """Returns how many requests of the traffic neither arrived nor count as never sent."""
    simulation = wiring.simulation
    return int(wiring.traffic.counts["kept"]) - simulation.audit.num_requests - int(simulation.num_never_sent.sum())


def _where(error: BaseException) -> str:
    frame: Any = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
