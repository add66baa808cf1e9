"""Where the data lies that tests may read but the project does not hold; tests skip, with a reason, without it."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("DAYBREAK_SHARED", Path(__file__).parents[2] / "shared"))


def shared(name: str) -> Path:
    """Returns a file or folder of the shared data, or skips the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not here; DAYBREAK_SHARED names the folder that has it")
    return path
