"""What produced a result: our sources, the packages below them, the machine."""

import hashlib
import platform
import resource
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from daybreak import PACKAGES

_ROOT = Path(__file__).parents[1]
_BELOW = ("numba", "numpy", "pandas", "pyarrow", "pydantic", "scipy", "simpy")


@cache
def source_hash() -> str:
    """Returns a SHA-256 over all of our code and tables: results of different code never pass for the same."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".csv"):
                digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def file_hash(path: str | Path) -> str:
    """Returns the SHA-256 of a file that a result depends on."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def code() -> dict[str, Any]:
    """Returns our version, the hash of our sources, and the git commit where there is one."""
    found = subprocess.run(["git", "-C", str(_ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() if found.returncode == 0 else None
    return {"version": metadata.version("daybreak"), "source_hash": source_hash(), "git_commit": commit}


def packages() -> dict[str, str]:
    """Returns the versions of the packages that results depend on."""
    return {name: metadata.version(name) for name in _BELOW} | {"python": platform.python_version()}


def machine() -> dict[str, Any]:
    """Returns what the run's times were measured on."""
    return {"platform": platform.platform(), "processor": platform.machine()}


def peak_memory_bytes() -> int:
    """Returns the most memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
