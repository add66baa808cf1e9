"""Mutants of modules in plain Python: cosmic-ray's operators, as far as a change in one place says something of a test.

Of its operators those are taken that change a boundary, a sign, a condition, a number or the way through a loop. Left out are
the other operators in the same place (`a - b` as `a ** b` and `a << b` say no more than as `a + b`), and those that hit
annotations (`int | None`), which fail at import and would count as noticed. cosmic-ray's own runner is not used: it changes the
working tree.
"""

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutants.mutant import Mutant, lines_that_differ

OPERATORS = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv")),
    *(f"ReplaceUnaryOperator_{pair}" for pair in ("USub_UAdd", "Delete_Not")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)

UNIT = "tests/unit/test_"
THEORY = "tests/theory/test_"


def unit(*names: str) -> tuple[str, ...]:
    """Files of unit tests, by their short names."""
    return tuple(f"{UNIT}{name}.py" for name in names)


FITTED = unit("outside_the_fit", "calibrated", "gpu_calibration", "kernel_times")
FLEETS = (*unit("fleet_cases", "two_pools", "scaling_in_a_fleet", "data_parallel"), f"{THEORY}cold_start_lag.py")
TEXTBOOK = "tests/golden/test_textbook.py"
PLANNING = (*unit("planning"), TEXTBOOK, "--deselect", f"{TEXTBOOK}::test_the_page_is_current")  # of a page all are noticed
PLANS = unit("plan", "plan_answers")
KINDS_OF_SCALERS = "tests/contract/test_autoscaler_kinds.py"
POLICIES = (*unit("autoscalers", "forecast"), KINDS_OF_SCALERS, "tests/property/test_autoscaler_limits.py")
KINDS_OF_TRAFFIC = "tests/contract/test_traffic_kinds.py"
RATES = (*unit("traffic_rates", "generated_traffic"), f"{THEORY}arrivals.py", "tests/property/test_traffic_properties.py")
DRAWN = (*RATES, *unit("length_laws"), KINDS_OF_TRAFFIC)
READ = (*unit("recorded_traffic", "mooncake", "number_bounds", "long_values"), KINDS_OF_TRAFFIC)
WRITTEN = unit("results", "summary_scopes", "attainment")

TESTS = {
    "autoscalers/*.py": POLICIES,
    "experiments/calibrated.py": FITTED,
    "experiments/plans/*.py": PLANS,
    "experiments/plans/demand.py": (*PLANS, *unit("served_capacity")),
    "experiments/plans/fleets.py": (*PLANS, *unit("outside_the_fit")),
    "experiments/results/*.py": WRITTEN,
    "experiments/results/asked.py": unit("asked", "replay"),
    "experiments/results/shortage.py": unit("shortage"),
    "experiments/results/step_trace.py": unit("step_trace"),
    "experiments/results/request_table.py": (*WRITTEN, *unit("replay")),
    "experiments/results/targets.py": (*WRITTEN, *unit("timeline")),
    "experiments/results/timeline.py": unit("timeline", "results", "attainment"),
    "planning/*.py": PLANNING,
    "planning/model_cache.py": (*unit("planning"), "tests/property/test_model_cache.py"),
    "replicas/calibration/fitted.py": FITTED,
    "replicas/calibration/gpu.py": FITTED,
    "replicas/calibration/kernel_times.py": FITTED,
    "replicas/catalog.py": unit("catalog", "outside_the_fit"),
    "replicas/links.py": unit("surrogate", "data_parallel", "kernel_profiles"),
    "replicas/roofline.py": (*unit("surrogate", "step_time"), "tests/golden/test_textbook_steps.py"),
    "routers/*.py": unit("router_scores"),
    "routers/vllm.py": (*unit("vllm_clients"), "-k", "not adds_up"),  # which would take minutes as plain Python
    "sim/invariants.py": unit("invariants"),
    "sim/metrics.py": unit("metrics", "results", "attainment"),
    "sim/percentiles.py": unit("percentiles"),
    "sim/pool.py": FLEETS,
    "sim/queueing.py": (*unit("queueing"), *PLANNING),
    "sim/simulation.py": (*FLEETS, *unit("closed_loops", "invariants", "timeline")),
    "traces/*.py": READ,
    "traces/concurrent.py": (*unit("closed_loops"), KINDS_OF_TRAFFIC),
    "traces/constant.py": RATES,
    "traces/diurnal.py": DRAWN,
    "traces/drawn.py": DRAWN,
    "traces/gamma.py": RATES,
    "traces/gaps.py": RATES,
    "traces/generated.py": DRAWN,
    "traces/ids.py": unit("segments", "shared_tokens", "mooncake"),
    "traces/length_laws.py": unit("length_laws"),
    "traces/lengths.py": unit("length_laws"),
    "traces/mooncake.py": unit("mooncake"),
    "traces/poisson.py": RATES,
    "traces/prefixes.py": unit("shared_tokens"),
    "traces/rates.py": RATES,
    "traces/replay.py": (*unit("replay"), *READ),
    "traces/rescaling.py": unit("traffic_rates", "recorded_traffic"),
    "traces/reuse.py": unit("reuse", "shared_tokens"),
    "traces/segments.py": unit("segments", "shared_tokens"),
    "traces/shapes.py": RATES,
    "traces/traffic.py": (*READ, *unit("generated_traffic", "served_capacity")),
}
"""Modules, and the tests meant for them; doctests of the module come along. Of several lines that name it the last counts."""

LEFT_OUT = (
    "*/__init__.py",
    *(f"experiments/plans/{one}.py" for one in ("config", "figures", "page", "plots", "progress", "report*", "run", "tables")),
)
"""Pages, pictures and tables: of them tests read the words and numbers that matter, not every size."""


LARGE = 100.0
"""A number from here on is not changed: one more or less is less than a percent of it."""


class Place(NamedTuple):
    """Where an operator can change a file."""

    file: str  # from the root of the project
    operator: str
    occurrence: int
    tests: tuple[str, ...]


def places(root: Path, only: Sequence[str] = ()) -> list[Place]:
    """Returns where the modules in `TESTS` can be changed, in order of module, operator and place.

    Args:
        root: of the project.
        only: modules to keep to, by their paths; none = all.
    """
    tests_of = {file: tests for pattern, tests in TESTS.items() for file in _matching(root, pattern)}  # the last line counts
    left_out = {file for pattern in LEFT_OUT for file in _matching(root, pattern)}
    found = []
    for file in sorted(tests_of.keys() - left_out):
        if not only or file in only:
            nodes = list(ast_nodes(get_ast((root / file).read_text(encoding="utf-8"))))
            found += [Place(file, *where, (*tests_of[file], file)) for where in _places_in(nodes)]
    return found


def _matching(root: Path, pattern: str) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.glob(pattern)]


def _places_in(nodes: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Yields operator and occurrence."""
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        occurrence = itertools.count()
        for node in nodes:
            for _ in operator.mutation_positions(node):
                here = next(occurrence)
                if name != "NumberReplacer" or abs(complex(ast.literal_eval(node.value))) < LARGE:
                    yield name, here


def sample(root: Path, found: Sequence[Place], size: int, seed: int) -> list[Mutant]:
    """Returns the mutants of `size` places, the same for the same seed, in the order of the places.

    A place whose mutant is no Python, or says the same as before, gives way to another.
    """
    order = random.Random(seed).sample(range(len(found)), len(found))
    mutants = ((index, made) for index in order if (made := _mutant(root, found[index])) is not None)
    return [made for _, made in sorted(itertools.islice(mutants, size), key=lambda pair: pair[0])]


def _mutant(root: Path, place: Place) -> Mutant | None:
    source = (root / place.file).read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(f"core/{place.operator}")(), place.occurrence)
    if changed is None or _parsed(changed) in (None, _parsed(source)):
        return None
    is_compiled = "from sim.compiled import" in source
    return Mutant(place.file, changed, lines_that_differ(source, changed), place.tests, is_compiled)


def _parsed(source: str) -> str | None:
    """What a source says, whatever its spelling; None where it is no Python."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
