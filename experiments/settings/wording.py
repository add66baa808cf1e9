"""Puts one mistake into words: what is wrong, what was given, what is allowed, the nearest match."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from experiments.settings.sections import Path, Section, dotted, section_at, sections
from sim.texts import LONGEST, nearest

UNITS: dict[str, dict[str, float]] = {
    "_s": {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "h": 3600, "hours": 3600},
    "_bytes": {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    "_tokens": {"tokens": 1, "k": 1000},
}
"""For the ends of our keys, the units that people write behind a number."""

SUFFIX = re.compile(
    r"_(s|ms|us|ns|secs?|seconds?|mins?|minutes?|h|hours?|days?|bytes|[kmg]i?b|tokens|blocks"
    r"|per_s|per_min|per_second|rps|qps|per_gpu_hour|per_hour)$"
)
"""The ends of keys that are units, ours and others'."""

SUFFIX_WORDS = {"s": "in seconds", "per_s": "per second", "per_gpu_hour": "dollars per GPU-hour", "bytes": "in bytes"}

WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
"""What each of pydantic's complaints about a type asks for."""

_LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}


def sentence(schema: type[BaseModel], data: Any, path: Path, line: Any) -> str:
    """Returns what one of pydantic's error lines means to the user, at `path` of `data`."""
    kind, given = line["type"], line["input"]
    context = line.get("ctx", {})
    key = _unit_key(path)
    if kind == "extra_forbidden":
        return _unknown(schema, data, path)
    if kind == "missing":
        return f"missing{_meaning(schema, data, path, ': ')}"
    if kind == "alternatives":
        return f"must be {line['wanted']}, given {shown(given)}{_converted(given, key)}{_meaning(schema, data, path)}"
    if kind in WANTED:
        return f"must be {WANTED[kind]}, given {shown(given)}{_converted(given, key)}{_meaning(schema, data, path)}"
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        limit = context[name]
        hint = _smaller_unit(given, key, limit) if kind.startswith("less") else ""
        return f"must be {words} {limit:g}, given {shown(given)}{hint}{_meaning(schema, data, path)}"
    if kind in ("literal_error", "enum"):
        return _not_allowed(given, context["expected"])
    if kind in ("too_short", "string_too_short"):
        return f"must have at least {context['min_length']} item, given {shown(given)}"
    return str(line["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _unit_key(path: Path) -> str:
    """The key whose ending is the unit of the number at `path`: its own, or that of the percentile's metric."""
    words = [str(part) for part in path[-2:]]
    return next((word for word in reversed(words) if SUFFIX.search(word)), words[-1] if words else "")


def _unknown(schema: type[BaseModel], data: Any, path: Path) -> str:
    here = section_at(schema, data, path[:-1])
    if here is None:
        return "unknown key"
    elsewhere: dict[str, list[str]] = {}
    for section in sections(schema, data):
        for name in section.fields:
            place = dotted(data, (*section.path, name))
            if section.path != here.path and place not in elsewhere.setdefault(name, []):
                elsewhere[name].append(place)
    return unknown_key(str(path[-1]), here, elsewhere)


def _meaning(schema: type[BaseModel], data: Any, path: Path, before: str = " — ") -> str:
    """The field's own description, so that nobody has to look it up."""
    section = section_at(schema, data, path[:-1]) if path else None
    field = section.fields.get(str(path[-1])) if section else None
    return f"{before}{field.description.strip().rstrip('.')}" if field is not None and field.description else ""


def _not_allowed(given: Any, expected: str) -> str:
    """The sentence for a word outside a fixed list; pydantic lists it as `'a', 'b' or 'c'`."""
    words = re.findall(r"'([^']*)'", expected)
    match = nearest(given, words)
    hint = f"did you mean '{match}'? " if match else ""
    return f"must be one of {', '.join(words) or expected}; {hint}given {shown(given)}"


def _converted(given: object, key: str) -> str:
    """For a number written with a unit, the number in the key's own unit."""
    text = given.lower().replace(",", "").strip() if isinstance(given, str) else ""
    written = re.fullmatch(r"\$?(\d+\.?\d*(?:e[+-]?\d+)?)\s*([a-z%/_]*)", text)
    if written is None:
        return ""
    number = float(written[1])
    unit = written[2]
    if unit == "":
        return "; write it without quotes or commas"
    if unit == "%":
        return f"; as a fraction that is {number / 100:g}"
    for suffix, units in UNITS.items():
        if key.endswith(suffix) and not key.endswith("_per_s") and unit in units:
            return f"; in this key's unit that is {number * units[unit]:g}"
    return "; the unit is in the key's name, write the number alone"


def _smaller_unit(given: float, key: str, limit: float) -> str:
    """For a number above its limit, what it may have been meant as: milliseconds, or a percentage."""
    if key.endswith("_s") and not key.endswith("_per_s") and given / 1000 <= limit:
        return f"; the key is in seconds: {given:g} ms would be {given / 1000:g}"
    if limit == 1 and given <= 100:
        return f"; it is a fraction: {given:g} % would be {given / 100:g}"
    return ""


def shown(value: object) -> str:
    """Writes a value as YAML would, on one line, texts in quotes, cut when long.

    >>> shown({"kind": "fixed", "replicas": [1, None, True]}), shown("60s")
    ('{kind: fixed, replicas: [1, null, true]}', "'60s'")
    """
    if isinstance(value, str):
        text = repr(value[:LONGEST])
    elif isinstance(value, int) and value.bit_length() > LONGEST:
        return f"a whole number of {value.bit_length():,} bits"
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
        text = text.removesuffix("...").strip()
    return text if len(text) <= 80 else text[:77] + "..."


def unknown_key(key: str, here: Section, elsewhere: Mapping[str, list[str]]) -> str:
    """Returns the sentence for a key that its section does not have.

    Args:
        key: what was written.
        here: the section it was written in.
        elsewhere: for each key of the other sections, where it stands.
    """
    known = f"known: {', '.join(here.keys)}"
    if key in elsewhere and not _same_but_for_unit(key, here.keys):
        return f"unknown key here; it belongs at {' or '.join(elsewhere[key])}"
    match = _same_but_for_unit(key, here.keys) or nearest(key, here.keys) or _nearest_stem(key, here.keys)
    match = match or _abbreviated(key, here.keys)
    if match is not None:
        suffix = SUFFIX.search(match)
        unit = f" ({SUFFIX_WORDS.get(suffix[1], suffix[1])})" if suffix and SUFFIX.sub("", match) != match else ""
        return f"unknown key; did you mean '{match}'{unit}? {known}"
    match = _same_but_for_unit(key, elsewhere) or _abbreviated(key, elsewhere)
    return f"unknown key; {f'did you mean {elsewhere[match][0]}? ' if match else ''}{known}"


def _same_but_for_unit(key: str, known: Iterable[str]) -> str | None:
    stem = SUFFIX.sub("", key.lower())
    return next((word for word in known if SUFFIX.sub("", word) == stem and word != key), None)


def _nearest_stem(key: str, known: Iterable[str]) -> str | None:
    stems = {SUFFIX.sub("", word): word for word in known}
    match = nearest(SUFFIX.sub("", key.lower()), stems)
    return stems[match] if match else None


def _abbreviated(key: str, known: Iterable[str]) -> str | None:
    """The key whose words begin with the letters given: tp is short for tensor_parallel_size."""
    initials = {"".join(part[:1] for part in word.split("_")): word for word in known if "_" in word}
    return next((word for letters, word in initials.items() if len(key) > 1 and letters.startswith(key.lower())), None)
