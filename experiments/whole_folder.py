"""A result folder that is whole or absent: it is filled under another name and renamed at the end."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `folder` if all goes well, and leaves nothing behind if not."""
    _clear_remains(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _clear_remains(folder: Path) -> None:
    """Removes what runs of this folder left that were killed before they could clean up."""
    for remains in folder.parent.glob(f".{folder.name}.*.partial"):
        pid = remains.suffixes[-2].lstrip(".")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(remains, ignore_errors=True)
