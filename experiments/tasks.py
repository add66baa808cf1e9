"""What the `kind` of a config asks for: the class that reads it, who does it, and who tells what came of it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from experiments.calibrations.config import Calibrate
from experiments.calibrations.gpu_config import CalibrateGpu
from experiments.plans.config import Plan
from experiments.settings.experiment import Experiment, Study
from experiments.validations.config import Validate


class Task(NamedTuple):
    """One kind of config. The modules are imported when they are needed: a typo should not wait for the compiled code."""

    schema: type[Study]
    runner: str  # module with run_one(run, folder, progress, line), which leaves a whole result folder
    report: str  # module with print_summary(folders)
    table: str = ""  # the Parquet file that several runs of one config put together, if any


TASKS = {
    "simulate": Task(Experiment, "experiments.runner", "experiments.report", "summary"),
    "plan": Task(Plan, "experiments.plans.run", "experiments.plans.run", "pools"),
    "calibrate": Task(Calibrate, "experiments.calibrations.run", "experiments.calibrations.run"),
    "calibrate_gpu": Task(CalibrateGpu, "experiments.calibrations.gpu", "experiments.calibrations.gpu"),
    "validate": Task(Validate, "experiments.validations.run", "experiments.validations.run"),
}
"""What `kind` can be."""


def schema_of(data: Mapping[str, Any]) -> type[Study]:
    """Returns the class that reads a config; an unknown kind is read as a simulation."""
    kind = data.get("kind")
    return TASKS[kind].schema if isinstance(kind, str) and kind in TASKS else Experiment


def runner_of(kind: str) -> Callable[..., None]:
    """Returns what does a run of this kind: (run, folder, progress, line) -> None."""
    run_one: Callable[..., None] = import_module(TASKS[kind].runner).run_one
    return run_one


def report_of(kind: str) -> Callable[..., None]:
    """Returns what prints the results of this kind: (folders) -> None."""
    print_summary: Callable[..., None] = import_module(TASKS[kind].report).print_summary
    return print_summary
