"""Reports of load generators, given as they are, or by an index that also says which engine served."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from accuracy.measured.about import NEEDED, About, about_of, as_stated
from accuracy.measured.names import model_of
from accuracy.measured.stated import stated_report
from accuracy.measured.tools import known, tool_of
from accuracy.measured.tools.report import Report
from sim.errors import TraceError

MOST_SHOWN = 200
"""Characters of what others wrote that an error shows."""


def index_in(path: Path) -> Any:
    """Returns what a YAML file says.

    Raises:
        TraceError: it cannot be read, or is no YAML.
    """
    try:
        return yaml.safe_load(text_of(path))
    except yaml.YAMLError as error:
        raise TraceError(f"{path}: is not an index with about and reports ({_said(error)})") from error


def indexed(index: Any, folder: Path, where: str) -> Iterator[tuple[About, Report]]:
    """Yields what an index's reports say, and of which engine.

    An index has `about`, and `reports`, a list of JSON files in its folder, or of results that are spelled out.

    Raises:
        TraceError: the index or a report cannot be read, or is none of the tools'.
    """
    try:
        given, reports = dict(index["about"]), [*index["reports"]]
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{where}: is not an index with about and reports ({_said(error)})") from error
    about = about_of(given, where)
    for number, one in enumerate(reports, start=1):
        path = folder / str(one)
        if isinstance(one, Mapping):
            named, found = str(number), [stated_report(one, where)]
        else:
            named, found = path.stem, [report for document in documents(path) for report in read_report(document, path)]
        for report in found:
            of_file = about.model_copy(update={"workload": about.workload or named})
            yield of_file, report._replace(sent=as_stated(report.sent, about))


def documents(path: Path) -> list[Any]:
    """Returns the JSON documents of a file: one, a list of them, or one after the other, as tools append them.

    Raises:
        TraceError: it cannot be read, or is no JSON.
    """
    text = text_of(path)
    found: list[Any] = []
    at, decoder = _after_space(text, 0), json.JSONDecoder()
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}:{error.lineno}: is not JSON ({error})") from error
        found += document if isinstance(document, list) else [document]
        at = _after_space(text, at)
    return found


def text_of(path: Path) -> str:
    """Returns what a file says.

    Raises:
        TraceError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not text in UTF-8 ({error.reason})") from error


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_report(document: Any, path: Path) -> list[Report]:
    """Returns what a report says, load by load.

    Raises:
        TraceError: no tool that is known writes such, or it lacks a key.
    """
    tool = tool_of(document)
    if tool is None:
        there = ", ".join(map(str, document)) if isinstance(document, Mapping) else type(document).__name__
        raise TraceError(f"{path}: is no report that we know (there: {there[:MOST_SHOWN] or 'nothing'}); {known()}")
    try:
        return [*tool.read(document)]
    except KeyError as error:
        raise TraceError(f"{path}: is no report that we know (one of {tool.NAME} without {error.args[0]})") from error
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise TraceError(f"{path}: is no report that we know (one of {tool.NAME}; {_said(error)})") from error


def on_its_own(report: Report, path: Path) -> About:
    """Returns the engine that a report itself names.

    Raises:
        TraceError: it does not say what is needed; how to say it.
    """
    said = {name: value for name, value in report.said.items() if value}
    missing = [name for name in NEEDED if name not in said or (name == "model" and not model_of(str(said[name])))]
    if missing:
        model = "..." if "model" in missing else said["model"]
        raise TraceError(
            f"{path}: is a report, and does not say {' and '.join(missing)} of the engine that served; write an index, a YAML "
            f"file beside it, with about: {{model: {model}, gpu: ..., tp: ..., engine_version: ..., server_args: {{...}}}}, "
            f"reports: [{path.name}]"
        )
    return about_of({"workload": path.stem, **said, "tp": int(said["tp"])}, path)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_SHOWN]}"
