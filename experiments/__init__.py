"""Configs, wiring, runs, results and reports: the one place where concrete classes meet."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.running import Result


def run(path: "str | Path", **options: Any) -> "Result":
    """Runs a config file and returns its results; `experiments.running.run` lists the options.

    `run("configs/routers.yaml").summary` is a DataFrame, and so are `.requests`, `.timeline` and `.replicas`.
    """
    from experiments import running  # here, so that importing a part of this package stays cheap

    return running.run(path, **options)
