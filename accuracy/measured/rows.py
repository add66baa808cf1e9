"""Reads served results: lines of a table, load generators' reports, aiconfigurator's table."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accuracy.measured.lines import served_of_line
from accuracy.measured.reported import served_of_report
from accuracy.measured.reports import documents, indexed, on_its_own, read_report, text_of
from accuracy.measured.results import Served
from accuracy.measured.silicon import read_silicon
from accuracy.measured.tools import tool_of
from sim.errors import TraceError

LINE_KEYS = ("group", "server_args")
"""By any of these a line of serving_ground_truth.jsonl is told from a report."""


def read_served(path: str | Path) -> list[Served]:
    """Reads JSON lines in the form of `serving_ground_truth.jsonl`, a load generator's report, an index of such reports
    (YAML), or aiconfigurator's `silicon_sample.csv`.

    Every line, report or row becomes a result, perhaps with a problem. Of one name the second is called NAME#2, those that can
    be simulated before those that cannot.

    Raises:
        TraceError: no such file, or a line or report is no result.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    results = [*_results(path)]
    times_seen: dict[str, int] = {}
    for number in sorted(range(len(results)), key=lambda number: bool(results[number].problem)):
        one = results[number]
        times_seen[one.name] = times_seen.get(one.name, 0) + 1
        again = f"#{times_seen[one.name]}" if times_seen[one.name] > 1 else ""
        results[number] = replace(one, name=one.name + again)
    if not results:
        raise TraceError(f"{path}: no result in it")
    return results


def _results(path: Path) -> Iterator[Served]:
    if path.suffix == ".csv":
        yield from read_silicon(path)
    elif path.suffix in (".yaml", ".yml"):
        for number, (about, report) in enumerate(indexed(path), start=1):
            yield _checked(f"{path}:{number}", served_of_report, about, report)
    else:
        for number, document in _documents(path):
            is_line = isinstance(document, Mapping) and any(key in document for key in LINE_KEYS)
            if is_line and (tool_of(document) is None or "server_args" in document):
                yield _checked(f"{path}:{number}", served_of_line, document)
            else:
                for report in read_report(document, path):
                    yield _checked(f"{path}:{number}", served_of_report, on_its_own(report, path), report)


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
