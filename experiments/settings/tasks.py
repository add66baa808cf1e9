"""What the `kind` of a config asks for: the class that reads it, who does it, and who says what came of it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from experiments.settings.experiment import Study
from sim.kinds import imported


class Task(NamedTuple):
    """One kind of config. What does it is named, not imported: a run knows nothing of the tasks that start many."""

    schema: str  # module:class that reads the config
    runner: str  # module with run_one(run, folder, progress, line), which leaves a whole result folder
    report: str  # module with print_summary(folders)
    table: str = ""  # the Parquet file that several runs of one config put together, if any


TASKS = {
    "simulate": Task("experiments.settings.experiment:Experiment", "experiments.runner", "experiments.report", "summary"),
    "plan": Task("planning.plans.config:Plan", "planning.plans.run", "planning.plans.run", "pools"),
    "calibrate": Task("accuracy.calibrations.config:Calibrate", "accuracy.calibrations.run", "accuracy.calibrations.run"),
    "calibrate_gpu": Task(
        "accuracy.calibrations.gpu_config:CalibrateGpu", "accuracy.calibrations.gpu", "accuracy.calibrations.gpu"
    ),
    "validate": Task("accuracy.validations.config:Validate", "accuracy.validations.run", "accuracy.validations.run"),
}
"""What `kind` can be."""


def schema_of(data: Mapping[str, Any]) -> type[Study]:
    """Returns the class that reads a config; an unknown kind is read as a simulation."""
    kind = data.get("kind")
    return schema_for(kind if isinstance(kind, str) and kind in TASKS else "simulate")


def schema_for(kind: str) -> type[Study]:
    """Returns the class that reads a config of this kind."""
    schema: type[Study] = imported(TASKS[kind].schema)
    return schema


def runner_of(kind: str) -> Callable[..., None]:
    """Returns what does a run of this kind: (run, folder, progress, line) -> None."""
    run_one: Callable[..., None] = import_module(TASKS[kind].runner).run_one
    return run_one


def report_of(kind: str) -> Callable[..., None]:
    """Returns what prints the results of this kind: (folders) -> None."""
    print_summary: Callable[..., None] = import_module(TASKS[kind].report).print_summary
    return print_summary
