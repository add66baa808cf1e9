"""Where the files lie that come with the project: at its top in a checkout, inside a package once it is installed."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Returns the shipped `configs` or `calibrations`."""
    installed = _HERE / f"shipped_{folder}"  # pyproject.toml puts it there
    return installed if installed.is_dir() else _HERE.parent / folder


def shipped_file(given: str | Path, folder: str) -> Path | None:
    """Returns the shipped file that `given` names, or None: by its name, with or without the folder and the `.yaml`.

    >>> shipped_file("vllm-0.15_l40s_served", "calibrations").name
    'vllm-0.15_l40s_served.yaml'
    >>> shipped_file("mine/vllm-0.15_l40s_served.yaml", "calibrations") is None
    True
    """
    given = Path(given)
    if given.parent not in (Path(), Path(folder)):
        return None
    names = (given.name, f"{given.name}.yaml")
    return next((place for name in names if (place := shipped(folder) / name).is_file()), None)
