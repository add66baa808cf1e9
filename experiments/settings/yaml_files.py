"""Reads YAML as users expect it: 1e9 is a number, 14:30 is not, and a key given twice is a mistake."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ConfigError
from sim.shipped import all_shipped, shipped_file
from sim.texts import bounded, listed, nearest

_NUMBERS = {
    "int": re.compile(r"[-+]?\d[\d_]*$"),
    "float": re.compile(r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.inf$|\.nan$"),
}
"""YAML 1.2's decimal numbers, with underscores. YAML 1.1, PyYAML's own, reads 1e9 as text, 14:30 as 870, 010 as 8."""


MOST_VALUES = 100_000
"""Keys and values of one text with its aliases spelt out; a day's rates by the second are fewer.

A few lines of aliases of aliases are billions otherwise."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers above, dates as text, unique keys that are words, and aliases within bounds."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a collection"
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                raise _at(key_node, f"a key must be a word, given {key}; put it in quotes if you mean it")
            if key in first_lines:
                raise _at(key_node, f"key '{key}' is given twice, first in line {first_lines[key]}")
            first_lines[key] = line
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value.replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list("-+.0123456789"))


def _at(node: yaml.Node, text: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=text, problem_mark=node.start_mark)


def _count(node: yaml.Node, counts: dict[yaml.Node, int]) -> int:
    """Returns how many keys and values a node is with its aliases spelt out; `counts` has those of lists and mappings."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if node not in counts:
        counts[node] = 0  # while it is being counted
        parts = node.value if isinstance(node, yaml.SequenceNode) else itertools.chain.from_iterable(node.value)
        counts[node] = 1 + sum(_count(part, counts) for part in parts)
    if not counts[node]:
        raise _at(node, "an alias stands within what it is an alias of")
    if counts[node] > MOST_VALUES:
        raise _at(node, f"too large: {counts[node]:,} values with all aliases spelt out; at most {MOST_VALUES:,}")
    return counts[node]


def parse_yaml(text: str) -> Any:
    """Returns what `text` says.

    Raises:
        ConfigError: with line and column.

    >>> parse_yaml("{rate: 1e3, tokens: 10_000, at: 14:30, is_on: true}")
    {'rate': 1000.0, 'tokens': 10000, 'at': '14:30', 'is_on': True}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = "; indent with spaces, YAML forbids tabs" if "'\\t'" in str(error.problem) else ""
        context = f"{error.context}, " if error.context else ""
        raise ConfigError(f"{place}{bounded(context)}{bounded(error.problem)}{hint}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a number of 5,000 digits
        raise ConfigError(bounded(" ".join(str(error).split()))) from error


def located(path: Path) -> Path:
    """Returns where a config file is: at `path`, or else among those that come with the project, by its name."""
    return path if os.path.exists(path) else shipped_file(path, "configs") or path


def read_config(path: Path) -> dict[str, Any]:
    """Reads one config file.

    Raises:
        ConfigError: no such file, not YAML, or not a mapping; one line that starts with the path.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    try:
        data = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        given = "an empty file" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path}: must be a mapping of keys (name, traffic, router, pools, ...), given {given}")
    return data


def _similar_file(path: Path) -> str:
    folder = path.parent
    files = sorted(file.name for file in folder.glob("*.y*ml")) if folder.is_dir() else []
    match = nearest(path.name, files)
    if match:
        return f"; did you mean {folder / match}?"
    ours = nearest(path.stem, (file.stem for file in all_shipped("configs")))
    if ours and path.parent in (Path(), Path("configs")):
        return f"; did you mean the shipped {ours}?"
    return f"; in {folder}: {listed(files)}" if files else ""
