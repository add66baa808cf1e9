"""From a config file to the runs it asks for, or to everything that is wrong with it."""

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from experiments.settings.experiment import Study
from experiments.settings.mistakes import Mistake, mistakes_in
from experiments.settings.sections import section_at, step
from experiments.settings.sweeps import Change, Point, apply, find, points, slug
from experiments.settings.tasks import TASKS, schema_of
from experiments.settings.wording import shown
from experiments.settings.yaml_files import located, parse_yaml, read_config
from sim.errors import ConfigError
from sim.limits import MAX_SEED
from sim.texts import bounded, nearest, unknown_name

SMOKE_REQUESTS = 2000
MOST_LINES = 50
"""Mistakes of one file that are told at once."""

MOST_POINTS = 10_000
"""Combinations of one sweep. Assumption: more are a slip; 10,000 small runs take some hours."""


@dataclass(frozen=True)
class RunConfig:
    """One run: an experiment with one seed and one point of its sweep."""

    experiment: Study
    source: str  # the config file
    slug: str = ""  # the run's folder within the experiment's; empty for the only run of an experiment
    axes: tuple[tuple[str, str], ...] = ()  # what was swept, and its value's label here

    @property
    def name(self) -> str:
        """Experiment and run, for people: `day/forecast`."""
        return f"{self.experiment.name}/{self.slug}" if self.slug else self.experiment.name

    @property
    def seed(self) -> int:
        """The one seed of this run."""
        return self.experiment.seed

    @property
    def document(self) -> dict[str, Any]:
        """The resolved config, defaults written out; loads as the same single run."""
        return _kinds_first(self.experiment.model_dump(mode="json", exclude={"seeds", "sweep"}))

    @property
    def yaml(self) -> str:
        """The resolved config as a file."""
        return yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True, width=120)

    @property
    def hash(self) -> str:
        """SHA-256 of the resolved config: the same in any process and for any order of keys."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _kinds_first(data: Any) -> Any:
    """The same data, names and kinds at the head of their sections."""
    if isinstance(data, dict):
        heads = [key for key in ("name", "kind") if key in data]
        return {key: _kinds_first(data[key]) for key in [*heads, *(key for key in data if key not in heads)]}
    return [_kinds_first(one) for one in data] if isinstance(data, list) else data


def load(path: str | Path, sets: Sequence[str] = (), seed: int | None = None, smoke: bool = False) -> list[RunConfig]:
    """Reads a config file and returns its runs: every combination of its sweep, for each seed.

    Args:
        path: the YAML file, or the name of a shipped one.
        sets: changes such as `pools.main.replicas.max_num_seqs=64`, made before the sweep's.
        seed: replaces the file's `seed` or `seeds`.
        smoke: shrinks each run to seconds: the first 2,000 requests of the first seed, all of them measured.

    Raises:
        ConfigError: with every mistake, one a line.
    """
    path = located(Path(path))
    data = read_config(path)
    data.setdefault("name", path.stem)
    lines: list[str] = []
    data, changes = _changed(data, sets, lines)
    seeds = _seeds(data, seed, smoke, lines)
    _check_kind(data, changes, lines)
    drafts = list(_drafts(data, _sweep(data, lines), changes, smoke, lines))
    found: dict[str, list[str]] = {}
    runs = []
    for draft, point in drafts:
        try:
            experiment = schema_of(draft).model_validate_json(json.dumps({**draft, "seed": seeds[0]}))
        except ValidationError as error:
            for mistake in mistakes_in(schema_of(draft), draft, error):
                text = f"{mistake}{_origin(mistake, draft, changes, point)}"
                found.setdefault(text, []).append(slug([change.label for change in point]))
            continue
        runs += [_run(experiment, path, point, one, len(drafts) * len(seeds), len(seeds)) for one in seeds]
    for text, where in found.items():
        lines.append(text if len(where) == len(drafts) else f"{text} (in run {where[0]})")
    if lines:
        left_out = [f"and {len(lines) - MOST_LINES:,} more mistakes"] if len(lines) > MOST_LINES else []
        raise ConfigError("\n".join(f"{path}: {bounded(line, 2000)}" for line in [*lines[:MOST_LINES], *left_out]))
    return _distinct(runs)


def _changed(data: dict[str, Any], sets: Sequence[str], lines: list[str]) -> tuple[dict[str, Any], list[Change]]:
    """The config with all `--set`s, and those that could be made."""
    changes = []
    for text in sets:
        dotted, equals, value = text.partition("=")
        if not equals:
            lines.append(f"--set {bounded(text)}: must be path=value, such as --set traffic.limit=1000")
            continue
        try:
            change = Change(dotted.strip(), parse_yaml(value))
            data = apply(schema_of(data), data, change)
            changes.append(change)
        except (ConfigError, ValueError) as error:
            lines.append(f"--set {bounded(text)}: {error}")
    return data, changes


def _check_kind(data: dict[str, Any], changes: list[Change], lines: list[str]) -> None:
    """Notes an unknown kind, and goes on as if it were the nearest one to find the other mistakes."""
    kind = data.get("kind", "simulate")
    if not isinstance(kind, str) or kind not in TASKS:
        lines.append(f"kind: {unknown_name('kind of config', kind, TASKS)}")
        data["kind"] = nearest(kind, TASKS) or "simulate"
        changes[:] = [change for change in changes if change.path != "kind"]


def _seeds(data: dict[str, Any], seed: int | None, smoke: bool, lines: list[str]) -> list[Any]:
    """Takes `seeds` out of the config and returns the seeds to run; a wrong one is left for the schema to refuse."""
    seeds = data.pop("seeds", None)
    if seed is not None:
        return [seed]
    if seeds is None:
        return [data.get("seed", 1)]
    if "seed" in data:
        lines.append("seeds: give either seed or seeds")
    if not isinstance(seeds, list) or not seeds or not all(type(one) is int and 0 <= one <= MAX_SEED for one in seeds):
        lines.append(f"seeds: must be a list of whole numbers from 0 to {MAX_SEED:,}, given {shown(seeds)}")
        return [1]
    if len(set(seeds)) < len(seeds):
        lines.append(f"seeds: each seed once, given {shown(seeds)}")
    return seeds[:1] if smoke else seeds


def _sweep(data: dict[str, Any], lines: list[str]) -> Mapping[str, list[Any] | Mapping[str, Any]]:
    """Takes `sweep` out of the config and returns what of it has the right form."""
    sweep = data.pop("sweep", None)
    if sweep is None:
        return {}
    if not isinstance(sweep, Mapping):
        lines.append(f"sweep: must be a mapping of paths to lists of values, given {shown(sweep)}")
        return {}
    for dotted, values in sweep.items():
        if not isinstance(values, (list, Mapping)) or not values:
            lines.append(f"sweep.{dotted}: must be a list of values, or a mapping of names to values, given {shown(values)}")
        elif dotted in ("seed", "seeds", "name", "kind", "sweep"):
            lines.append(f"sweep.{dotted}: cannot be swept{'; use seeds: [...]' if 'seed' in dotted else ''}")
    axes = {dotted: values for dotted, values in sweep.items() if isinstance(values, (list, Mapping))}
    num_points = math.prod(len(values) for values in axes.values())
    if num_points > MOST_POINTS:
        lines.append(f"sweep: has {num_points:,} combinations; at most {MOST_POINTS:,} are run")
        return {}
    return axes


def _drafts(
    data: dict[str, Any],
    sweep: Mapping[str, list[Any] | Mapping[str, Any]],
    changes: list[Change],
    smoke: bool,
    lines: list[str],
) -> Iterator[tuple[dict[str, Any], Point]]:
    """Yields the config of every point of the sweep, and the point."""
    wrong: dict[str, None] = {}
    for point in points(sweep):
        draft = data
        made = []
        for change in point:
            try:
                draft = apply(schema_of(draft), draft, change)
                made.append(change)
            except ValueError as error:
                wrong[f"sweep.{change.path}: {error}"] = None
        wrong.update(
            {
                f"--set {one.path}: has no effect, the sweep sets it (--set sweep=null drops it)": None
                for one in changes
                if _lost(one, draft)
            }
        )
        yield _shrunk(draft) if smoke else draft, tuple(made)
    lines.extend(wrong)


def _lost(change: Change, draft: Any) -> bool:
    """Whether a `--set` was overwritten by the sweep, which would leave an accepted flag without effect."""
    value = draft
    for part in find(draft, change.path):
        value = step(value, part)
    return (
        change.path not in ("kind", "seed", "seeds", "sweep")
        and not isinstance(change.value, Mapping)
        and value != change.value
    )


def _shrunk(draft: dict[str, Any]) -> dict[str, Any]:
    """A copy that runs in seconds."""
    draft = copy.deepcopy(draft)
    schema = schema_of(draft)
    traffic = section_at(schema, draft, ("traffic",))
    if traffic is not None and "limit" in traffic.keys:
        limit = draft["traffic"].get("limit")
        draft["traffic"]["limit"] = min(limit, SMOKE_REQUESTS) if type(limit) is int else limit or SMOKE_REQUESTS
    schema.shrink(draft)
    return draft


def _origin(mistake: Mistake, draft: Any, changes: list[Change], point: Point) -> str:
    """Says which `--set` or sweep wrote the wrong place; empty when the file did."""
    for origin, made in (("sweep", point), ("--set", changes)):
        for change in made:
            path = find(draft, change.path)
            is_inside = mistake.path[: len(path)] == path
            is_new_section = path[: len(mistake.path)] == mistake.path and mistake.text.startswith("unknown key")
            if is_inside or is_new_section:
                return f" (from {origin}{f' {change.path}' if change.path != mistake.where else ''})"
    return ""


def _run(experiment: Study, path: Path, point: Point, seed: int, num_runs: int, num_seeds: int) -> RunConfig:
    axes = [(change.path, change.label) for change in point]
    labels = [change.label for change in point] + ([f"seed={seed}"] if num_seeds > 1 else [])
    return RunConfig(experiment.model_copy(update={"seed": seed}), str(path), slug(labels) if num_runs > 1 else "", tuple(axes))


def _distinct(runs: list[RunConfig]) -> list[RunConfig]:
    """Numbers the runs whose labels would give them the same folder."""
    seen: dict[str, int] = {}
    distinct = []
    for run in runs:
        seen[run.slug] = seen.get(run.slug, 0) + 1
        distinct.append(run if seen[run.slug] == 1 else replace(run, slug=f"{run.slug},{seen[run.slug]}"))
    return distinct
