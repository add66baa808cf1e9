"""However long what a user gave, a message stays a line that fits on a screen, and still says what is allowed."""

import json
from pathlib import Path

import pytest

from experiments.settings.loading import load
from sim.errors import ConfigError
from tests.commands import CONFIG

LONG = "x" * 80_000
DIGITS = "1" * 5_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("round_robin", LONG),
        ("round_robin", f"{LONG}:mine"),
        ("round_robin", f"[{LONG}]"),
        ("{kind: round_robin}", LONG),
        ("{kind: round_robin}", f"{{kind: round_robin, {LONG}: 1}}"),
        ("rate_per_s: 5", f"rate_per_s: {LONG}"),
        ("rate_per_s: 5", f"rate_per_s: {DIGITS}"),
        ("replicas: 2", f"replicas: {DIGITS}"),
        ("rate_per_s: 5", f"rate_per_s: [{'1, ' * 20_000}]"),
        ("rate_per_s: 5", f"rate_per_s: !{LONG} 5"),
        ("rate_per_s: 5", f"? {LONG}\n  : 5\n  ? {LONG}\n  : 5\n  rate_per_s: 5"),
        ("llama-3.1-8b", LONG),
        ("name: main", f"name: {LONG}"),
        ("name: main", f"name: main\n    {LONG}: 1"),
        ("router:", f"slo: {{classes: {{{LONG}: {{ttft_s: {{p99: 1}}}}}}}}\nrouter:"),
        ("router:", f"sweep: {{{LONG}: [1]}}\nrouter:"),
        ("router:", f"sweep: {{router.kind: {LONG}}}\nrouter:"),
        ("router:", f"seeds: [{DIGITS}x]\nrouter:"),
        ("router:", f"kind: {LONG}\nrouter:"),
        ("router:", "[" * 3000 + "\nrouter:"),
    ],
)
def test_a_long_value_is_cut_in_the_message(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 5
    assert all(len(line) < 2500 for line in lines)
    assert "x" * 1000 not in str(caught.value)


def test_what_is_known_is_said_behind_a_long_value(tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG.replace("round_robin", LONG))
    with pytest.raises(ConfigError, match=r"\(79,840 more\).*known: least_loaded, least_tokens"):
        load(path)


@pytest.mark.parametrize("change", [LONG, f"traffic.{LONG}=1", f"traffic.rate_per_s={LONG}", f"router.kind={LONG}"])
def test_a_long_set_is_cut_in_the_message(change: str, tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG)
    with pytest.raises(ConfigError) as caught:
        load(path, [change])
    assert len(str(caught.value)) < 2500


def test_a_thousand_mistakes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text(CONFIG + "".join(f"key_{i}: 1\n" for i in range(1000)))
    with pytest.raises(ConfigError, match="and 950 more mistakes") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 51


def test_a_sweep_of_millions_is_refused_before_its_runs_are_made(tmp_path: Path) -> None:
    axes = {"seed_of": list(range(2001)), "traffic.rate_per_s": list(range(1, 2001))}
    (tmp_path / "x.yaml").write_text(json.dumps({"sweep": axes}))
    with pytest.raises(ConfigError, match="sweep: has 4,002,000 combinations; at most 10,000 are run"):
        load(tmp_path / "x.yaml")


def test_a_name_of_two_lines_is_told_in_one(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(json.dumps({"name": "two\nlines"}))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "x.yaml")
    assert r"name: must be made of letters, digits, _, . and -, given 'two\nlines'" in str(caught.value).splitlines()[0]
