"""Which tests are meant for a module."""

from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = {
    path.stem.removeprefix("test_"): path.relative_to(ROOT).as_posix()
    for folder in ("unit", "scenario")
    for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
}
"""Files of unit tests and scenarios, in whichever folder they lie, by their short names."""
THEORY = "tests/theory/test_"


def unit(*names: str) -> tuple[str, ...]:
    """Returns the files of unit tests or scenarios of these short names, by their paths from the root of the project."""
    return tuple(UNIT[name] for name in names)


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
READ = (*unit("recorded_traffic", "mooncake", "number_bounds"), KINDS_OF_TRAFFIC)
WRITTEN = unit("results", "summary_scopes", "attainment")

TESTS = {
    "accuracy/measured/rows.py": unit("load_reports"),
    "autoscalers/*.py": POLICIES,
    "experiments/calibrated.py": FITTED,
    "experiments/results/*.py": WRITTEN,
    "experiments/results/asked.py": unit("asked", "replay"),
    "experiments/results/shortage.py": unit("shortage"),
    "experiments/results/step_trace.py": unit("step_trace"),
    "experiments/results/request_table.py": (*WRITTEN, *unit("replay")),
    "experiments/results/targets.py": (*WRITTEN, *unit("timeline")),
    "experiments/results/timeline.py": unit("timeline", "results", "attainment"),
    "planning/*.py": PLANNING,
    "planning/plans/*.py": PLANS,
    "planning/plans/demand.py": (*PLANS, *unit("served_capacity")),
    "planning/plans/fleets.py": (*PLANS, *unit("outside_the_fit")),
    "planning/model_cache.py": (*unit("planning"), "tests/property/test_model_cache.py"),
    "replicas/calibration/fitted.py": FITTED,
    "replicas/calibration/gpu.py": FITTED,
    "replicas/calibration/kernel_times.py": FITTED,
    "replicas/catalog.py": unit("catalog", "outside_the_fit"),
    "replicas/links.py": unit("surrogate", "data_parallel", "kernel_profiles"),
    "replicas/roofline.py": (*unit("surrogate", "step_time", "data_parallel"), "tests/golden/test_textbook_steps.py"),
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
    "traces/normal.py": unit("normal", "length_laws"),
    "traces/poisson.py": RATES,
    "traces/prefixes.py": unit("shared_tokens"),
    "traces/rates.py": RATES,
    "traces/recorded.py": (*READ, *unit("replay")),
    "traces/replay.py": (*unit("replay"), *READ),
    "traces/rescaling.py": unit("traffic_rates", "recorded_traffic"),
    "traces/reuse.py": unit("reuse", "shared_tokens"),
    "traces/segments.py": unit("segments", "shared_tokens"),
    "traces/shapes.py": RATES,
    "traces/survey.py": (*READ, *unit("served_capacity")),
    "traces/traffic.py": (*READ, *unit("generated_traffic", "served_capacity")),
}
"""Modules, and the tests meant for them; doctests of the module come along. Of several lines that name it the last counts."""

LEFT_OUT = (
    "*/__init__.py",
    *(f"planning/plans/{one}.py" for one in ("config", "figures", "page", "plots", "progress", "report*", "run", "tables")),
)
"""Pages, pictures and tables: of them tests read the words and numbers that matter, not every size."""


def tests_of(file: str) -> tuple[str, ...]:
    """Returns the arguments of pytest that run the tests meant for a module of `TESTS`, and its doctests."""
    return (*[tests for pattern, tests in TESTS.items() if fnmatch(file, pattern)][-1], file)


def modules(root: Path) -> list[str]:
    """Returns the modules of `TESTS` that are not left out, sorted, by their paths from the root of the project."""
    found = {path.relative_to(root).as_posix() for pattern in TESTS for path in root.glob(pattern)}
    return sorted(file for file in found if not any(fnmatch(file, pattern) for pattern in LEFT_OUT))
