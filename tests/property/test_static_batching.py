"""Static batching against its definition, request by request, to the last bit of every instant.

A batch is the longest run of the queue's first requests that fits; it runs until its longest answer is done; nobody joins it.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.contracts.fleets import arrivals, classes, engine, run
from replicas.schedulers import STATIC
from replicas.step_time import step_time
from sim.records import BATCH, records
from tests.property.strategies import engines_and_traffic

ENDS_UNSEEN = (0, 0, 10_000, 0.0)  # its clients allow more than any answer is long


class One(NamedTuple):
    """A request of the naive engine."""

    arrived_at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    ends_unseen: bool

    def steps(self, is_async: int) -> int:
        """In how many it takes part: one a token, and one too many where the next is planned before the end is seen."""
        return self.num_output_tokens + (self.ends_unseen and is_async)


def first_batch(queue: list[One], record: Any) -> list[One]:
    """The first requests of the queue that one step, the sequence slots and the cache have room for."""
    batch: list[One] = []
    num_free_blocks, num_tokens = int(record.num_usable_blocks), 0
    for one in queue[: int(record.max_num_seqs)]:
        num_blocks = -(-(one.num_prompt_tokens + one.num_output_tokens - 1) // int(record.block_size))
        num_tokens += one.num_prompt_tokens
        kept_free = int(record.watermark_blocks) if batch else 0
        if num_tokens > record.max_num_batched_tokens or num_blocks + kept_free > num_free_blocks:
            break
        num_free_blocks -= num_blocks
        batch.append(one)
    return batch


def seconds(batch: list[One], step: int, record: Any) -> float:
    """How long the batch's step of this number lasts: whole prompts in the first, one token each in the others."""
    runs = [one for one in batch if one.steps(int(record.async_scheduling)) > step]
    new = np.array([one.num_prompt_tokens if step == 0 else 1 for one in runs])
    computed = np.array([0 if step == 0 else one.num_prompt_tokens + step - 1 for one in runs])
    features = records(BATCH, 1)[0]
    features.num_requests, features.num_tokens = len(runs), new.sum()
    features.kv_tokens, features.attended_tokens = (new + computed).sum(), (new * (computed + new / 2)).sum()
    return float(step_time(features, record))


def served(requests: list[One], record: Any) -> list[tuple[float, float, float]]:
    """Of each request when it was scheduled, got its first token, and its last."""
    found, queue = [], list(requests)
    planned_at_s = free_at_s = 0.0  # when the engine may plan its next batch, and when the device may run it
    while queue:
        # a step's end comes before what arrives at that instant, and an idle engine wakes after it
        arrived = [one for one in queue if one.arrived_at_s < planned_at_s]
        if not arrived and planned_at_s < free_at_s:
            planned_at_s = free_at_s
            continue
        if not arrived:
            planned_at_s = free_at_s = max(free_at_s, queue[0].arrived_at_s)
            arrived = [one for one in queue if one.arrived_at_s <= planned_at_s]
        batch = first_batch(arrived, record)
        queue = queue[len(batch) :]
        num_steps = max(one.steps(int(record.async_scheduling)) for one in batch)
        lasts_s = [seconds(batch, step, record) for step in range(num_steps)]
        ends_at_s = list(itertools.accumulate(lasts_s, initial=max(planned_at_s, free_at_s)))[1:]
        found += [(planned_at_s, ends_at_s[0], ends_at_s[one.num_output_tokens - 1]) for one in batch]
        planned_at_s, free_at_s = ends_at_s[max(one.num_output_tokens for one in batch) - 1], ends_at_s[-1]
    return found


@given(engines_and_traffic(), st.integers(0, 1 << 30))
@settings(max_examples=150)
def test_every_instant_is_that_of_static_batching_by_definition(
    drawn: tuple[dict[str, Any], list[tuple[float, int, int]]], seed: int
) -> None:
    fields, rows = drawn
    fields["max_num_batched_tokens"] = max(fields["max_num_batched_tokens"], fields["max_model_len"])
    fields |= {"scheduler": STATIC, "reserves_output": 1, "enable_chunked_prefill": 0}
    fields["max_model_len"] += 10_000 * (seed % 2)  # an answer that reaches it is foreseen
    unseen = np.random.default_rng(seed).integers(0, 2, len(rows)).tolist()
    fields["max_num_batched_tokens"] = max(fields["max_num_batched_tokens"], max(row[1] for row in rows))
    record = engine(**fields)
    kinds = classes((0, 0, 0, 0.0), ENDS_UNSEEN)
    ran = run(arrivals([(*row, kind) for row, kind in zip(rows, unseen, strict=True)]), record, classes=kinds)
    limit = fields["max_model_len"]
    requests = [One(*row, bool(kind) and sum(row[1:]) < limit) for row, kind in zip(rows, unseen, strict=True)]
    names = ("scheduled_at_s", "first_token_at_s", "finished_at_s")
    ours = list(zip(*(ran.requests[name].tolist() for name in names), strict=True))
    assert ours == served(requests, record[0])
    assert ran.requests.num_generated_tokens.tolist() == [row[2] for row in rows]
