"""Closed form beside simulation over utilisation: `python -m tests.theory.closed_forms > docs/closed_forms.md` (`make docs`).

The queues are engines that are textbook queues (tests/servers.py); the last two tables are a real engine, one replica of
Llama 3.1 8B on an H100, held against its mean-field balance (planning.balance). tests/theory/test_closed_forms.py checks
that the page is what comes out, and the deviations against their explanations.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.settings.experiment import ROUTER
from planning.balance import mixed_at, mixed_capacity
from planning.instance import Instance
from planning.plans.trial import simulate
from replicas.capacity import capacity
from replicas.catalog import gpu, model
from replicas.surrogate import Surrogate
from sim.metrics import tpot_s, ttft_s
from sim.queueing import mg1, mm1, mmc
from sim.records import ENGINE, records
from tests.estimates import estimate
from tests.servers import MEAN_STEPS, MEAN_TOKENS, ONE, arriving, equal_steps, one_step_a_prompt, path
from traces import KINDS

LOADS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
SERVERS = 8
NUM_REQUESTS, NUM_BATCHES = 400_000, 40
PROMPT, OUTPUT = 2000, 400
NUM_SERVED = 20_000  # requests of the real engine


class Row(NamedTuple):
    """One quantity at one utilisation, in the unit of its table; the error is of the simulated mean."""

    load: float
    closed_form: float
    simulated: float
    standard_error: float

    @property
    def deviation(self) -> float:
        """Simulated over closed form, less 1."""
        return self.simulated / self.closed_form - 1


def _seed(load: float) -> int:
    """One for each load, so that the rows of a table are independent."""
    return round(1000 * load)


def one_server(load: float, prompts: dict[str, Any], theory_s: float) -> Row:
    rows = arriving(load, prompts, ONE, _seed(load), NUM_REQUESTS)
    services = rows["num_prompt_tokens"] / MEAN_TOKENS
    found = path(rows, services, one_step_a_prompt())
    controls = ((found.gaps, 1 / load), *(((found.services, 1.0),) if found.services.std() else ()))
    mean = estimate(found.waits, NUM_BATCHES, controls)
    return Row(load, theory_s, mean.mean, mean.standard_error)


def mm1_row(load: float) -> Row:
    return one_server(load, {"kind": "exponential", "mean": MEAN_TOKENS}, mm1(load, 1.0).wait_s)


def md1_row(load: float) -> Row:
    return one_server(load, {"kind": "fixed", "tokens": MEAN_TOKENS}, mg1(load, 1.0, 0.0).wait_s)


def mg1_row(load: float) -> Row:
    """Three prompts of 0.2 service times and one of 3.4: a squared coefficient of variation of 1.92."""
    sizes = [2_000, 2_000, 2_000, 34_000]
    return one_server(load, {"kind": "empirical", "values": sizes}, mg1(load, 1.0, 1.92).wait_s)


def mmc_row(load: float) -> Row:
    rows = arriving(load * SERVERS, ONE, {"kind": "exponential", "mean": MEAN_STEPS}, _seed(load), NUM_REQUESTS)
    found = path(rows, rows["num_output_tokens"] / MEAN_STEPS, equal_steps(SERVERS))
    controls = ((found.gaps, 1 / load / SERVERS), (found.services, 1.0))
    mean = estimate(found.waits, NUM_BATCHES, controls)
    return Row(load, mmc(load * SERVERS, 1.0, SERVERS).wait_s, mean.mean, mean.standard_error)


class Served(NamedTuple):
    """One replica at one utilisation, means in ms."""

    load: float
    requests_per_s: float
    closed_tpot: float
    tpot: float
    tpot_p90: float
    closed_batch: float
    batch: float
    ttft: float
    ttft_p99: float

    @property
    def deviation(self) -> float:
        """TPOT simulated over closed form, less 1."""
        return self.tpot / self.closed_tpot - 1


def engine_8b(**options: Any) -> Any:
    """(1,) ENGINE of 8B on an H100, prefill at half its peak."""
    one = Instance(Surrogate(max_model_len=32_768, **options), model("llama-3.1-8b"), gpu("h100-sxm")).with_mfu(0.5, PROMPT)
    made = records(ENGINE, 1)
    made[0] = one.engine
    made[0].max_loras = 0
    return made


def served(load: float, prompt: dict[str, Any], output: dict[str, Any], **options: Any) -> Served:
    engine = engine_8b(**options)
    full = mixed_capacity(engine[0], PROMPT, OUTPUT)
    assert full is not None
    rate_per_s = load * full.requests_per_s
    fields = {"rate_per_s": rate_per_s, "duration_s": 1e8, "limit": NUM_SERVED, "lengths": {"prompt": prompt, "output": output}}
    rows = np.concatenate(list(KINDS["poisson"].model_validate(fields).stream(1).chunks()))
    found, steps = simulate(rows, engine, 1, ROUTER.parse({"kind": "round_robin"}), 1)
    counted = found[NUM_SERVED // 10 : -NUM_SERVED // 10]  # neither filling up nor running dry
    closed = mixed_at(engine[0], rate_per_s, PROMPT, OUTPUT)
    assert closed is not None
    tpot, ttft = 1000 * tpot_s(counted), 1000 * ttft_s(counted)
    return Served(
        load, rate_per_s, 1000 * closed.tpot_s, float(np.nanmean(tpot)), float(np.nanpercentile(tpot, 90)), closed.batch,
        steps.mean_batch, float(np.nanmean(ttft)), float(np.nanpercentile(ttft[np.isfinite(ttft)], 99)),
    )  # fmt: skip


FIXED = ({"kind": "fixed", "tokens": PROMPT}, {"kind": "fixed", "tokens": OUTPUT})
SMALL_BUDGET = {"max_num_batched_tokens": 512, "max_num_seqs": 512}
SPREAD = ({"kind": "lognormal", "mean": PROMPT, "p99": 10_000}, {"kind": "lognormal", "mean": OUTPUT, "p99": 2_000})

QUEUES: dict[str, Callable[[float], Row]] = {
    "M/M/1, one server, exponential service": mm1_row,
    "M/D/1, one server, equal services": md1_row,
    "M/G/1, one server, services of 0.2 or 3.4 (scv 1.92)": mg1_row,
    f"M/M/{SERVERS}, {SERVERS} servers behind one line": mmc_row,
}

INTRODUCTION = f"""# Closed form against simulation

Made by `make docs`: how far a plan's formulas are from what the simulator does, as the load rises.

## Queues

Mean waits in service times, {NUM_REQUESTS:,} requests each, of engines that are such queues (tests/servers.py). Formula and
simulation describe the same thing here, so what is left is chance: as much as the standard error says. It grows with the load,
as near saturation a queue remembers its past for some 1/(1 - load)^2 services. M/M/{SERVERS} alone has a bias: its services
come in steps of 1/{MEAN_STEPS}, and who arrives during a step waits for its end, up to 0.02 service times more.
"""

ENGINE_INTRODUCTION = """
## A real engine

One replica of Llama 3.1 8B on an H100, prefill at half the peak, prompts of {prompt:,} and answers of {output} tokens, the
same or on average, {served:,} Poisson arrivals. The closed form is `planning.balance.mixed`, in which steps with a prompt and
steps of decodes alone alternate; the load is the share of its capacity, {mixed:.1f} requests/s, {small:.1f} with the small
budget. The bound, where every step does the mean step's work (`replicas.capacity`), is {bound:.1f} requests/s for both.

Why the simulation is slower, and may fall apart before a load of 1:

1. **Prompts come in clumps.** Several that arrive together make one long step, or several in a row, and all answers wait for
   them. That is the whole of it with equal lengths at half the load.
2. **Slower begets more, and more begets slower.** A longer step leaves more answers under way, which makes steps longer: the
   closed form has it for the mean, but a clump now and then pushes the batch up for good. Above 0.85 it runs up to a full
   cache, where requests wait and are preempted: TPOT is then the step of a full cache, and the TTFT grows without end.
3. **Long answers stay longer.** With lengths that vary, the requests of a batch are longer than those that arrive and hold more
   memory, so all of this comes earlier: above 0.8, with a TPOT half as long again as the closed form's before that.
4. **A small budget helps.** It spreads a prompt over several steps, each of which gives every answer a token, so clumps of
   prompts wait in the queue instead of slowing the answers. The closed form then holds up to 0.95 of the bound; the price is
   the TTFT.

So plan at 0.7 of a shared engine's closed-form capacity, or with a small budget, and simulate (`verify: true`) before
believing it.
"""


HEAD = (
    "| load | requests/s | TPOT, ms: closed form | simulated | deviation | p90 | batch: closed form | simulated | "
    "TTFT mean, ms | p99 |\n"
)


def queue_tables(loads: Sequence[float] = LOADS) -> dict[str, list[Row]]:
    return {name: [row(load) for load in loads] for name, row in QUEUES.items()}


def engine_tables(loads: Sequence[float] = LOADS) -> dict[str, list[Served]]:
    laws: dict[str, tuple[Any, dict[str, Any]]] = {
        "Equal lengths": (FIXED, {}),
        "Equal lengths, prompts in chunks of a budget of 512 tokens": (FIXED, SMALL_BUDGET),
        "Lognormal lengths, p99 of 10,000 and 2,000": (SPREAD, {}),
    }
    return {name: [served(load, *law, **options) for load in loads] for name, (law, options) in laws.items()}


def page(queues: dict[str, list[Row]], engines: dict[str, list[Served]]) -> str:
    """Returns the page as Markdown."""
    parts = [INTRODUCTION]
    for name, rows in queues.items():
        parts.append(
            f"\n### {name}\n\n| load | closed form | simulated | deviation | standard error |\n|---|---|---|---|---|\n"
        )
        parts += [
            f"| {row.load:g} | {row.closed_form:.3f} | {row.simulated:.3f} | {100 * row.deviation:+.1f} % | "
            f"{100 * row.standard_error / row.closed_form:.1f} % |\n"
            for row in rows
        ]
    full, small = (mixed_capacity(engine_8b(**options)[0], PROMPT, OUTPUT) for options in ({}, SMALL_BUDGET))
    assert full is not None
    assert small is not None
    parts.append(
        ENGINE_INTRODUCTION.format(
            prompt=PROMPT,
            output=OUTPUT,
            served=NUM_SERVED,
            mixed=full.requests_per_s,
            small=small.requests_per_s,
            bound=capacity(engine_8b()[0], PROMPT, OUTPUT).requests_per_s,
        )
    )
    for name, served_rows in engines.items():
        parts.append(f"\n### {name}\n\n{HEAD}|---|---|---|---|---|---|---|---|---|---|\n")
        parts += [
            f"| {row.load:g} | {row.requests_per_s:.1f} | {row.closed_tpot:.1f} | {row.tpot:.1f} | "
            f"{100 * row.deviation:+.0f} % | {row.tpot_p90:.1f} | {row.closed_batch:.0f} | {row.batch:.0f} | "
            f"{row.ttft:,.0f} | {row.ttft_p99:,.0f} |\n"
            for row in served_rows
        ]
    return "".join(parts)


if __name__ == "__main__":
    print(page(queue_tables(), engine_tables()), end="")
