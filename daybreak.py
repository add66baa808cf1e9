"""Daybreak, wherever it is installed: the command, and from Python `from daybreak import run`.

The packages have short names (`sim`, `experiments`, ...), which a folder or script of the user's may have too. Importing this
module first settles it: those names then mean Daybreak's own packages, whatever lies in the current folder. Worker processes
start here as well.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.running import Result

PACKAGES = ("sim", "replicas", "routers", "autoscalers", "traces", "experiments", "planning", "accuracy")
_HOME = Path(__file__).resolve().parent


class _OwnPackages(MetaPathFinder):
    """Finds our packages beside this file, before anything else that has their names."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns where a package of ours is; None for any other name."""
        return PathFinder.find_spec(fullname, [str(_HOME)]) if fullname in PACKAGES else None


def _check_names() -> None:
    """Refuses to go on where one of our names already stands for a module of somebody else."""
    for name, module in [(name, sys.modules[name]) for name in PACKAGES if name in sys.modules]:
        places = [place for place in (getattr(module, "__file__", None), *getattr(module, "__path__", [])) if place]
        if not any(Path(place).resolve().is_relative_to((_HOME / name).resolve()) for place in places):
            raise ImportError(
                f"Daybreak has a package '{name}', and another module of that name was imported before it, from "
                f"{next(iter(places), 'elsewhere')}; import daybreak first, or rename that module"
            )


_check_names()
sys.meta_path.insert(0, _OwnPackages())


def run(path: str | Path, **options: Any) -> "Result":
    """Runs a config file and returns its results; `experiments.running.run` lists the options."""
    from experiments import run as run_config

    return run_config(path, **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    from experiments.cli import main as run_command

    return run_command(arguments)


def work(*parts: Any) -> None:
    """The life of a worker process; it begins here so that the names are settled before anything else is imported."""
    from experiments.workers import work as work_on

    work_on(*parts)


def __getattr__(name: str) -> Any:
    """`daybreak.Result`, which brings pandas, when it is asked for."""
    if name == "Result":
        from experiments.running import Result

        return Result
    raise AttributeError(f"module 'daybreak' has no attribute '{name}'")


if __name__ == "__main__":
    sys.exit(main())
