"""Pipeline parallelism: each stage holds a share of the layers, and steps follow one another through them.

As many steps are in flight as there are stages, with async scheduling one more. A request whose token is in flight gets no
other before it has come; with async scheduling it gets one in every n-th plan, n being the number of stages, and the first
stage waits for the tokens that a step needs.
Source: vLLM 0.32.0, `EngineCore.step_with_batch_queue`, `AsyncScheduler` (with model runner V2).
"""

from replicas.batches import batch_of, next_batch
from replicas.step_time import cpu_time, gpu_time
from sim.compiled import rare, verb
from sim.records import Fleet


@rare
def pass_stages(fleet: Fleet, r: int, now_s: float) -> float:
    """Sends the planned step through the stages of replica `r` and returns when it leaves the last.

    The CPU plans it first, and the tokens that it goes on from must have come (until here, `ends_at_s` says when). Each stage
    takes an even share of the device's time, as soon as it has done what was before and the stage before has handed over.
    """
    engine = fleet.engines[fleet.replicas[r].pool]
    batch = next_batch(fleet, r)
    stage_s = gpu_time(batch, engine, batch.num_tokens, batch.num_tokens) / engine.num_stages
    at_s = max(now_s + cpu_time(batch, engine), batch.ends_at_s)
    for stage in range(engine.num_stages):
        if stage > 0:
            at_s += engine.handover_s + batch.num_tokens * engine.handover_s_per_token
        at_s = max(at_s, fleet.stages[r, stage]) + stage_s
        fleet.stages[r, stage] = at_s
    fleet.replicas[r].busy_s += stage_s
    return at_s


@rare
def keep_place(fleet: Fleet, r: int) -> bool:
    """Lets a plan that found nothing to do hold a place among the steps in flight, as vLLM does; returns whether it does.

    It is done as soon as the step before it is.
    """
    if fleet.loads[r].num_running + fleet.loads[r].num_waiting == 0:
        return False
    batch_of(fleet, r, fleet.replicas[r].num_steps - 1).num_empty_behind += 1
    fleet.replicas[r].num_empty += 1
    return True


@verb
def awaits_tokens(fleet: Fleet, r: int) -> bool:
    """Tells whether the latest step in flight waits for tokens of one before it, so that none is planned behind it yet."""
    return batch_of(fleet, r, fleet.replicas[r].num_steps - 1).awaits_tokens > 0
