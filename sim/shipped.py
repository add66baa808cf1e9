"""Where the files lie that come with the project: at its top in a checkout, inside a package once it is installed."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Returns the shipped `configs` or `calibrations`."""
    installed = _HERE / f"shipped_{folder}"  # pyproject.toml puts it there
    return installed if installed.is_dir() else _HERE.parent / folder


def all_shipped(folder: str) -> list[Path]:
    """Returns the shipped files of `configs`, those in its folders too, or `calibrations`, in order."""
    return sorted(shipped(folder).rglob("*.yaml"))


def shipped_file(given: str | Path, folder: str) -> Path | None:
    """Returns the shipped file that `given` names, or None: by its name, with or without its folders and the `.yaml`.

    >>> shipped_file("vllm-0.15_l40s_served", "calibrations").name
    'vllm-0.15_l40s_served.yaml'
    >>> shipped_file("validate_h100_served", "configs") == shipped_file("configs/accuracy/validate_h100_served.yaml", "configs")
    True
    >>> shipped_file("mine/vllm-0.15_l40s_served.yaml", "calibrations") is None
    True
    """
    given = Path(given)
    named = {given, given.with_name(f"{given.name}.yaml")}
    for place in all_shipped(folder):
        within = place.relative_to(shipped(folder))
        if named & {Path(place.name), Path(folder, place.name), within, folder / within}:
            return place
    return None
