"""Reads served results: load generators' reports and indices of them."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accuracy.measured.reported import served_of_report
from accuracy.measured.reports import documents, index_in, indexed, on_its_own, read_report, text_of
from accuracy.measured.results import Served
from sim.errors import ConfigError, TraceError
from sim.outside import load_external, own_code


def read_served(path: str | Path, reader: str | None = None) -> list[Served]:
    """Reads a load generator's report, an index of such reports (YAML), or lines of either (JSON).

    Every report becomes a result, perhaps with a problem. Of one name the second is called NAME#2, those that can be simulated
    before those that cannot.

    Args:
        path: the file.
        reader: `package.module:name` of a function that takes the path of a file in another form, and yields indices.

    Raises:
        TraceError: no such file, or a line or report is no result.
        ConfigError: the reader cannot be imported, or fails.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    results = [*(_results(path) if reader is None else _indexed(_read_by(reader, path), path))]
    times_seen: dict[str, int] = {}
    for number in sorted(range(len(results)), key=lambda number: bool(results[number].problem)):
        one = results[number]
        times_seen[one.name] = times_seen.get(one.name, 0) + 1
        again = f"#{times_seen[one.name]}" if times_seen[one.name] > 1 else ""
        results[number] = replace(one, name=one.name + again)
    if not results:
        raise TraceError(f"{path}: no result in it")
    return results


def _read_by(reader: str, path: Path) -> list[tuple[int, Any]]:
    try:
        read = load_external(reader)
    except ValueError as error:
        raise ConfigError(f"reader: {error}") from error
    with own_code(read):
        return [*enumerate(read(path), start=1)]


def _results(path: Path) -> Iterator[Served]:
    if path.suffix in (".yaml", ".yml"):
        for number, (about, report) in enumerate(indexed(index_in(path), path.parent, str(path)), start=1):
            yield _checked(f"{path}:{number}", served_of_report, about, report)
        return
    for number, document in _documents(path):
        if isinstance(document, Mapping) and {"about", "reports"} <= document.keys():
            yield from _indexed([(number, document)], path)
        else:
            for report in read_report(document, path):
                yield _checked(f"{path}:{number}", served_of_report, on_its_own(report, path), report)


def _indexed(indices: list[tuple[int, Any]], path: Path) -> Iterator[Served]:
    for number, index in indices:
        where = f"{path}:{number}"
        for about, report in indexed(index, path.parent, where):
            yield _checked(where, served_of_report, about, report)


def _documents(path: Path) -> list[tuple[int, Any]]:
    """The documents of a file with their numbers: its lines, or where the first is none, what there is of many lines each."""
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        try:
            found += [(number, json.loads(line))] if line.strip() else []
        except ValueError as error:
            if not found and path.suffix != ".jsonl":
                return [*enumerate(documents(path), start=1)]
            raise TraceError(f"{path}:{number}: is not JSON ({error})") from error
    return found


def _checked(where: str, read: Callable[..., Served], *args: Any) -> Served:
    """What `read` makes of a result.

    Raises:
        TraceError: it is none.
    """
    try:
        return read(*args)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())[:300]
        raise TraceError(f"{where}: is not a served result ({type(error).__name__}: {why})") from error
