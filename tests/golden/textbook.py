"""The two texts' numbers (docs/sources.md) beside ours: `python -m tests.golden.textbook > docs/textbook.md` (`make docs`).

Each row states the text's number and its tolerance and computes ours through the public classes, never from a formula of its
own; tests/golden/test_textbook.py checks them. The textbook's machine: H100 of 80 GB, 3.35 TB/s, 989 TFLOP/s bf16, 450 GB/s
links, 2 us a message; 90 % of memory used, all of it weights and KV cache; fp8 weights of one byte, bf16 cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from autoscalers import QueueTarget
from experiments.contracts.fleets import engine as fleet_engine
from planning.adapters import lora_flops_share
from planning.costs import blended_price, break_even_utilization, cosine_day_mean, dollars_per_million, mean_utilization
from planning.instance import Instance
from planning.kv import kv_transfer_s, max_concurrent_requests
from planning.layouts import Layout, Work, instances, layout
from planning.pools import Demand, PoolPlan, decode_pool, fleet_size, prefill_pool
from planning.published import PublishedFleet
from planning.roofline import fastest_tensor_parallel_size, ridge_point
from planning.steps import decode_step_s, equal_requests, terms
from replicas.catalog import Gpu, gpu, model
from replicas.lifecycle import Lifecycle
from replicas.memory import kv_bytes_per_token, lora_bytes, weight_bytes
from replicas.surrogate import Surrogate
from sim.queueing import mg1, mm1, split_and_pooled
from sim.views import PoolView
from tests.golden.test_textbook_steps import B200, H100, LAYOUT, LLAMA_70B
from tests.theory.test_cpu_overlap import OVERLAPPED, PLAIN, measured
from tests.theory.test_fleet_cold_start import NUM_RISING, ORACLE, REACTIVE, needed, ramp, ready_in_each_step, simulated
from tests.theory.test_router_theory import mean_highest

LLAMA_8B = model("llama-3.1-8b")
WORK = Work(context_tokens=2200, held_tokens=2200, tpot_s=0.05)
DEMAND = Demand(200, 2000, 400)
MAX_UTILIZATION, MFU = 0.8, 0.5

Values = tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One number of the texts, or a few that belong together."""

    id: str
    quantity: str
    text: Values  # as the text has it, in the unit of `quantity`
    tolerance: float | Values  # absolute, of all or of each
    how: str
    ours: Callable[[], Values]
    proven: str = ""  # where a property is tested that has no number


@cache
def layouts(on: Gpu) -> dict[int, Layout]:
    """70B fp8 with the cache full of 2,200-token sequences, by TP."""
    return {one.num_gpus: layout(one, WORK) for one in instances(Surrogate(**LAYOUT), LLAMA_70B, on)}


def best(on: Gpu) -> int:
    """The TP of the most tokens/s/GPU within 50 ms."""
    return max(layouts(on), key=lambda tp: layouts(on)[tp].tokens_per_s_per_gpu)


@cache
def tp4() -> Instance:
    one = Instance(Surrogate(tensor_parallel_size=4, **LAYOUT), LLAMA_70B, H100)
    return one.with_mfu(MFU, DEMAND.prompt_tokens)


def prefill(cached_share: float = 0.0) -> PoolPlan:
    return prefill_pool(tp4(), Demand(200, 2000, 400, cached_share), MAX_UTILIZATION)


def decode() -> PoolPlan:
    return decode_pool(layouts(H100)[4], DEMAND, MAX_UTILIZATION)


def engine_8b(**options: Any) -> Any:
    return Surrogate(**options).engine(LLAMA_8B, gpu("h100-sxm"))[0]


def decode_ms(num_adapters: int) -> float:
    return 1000 * decode_step_s(engine_8b(), 64, 2048, num_adapters=num_adapters)


def concurrent(weights: float, layers: int, context: int) -> Values:
    of = LLAMA_8B.model_copy(update={"layers": layers})
    return (max_concurrent_requests(80e9 - weights - 4e9, context, kv_bytes_per_token(of, 1, 2)),)


def lag_steps() -> Values:
    """How many steps a reactive fleet is behind a ramp, at a cold start of 5, and in how many a forecast is short."""
    roomy = fleet_engine(overhead_s=0.02, max_num_seqs=100_000, max_num_batched_tokens=10**8, num_usable_blocks=10**7)
    reactive, forecast = (ready_in_each_step(simulated(policy, 5, ramp(), roomy)) for policy in (REACTIVE, ORACLE))
    rising = range(10, NUM_RISING)
    lags = {next(lag for lag in range(20) if needed(step - lag) == reactive[step]) for step in rising}
    assert len(lags) == 1, lags
    return (lags.pop(), sum(ready < needed(step) for step, ready in enumerate(forecast)))


def overlap() -> Values:
    plain, overlapped = measured(1, PLAIN), measured(1, OVERLAPPED)
    seconds = plain.median_tpot_s, overlapped.median_tpot_s, plain.median_ttft_s, overlapped.median_ttft_s
    return tuple(1000 * one for one in seconds)


def growth() -> Values:
    """By how much the fullest of 2,048 replicas has more than the fullest of 64."""
    return tuple(mean_highest(router, 2048) - mean_highest(router, 64) for router in ("random", "power_of_d_choices"))


def target_replicas() -> Values:
    scaler = QueueTarget(target_utilization=0.7, warm_buffer=2, min_replicas=2, max_replicas=64, replica_token_capacity=10_000)
    views = [
        PoolView(0.0, 0, 0, 0, 0, 0, *tokens, 0, 0.0, 0.0, 1.0, 1.0)
        for tokens in ((0, 0), (30_000, 40_000), (500_000, 500_000))
    ]
    return tuple(float(scaler.start(None, seed=1).decide(view).desired) for view in views)


ROWS = (
    Row("T01", "ridge point of an H100 in bf16, FLOP/byte", (295.2,), 0.3, "planning.roofline.ridge_point, catalogue",
        lambda: (ridge_point(gpu("h100-sxm").bf16_flops_per_s, gpu("h100-sxm").bytes_per_s),)),
    Row("T02", "reading 8B's bf16 weights on one H100, ms", (4.79,), 0.02, "planning.steps.terms: a step's memory term",
        lambda: (1000 * terms(engine_8b(), equal_requests(1, 1, 0)).memory_s,)),
    Row("T03", "arithmetic of one token of it, us", (16.24,), 0.05, "planning.steps.terms: a step's arithmetic term",
        lambda: (1e6 * terms(engine_8b(), equal_requests(1, 1, 0)).arithmetic_s,)),
    Row("T04", "KV bytes per token, Llama 3.1 70B in bf16", (327_680,), 0, "replicas.memory.kv_bytes_per_token",
        lambda: (kv_bytes_per_token(LLAMA_70B, 1, 2),)),
    Row("T05", "KV bytes per token, Llama 3.1 8B in bf16", (131_072,), 0, "replicas.memory.kv_bytes_per_token",
        lambda: (kv_bytes_per_token(LLAMA_8B, 1, 2),)),
    Row("T06", "TP that minimises one token's latency, 70B bf16 on H100", (8.1,), 0.1, "planning.roofline",
        lambda: (fastest_tensor_parallel_size(sum(weight_bytes(LLAMA_70B, 2)), 80, 2e-6, H100.bytes_per_s),)),
    Row("T07", "best layout on H100, TP", (4,), 0, "planning.layouts: most tokens/s/GPU within 50 ms", lambda: (best(H100),)),
    Row("T08", "its batch", (301,), 0, "planning.layouts", lambda: (layouts(H100)[4].batch,)),
    Row("T09", "its tokens/s/GPU", (2893,), 15, "planning.layouts", lambda: (layouts(H100)[4].tokens_per_s_per_gpu,)),
    Row("T10", "TP8 at batch 1, ms", (7.15,), 0.06, "planning.layouts", lambda: (1000 * layouts(H100)[8].alone_s,)),
    Row("T11", "TP8's tokens/s/GPU over TP4's", (0.915,), 0.01, "planning.layouts",
        lambda: (layouts(H100)[8].tokens_per_s_per_gpu / layouts(H100)[4].tokens_per_s_per_gpu,)),
    Row("T12", "step of a full GPU at TP2, TP4, TP8, ms", (22.6, 26.0, 33.1), 0.2, "planning.layouts",
        lambda: tuple(1000 * layouts(H100)[tp].step_s for tp in (2, 4, 8))),
    Row("T13", "best layout on B200, TP", (2,), 0, "planning.layouts", lambda: (best(B200),)),
    Row("T14", "prefill on H100 in fp8 at half the peak, tokens/s/GPU", (6877,), 40, "planning.instance, MFU 0.5 with links",
        lambda: (tp4().prefill_tokens_per_s(2000) / 4,)),
    Row("T15", "prefill instances of TP4, and GPUs", (19, 76), 0, "planning.pools.prefill_pool",
        lambda: (prefill().num_instances, prefill().num_gpus)),
    Row("T16", "decode instances of TP4, and GPUs", (9, 36), 0, "planning.pools.decode_pool",
        lambda: (decode().num_instances, decode().num_gpus)),
    Row("T17", "H100s in all", (112,), 0, "planning.pools", lambda: (prefill().num_gpus + decode().num_gpus,)),
    Row("T18", "decode utilisation with 9 and with 8 instances", (0.766, 0.862), 0.003, "planning.pools.PoolPlan",
        lambda: (decode().utilization, decode().utilization_without(1))),
    Row("T19", "transfer of a 2,000-token prompt's KV at 50 GB/s, ms", (13.1,), 0.1, "planning.kv.kv_transfer_s",
        lambda: (1000 * kv_transfer_s(2000, tp4().kv_bytes_per_token, 50e9),)),
    Row("T20", "GPUs that a cache of the first half of each prompt frees, and instances", (36, 9), 0, "planning.pools",
        lambda: (prefill().num_gpus - prefill(0.5).num_gpus, prefill().num_instances - prefill(0.5).num_instances)),
    Row("T21", "$ per million tokens of that fleet at its peak load, $2 per GPU-hour", (0.1296,), 0.0005, "planning.costs",
        lambda: (dollars_per_million(prefill().num_gpus + decode().num_gpus, 2.0, 200 * 2400),)),
    Row("T22", "mean of the day, requests/s, and use of a fleet for its peak", (120, 0.48), 1e-9, "planning.costs",
        lambda: (cosine_day_mean(200, 40), mean_utilization(cosine_day_mean(200, 40), 200, MAX_UTILIZATION))),
    Row("T23", "utilisation from which $0.1296 beats an API of $0.10 in and $0.60 out", (0.1296 / (440 / 2400),), 1e-9,
        "planning.costs.break_even_utilization: c / p",
        lambda: (break_even_utilization(0.1296, blended_price(0.1, 0.6, 2000, 400)),)),
    Row("T24", "LoRA of rank 16 on all linears of 8B, bytes", (83_886_080,), 0, "replicas.memory.lora_bytes",
        lambda: (lora_bytes(LLAMA_8B, 16),)),
    Row("T25", "its added arithmetic, share", (0.0052,), 0.001, "planning.adapters", lambda: (lora_flops_share(LLAMA_8B, 16),)),
    Row("T26", "decode of 64 at 2,048 with 0, 1 and 64 adapters, ms", (9.92, 9.95, 11.52), 0.01, "planning.steps.decode_step_s",
        lambda: (decode_ms(0), decode_ms(1), decode_ms(64))),
    Row("T27", "M/M/1 wait at 8 and 9.5 of 10 requests/s, s", (0.4, 1.9), 0.001, "sim.queueing.mm1",
        lambda: (mm1(8.0, 0.1).wait_s, mm1(9.5, 0.1).wait_s)),
    Row("T28", "wait in eight lines and in one, in service times", (4.0, 0.286), 0.005, "sim.queueing.split_and_pooled",
        lambda: tuple(queue.wait_s for queue in split_and_pooled(6.4, 1.0, 8))),
    Row("T29", "wait of M/D/1 over M/M/1", (0.5,), 0.001, "sim.queueing.mg1 (Pollaczek-Khinchine)",
        lambda: (mg1(0.8, 1.0, 0.0).wait_s / mm1(0.8, 1.0).wait_s,)),
    Row("T30", "M/M/1 time in system at 80 ms and 0.70, 0.90, 0.95, ms", (266.7, 800, 1600), 0.1, "sim.queueing.mm1",
        lambda: tuple(1000 * mm1(load / 0.08, 0.08).sojourn_s for load in (0.70, 0.90, 0.95))),
    Row("T31", "sequences of 4,096 in 80 - 30 - 4 GB, 48 layers", (57,), 0, "planning.kv.max_concurrent_requests",
        lambda: concurrent(30e9, 48, 4096)),
    Row("T32", "sequences of 2,048 of 8B in 80 - 16 - 4 GB", (223,), 0, "planning.kv.max_concurrent_requests",
        lambda: concurrent(16e9, 32, 2048)),
    Row("T33", "fleet for 40 req/s of 20 s, and by throughput alone", (15, 5), 0, "planning.pools.fleet_size",
        lambda: (fleet_size(40, 20, 12.5, 0.7, 57)[0], fleet_size(40, 20, 12.5, 0.7, 10_000)[0])),
    Row("T34", "DeepSeek's day, peak over mean nodes", (1.226,), 0.001, "planning.published",
        lambda: (PublishedFleet(278, 226.75, 8).peak_to_mean,)),
    Row("T35", "loading 70.6 GB at 2 GB/s, s", (35.3,), 0.1, "replicas.lifecycle.Lifecycle.weights_s",
        lambda: (Lifecycle(weights_gb_per_s=2.0).weights_s(sum(weight_bytes(LLAMA_70B, 1))),)),
    Row("T36", "steps that reaction is behind a ramp at a cold start of 5; steps that a forecast is short", (5, 0), 0,
        "simulated: the whole fleet, tests/theory/test_fleet_cold_start.py", lag_steps),
    Row("T37", "median TPOT, then TTFT, without and with overlap, ms: direction and size", (10.3, 7.9, 86, 44),
        (0.52, 0.40, 12.9, 6.6),
        "simulated: configs/cpu_overlap.yaml; the text's trace is not given, so within 5 % and 15 %", overlap),
    Row("T38", "growth of the fullest replica from 64 to 2,048: chance (about 2) and two choices (below 1)", (2.0, 0.5), 0.5,
        "simulated: balls in bins, tests/theory/test_router_theory.py", growth),
    Row("T39", "token bucket: refunds the over-estimate, never exceeds its capacity", (), 0, "replicas.rate_limit", tuple,
        "tests/property/test_gateway.py"),
    Row("T40", "predictive admission: (queued + own prompt) / prefill rate against the target, else 429", (), 0,
        "replicas.gateway", tuple, "tests/property/test_gateway.py"),
    Row("T41", "ceil(tokens / 0.7 / capacity) + 2 in [2, 64] at 0, 70,000 and 1,000,000 tokens of 10,000", (2, 12, 64), 0,
        "autoscalers.QueueTarget, in a controller", target_replicas),
    Row("T42", "model cache: least recently used out, pinned never, an error when nothing can go", (), 0,
        "planning.model_cache", tuple, "tests/property/test_model_cache.py"),
)  # fmt: skip

INTRODUCTION = """# The texts' numbers, and ours

The numbers of [two texts](sources.md). Made by `make docs`; tests/golden/test_textbook.py holds every row. "tolerance" is what
the row may be off, and is no more than the rounding of the text's own figure. *Simulated* rows go through the whole simulator,
the others are closed forms.

| id | quantity | text | ours | off by | tolerance | how it was obtained |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Returns the table as Markdown."""
    return INTRODUCTION + "".join(_line(row) for row in ROWS)


def _line(row: Row) -> str:
    if row.proven:
        return f"| {row.id} | {row.quantity} | property | holds | - | - | {row.how}; {row.proven} |\n"
    ours = row.ours()
    off = max(abs(a - b) for a, b in zip(ours, row.text, strict=True))
    tolerances = row.tolerance if isinstance(row.tolerance, tuple) else (row.tolerance,)
    cells = [
        row.id,
        row.quantity,
        _shown(row.text),
        _shown(ours),
        f"{off:.2g}" if off > 1e-9 else "0",
        ", ".join(f"{one:g}" for one in tolerances),
    ]
    return "| " + " | ".join([*cells, row.how]) + " |\n"


def _shown(values: Values) -> str:
    """Four digits, and whole numbers whole."""
    return ", ".join(f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" for value in values)


if __name__ == "__main__":
    print(page(), end="")
