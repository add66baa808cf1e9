"""The traffic that repeats what a load generator sent: by its law where there is one, else request by request."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.measured.results import Floats, Ramp, Sent, Tokens
from sim.randomness import stream
from traces.lengths import Lengths
from traces.prefixes import Prefixes

MAX_REQUESTS = 2000
"""In one draw of a run that is not simulated whole: enough at a rate that the engine keeps up with."""


def is_whole(sent: Sent) -> bool:
    """Tells whether all of its requests are simulated and measured, the first and the last included."""
    return sent.measures_all or bool(sent.max_concurrency) or not sent.rate_per_s


def num_simulated(sent: Sent) -> int:
    """Returns how many of its requests are simulated: all where their client holds some back, else enough of them."""
    return sent.num_requests if is_whole(sent) else min(sent.num_requests or MAX_REQUESTS, MAX_REQUESTS)


def is_random(sent: Sent) -> bool:
    """Tells whether another draw is another run."""
    has_instants = sent.requests is not None and sent.requests.at_s is not None
    has_drawn_instants = not (sent.is_at_once or sent.is_even or has_instants)
    return has_drawn_instants or any(law["kind"] != "fixed" for law in sent.lengths.values())


def traffic_of(sent: Sent, seed: int, scratch: Path | None) -> dict[str, Any]:
    """Returns the `traffic` section of the experiment that sends the same.

    Args:
        sent: what was sent.
        seed: of what is drawn here: instants and lengths that no kind of traffic has.
        scratch: folder for a table of requests; needed where they are sent one by one.
    """
    prefixes = dict(sent.prefixes)
    limit = {"max_concurrency": sent.max_concurrency} if sent.max_concurrency else {}
    if _is_one_by_one(sent):
        assert scratch is not None, "requests one by one need a file"
        return _table(sent, prefixes, seed, scratch) | limit
    traffic: dict[str, Any] = {"lengths": _laws(sent)} | limit
    if sent.rate_per_s:
        traffic |= {"kind": "constant"} if sent.is_even else {"kind": "poisson", "fixed_count": True}
        traffic |= {"rate_per_s": sent.rate_per_s, "duration_s": num_simulated(sent) / sent.rate_per_s}
    else:
        traffic |= {"kind": "concurrent", "limit": num_simulated(sent)}
    return traffic | ({"prefixes": prefixes} if prefixes else {})


def _is_one_by_one(sent: Sent) -> bool:
    is_plain = sent.is_even or sent.burstiness == 1 or not sent.rate_per_s
    return sent.requests is not None or sent.ramp is not None or sent.num_at_start > 0 or not is_plain


def _laws(sent: Sent) -> dict[str, Any]:
    means = {"prompt": sent.num_prompt_tokens, "output": sent.num_output_tokens}
    return {name: sent.lengths.get(name) or _spread(tokens, sent.shortest_share) for name, tokens in means.items()}


def _spread(num_tokens: int, shortest_share: float) -> dict[str, Any]:
    if shortest_share == 1:
        return {"kind": "fixed", "tokens": num_tokens}
    return {"kind": "uniform", "low": int(num_tokens * shortest_share), "high": num_tokens}


def _table(sent: Sent, prefixes: dict[str, Any], seed: int, scratch: Path) -> dict[str, Any]:
    """Writes the requests of one draw, and returns the traffic that replays them."""
    num = num_simulated(sent)
    prompts, outputs = _lengths(sent, num, seed)
    at_s = _instants(sent, num, seed)
    table = pd.DataFrame({"arrived_at_s": at_s, "num_prompt_tokens": prompts, "num_output_tokens": outputs})
    columns = {name: name for name in ("num_prompt_tokens", "num_output_tokens")} | {"arrived_at": "arrived_at_s"}
    if prefixes:
        of_prompts = Prefixes.model_validate(prefixes)
        chances = of_prompts.chances()
        chosen = stream(seed, "prefixes").choice(of_prompts.num + 1, num, p=[*chances, max(0.0, 1 - chances.sum())])
        table["prefix"] = pd.array(chosen, "Int64")
        table.loc[chosen == of_prompts.num, "prefix"] = pd.NA  # begins with none
        table["num_prefix_tokens"] = np.minimum(np.append(of_prompts.lengths(seed), 0)[chosen], prompts)
        columns |= {"prefix_id": "prefix", "num_prefix_tokens": "num_prefix_tokens"}
    path = scratch / f"requests-{seed}.parquet"
    table.sort_values("arrived_at_s", kind="stable").to_parquet(path, index=False)
    return {"kind": "table", "path": str(path), "time_unit": "s", "columns": columns}


def _lengths(sent: Sent, num: int, seed: int) -> tuple[Tokens, Tokens]:
    normals = np.stack([stream(seed, name).standard_normal(num) for name in ("prompt_lengths", "output_lengths")])
    prompts, outputs = Lengths.model_validate(_laws(sent)).draw(normals)
    if sent.requests is None:
        return prompts, outputs
    each = sent.requests
    return (
        prompts if "prompt" in sent.lengths else each.num_prompt_tokens,
        outputs if "output" in sent.lengths else each.num_output_tokens,
    )


def _instants(sent: Sent, num: int, seed: int) -> Floats:
    """Instants at which requests are sent, shape (num,).

    Gaps are drawn for each request's own rate, and those at one rate are stretched so that they add up to number/rate.

    Source: get_request of vLLM's benchmarks/serve.py, 0.10 to 0.32.
    """
    if sent.requests is not None and sent.requests.at_s is not None:
        return sent.requests.at_s
    if sent.is_at_once:
        return np.zeros(num)
    rates = np.full(num, sent.rate_per_s) if sent.ramp is None else _rates(sent.ramp, num)
    shape = sent.burstiness
    gaps = np.ones(num) if sent.is_even else stream(seed, "arrivals").standard_gamma(shape, num) / shape
    gaps[: sent.num_at_start] = 0.0
    at_s = np.cumsum(gaps / rates)
    if sent.ramp is None and not sent.is_even:
        at_s *= (num - sent.num_at_start) / sent.rate_per_s / at_s[-1]
    return at_s


def _rates(ramp: Ramp, num: int) -> Floats:
    """Requests per second when the first, the second, ... is sent, shape (num,)."""
    progress = np.arange(num) / max(num - 1, 1)
    if ramp.strategy == "linear":
        return ramp.start_per_s + (ramp.end_per_s - ramp.start_per_s) * progress
    return np.asarray(ramp.start_per_s * (ramp.end_per_s / ramp.start_per_s) ** progress)
