"""Reading YAML: what YAML 1.1 would misread, and what its parser would say unhelpfully."""

from pathlib import Path

import pytest

from experiments.settings.yaml_files import parse_yaml, read_config
from sim.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.5e-3", 1.5e-3),
        ("010", 10),
        ("10_000", 10_000),
        (".5", 0.5),
        ("-3", -3),
        ("14:30", "14:30"),
        ("2023-11-16", "2023-11-16"),
        ("'5'", "5"),
        ("~", None),
        ("true", True),
        (".inf", float("inf")),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    found = parse_yaml(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice, first in line 1"),
        ("slo: {p99: 1, 99: 2}", "line 1, column 15: a key must be a word, given 99"),
        ("on: 1", "a key must be a word, given on"),
        ("a:\n\t- b", "YAML forbids tabs"),
        ("a: [1, 2", "line 1, column 9"),
        ("a: b: c", "line 1, column 5"),
        ("a: !!python/object:os.system x", "line 1, column 4"),
    ],
)
def test_mistakes_are_one_line_with_a_place(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merge_keys_may_be_overridden() -> None:
    assert parse_yaml("a: &a {k: 1, l: 2}\nb: {<<: *a, k: 3}")["b"] == {"k": 3, "l": 2}


def test_aliases_of_aliases_are_refused_instead_of_filling_the_memory() -> None:
    """Ten lines of which each is nine times the one before: the sixth is the first with more than 100,000 values."""
    lines = ["v0: &v0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"v{i}: &v{i} [{', '.join([f'*v{i - 1}'] * 9)}]" for i in range(1, 10)]
    with pytest.raises(ConfigError) as caught:
        parse_yaml("\n".join(lines))
    assert str(caught.value) == "line 6, column 5: too large: 597,871 values with all aliases spelt out; at most 100,000"


def test_merges_of_merges_are_refused_instead_of_filling_the_memory() -> None:
    lines = ["v0: &v0 {a: 1}", *(f"v{i}: &v{i} {{<<: [{', '.join([f'*v{i - 1}'] * 9)}]}}" for i in range(1, 10))]
    with pytest.raises(ConfigError, match="too large"):
        parse_yaml("\n".join(lines))


def test_an_alias_of_what_it_stands_in_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^line 1, column 4: an alias stands within what it is an alias of$"):
        parse_yaml("a: &a [1, *a]")


def test_aliases_of_a_few_values_are_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]")["b"] == [[1, 2], [1, 2]]


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "routers.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=r"router\.yaml: no such file; did you mean .*routers\.yaml\?"):
        read_config(tmp_path / "router.yaml")


@pytest.mark.parametrize(("text", "given"), [("", "an empty file"), ("- a", "a list"), ("hello", "a str")])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, given: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"must be a mapping of keys .*, given {given}"):
        read_config(path)


def test_binary_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)
