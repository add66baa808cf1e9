"""Works a plan out and leaves its result folder: plan.json, tables, pictures, and the page as text and HTML."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments import calibrated
from experiments.manifest import manifest
from experiments.pages.page import as_html, as_text
from experiments.results.tables import write_json
from experiments.settings.loading import RunConfig
from experiments.whole_folder import whole_folder
from planning.plans import plots, report, tables
from planning.plans.config import Plan
from planning.plans.fleets import Fleet, candidates_of
from planning.plans.outcome import Outcome, worked_out
from planning.plans.progress import Progress
from planning.plans.simulated import simulated

Rows = list[dict[str, Any]]


def run_one(run: RunConfig, folder: Path, progress: bool = False, line: int = 0) -> None:
    """Works out `run` and leaves its results in `folder`, which is replaced as a whole or not at all.

    Args:
        run: the resolved config.
        folder: where the results go.
        progress: shows the simulations that the plan asks for, on stderr.
        line: which line of the terminal that is, where several runs share it.

    Raises:
        ConfigError: the model runs on none of the GPUs, or nothing arrives.
        TraceError: the traffic's file is wrong.
    """
    with whole_folder(folder) as partial:
        _write(run, partial, Progress(run.name, progress, line))


def print_summary(folders: Sequence[Path]) -> None:
    """Prints the pages of these plans, and where their pictures are."""
    for folder in folders:
        print((folder / "plan.txt").read_text(encoding="utf-8"), end="")
        print(f"\ntables  {folder}\npage    {folder / 'plan.html'}")


def _write(run: RunConfig, folder: Path, progress: Progress) -> None:
    plan = run.experiment
    assert isinstance(plan, Plan)
    started = time.perf_counter()
    outcome = worked_out(plan, progress)
    worked_out_at = time.perf_counter()
    trials = simulated(outcome)
    found = _tables(outcome) | trials.tables
    (folder / "plots").mkdir()
    _draw(outcome, folder / "plots")
    for name, rows in found.items():
        tables.write(folder, name, rows)
    page = report.page(outcome, trials.sections, trials.said)
    (folder / "plan.txt").write_text(as_text(page), encoding="utf-8")
    (folder / "plan.html").write_text(as_html(page, folder), encoding="utf-8")
    (folder / "config.yaml").write_text(run.yaml, encoding="utf-8")
    write_json(folder / "plan.json", document(outcome) | trials.data | found)
    num_gpus = None if outcome.answer.fleet is None else outcome.answer.fleet.num_gpus
    counts = {"traffic": dict(outcome.traffic.lengths.counts), "gpus": num_gpus, "layouts": len(found["layouts"])}
    written_at = time.perf_counter()
    wall_s = {"all": written_at - started, "plan": worked_out_at - started, "write": written_at - worked_out_at}
    write_json(folder / "manifest.json", manifest(run, counts, wall_s))


def document(outcome: Outcome) -> dict[str, Any]:
    """Returns the plan as plain data; the tables come beside it. `fleet` is null where nothing that was tried is enough."""
    answer, bill = outcome.answer, outcome.bill
    return {
        "name": outcome.plan.name,
        "headline": report.headline(outcome),
        "decided_by": answer.decided_by,
        "why": answer.why,
        "traffic": _traffic(outcome),
        "fleet": None if answer.fleet is None else _fleet(outcome, answer.fleet),
        "closed_form": _fleet(outcome, answer.closed_form),
        "ttft": None if outcome.ttft is None else asdict(outcome.ttft),
        "cold_start_s": None if bill is None else bill.day.cold_start_s,
        "step_times": calibrated.step_times(outcome.plan.replicas),
        "break_even": [asdict(one) for one in outcome.money],
        "published": None if outcome.plan.published is None else _published(outcome),
    }


def _traffic(outcome: Outcome) -> dict[str, Any]:
    traffic = outcome.traffic
    return {
        "peak_per_s": traffic.peak.requests_per_s,
        "peak_at_s": traffic.peak_at_s,
        "mean_per_s": traffic.mean_per_s,
        "duration_s": traffic.duration_s,
        "prompt_tokens": traffic.peak.prompt_tokens,
        "output_tokens": traffic.peak.output_tokens,
        "cached_share": traffic.peak.cached_share,
        "own_cached_share": traffic.own_cached_share,
        "served_share": traffic.lengths.served_share,
        "counts": dict(traffic.lengths.counts),
    }


def _fleet(outcome: Outcome, fleet: Fleet) -> dict[str, Any]:
    return {
        "gpu": fleet.hardware.gpu.name,
        "arrangement": fleet.arrangement,
        "layout": fleet.layout.name,
        "outside": fleet.outside,
        "num_instances": {pool.role: pool.num_instances for pool in fleet.pools},
        "num_spare": outcome.plan.num_spare,
        "num_gpus": fleet.num_gpus,
        "dollars_per_hour": fleet.dollars_per_hour,
        "cost_at_peak": asdict(fleet.cost(outcome.traffic.peak.requests_per_s)),
        "full_cost_per_million": fleet.full_cost,
    }


def _published(outcome: Outcome) -> dict[str, Any]:
    assert outcome.plan.published is not None
    fleet = outcome.plan.published.fleet()
    names = ("peak_to_mean", "prefill_nodes", "decode_nodes", "computed_input_per_s")
    return {name: getattr(fleet, name) for name in names}


def _tables(outcome: Outcome) -> dict[str, Rows]:
    layouts = [
        asdict(made) | {"tokens_per_s_per_gpu": made.tokens_per_s_per_gpu, "tokens_per_s_per_user": made.tokens_per_s_per_user}
        for one in outcome.options
        for made in one.layouts
    ]
    day = None if outcome.bill is None else outcome.bill.day
    policies = [
        {name: value for name, value in vars(one).items() if name not in ("gpus", "capacity_per_s")}
        for one in (day.policies if day else ())
    ]
    return {
        "layouts": layouts,
        "pools": [row for fleet in outcome.alternatives for row in _pool_rows(fleet, fleet is outcome.answer.fleet)],
        "day": day.hours() if day else [],
        "policies": policies,
        "sensitivity": [dict(one.row(outcome.fleet)) for one in outcome.variants],
    }


def _pool_rows(fleet: Fleet, is_chosen: bool) -> Rows:
    return [
        {
            "gpu": fleet.hardware.gpu.name,
            "arrangement": fleet.arrangement,
            "is_chosen": is_chosen,
            "sized_by": "closed form" if fleet.closed_form is None else "simulation",
            "role": pool.role,
            "layout": fleet.layout_of(pool.role),
            "num_instances": pool.num_instances,
            "num_spare": pool.num_spare,
            "num_gpus": pool.num_gpus,
            "unit": "requests/s" if pool.role == "shared" else "tokens/s",
            "load": pool.load,
            "capacity": pool.capacity,
            "binding": pool.binding,
            "utilization": pool.utilization,
            "utilization_less_one": pool.utilization_without(),
            "dollars_per_hour": pool.num_gpus * fleet.hardware.price_per_gpu_hour,
        }
        for pool in fleet.pools
    ]


def _draw(outcome: Outcome, folder: Path) -> None:
    instances = {}
    for one in outcome.options:
        for candidate, made in zip(candidates_of(outcome.plan, one.hardware), one.layouts, strict=True):
            instances[f"{one.hardware.gpu.name} {made.name}"] = candidate
    is_bound = calibrated.step_times(outcome.plan.replicas) == calibrated.BOUND
    note = f"Step times are {calibrated.BOUND_NOTE}." if is_bound else ""
    if outcome.traffic.peak.has_decodes:
        plots.pareto(outcome.options, instances, outcome.plan.tpot_s, outcome.fleet, folder / "pareto.png", note)
    if outcome.bill is not None:
        plots.day(outcome.bill.day, folder / "day.png", note)
