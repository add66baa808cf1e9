"""Pipeline parallelism: each stage holds a share of the layers, and steps follow one another through them.

Source: vLLM 0.32.0, `EngineCore.step_with_batch_queue`: as many steps are in flight as there are stages, with async scheduling
one more. A request whose token is in flight gets none before it has come; with async scheduling it gets one in every n-th
plan, n being the number of stages (`AsyncScheduler`, model runner V2).
"""

from replicas.batches import batch_of, next_batch
from replicas.step_time import cpu_time, gpu_time
from sim.compiled import rare, verb
from sim.records import Fleet


@rare
def pass_stages(fleet: Fleet, first: int, now_s: float, num_tokens: int) -> float:
    """Sends the planned step through the stages of the engines from slot `first` on and returns when it leaves the last.

    The CPU plans it first. Each stage takes an even share of the device's time, as soon as it has done what was before and
    the stage before has handed over.
    """
    engine = fleet.engines[fleet.replicas[first].pool]
    gpu_s, cpu_s = 0.0, 0.0
    for r in range(first, first + engine.num_together):
        batch = next_batch(fleet, r)
        if batch.num_requests > 0:
            gpu_s = max(gpu_s, gpu_time(batch, engine, num_tokens))
            cpu_s = max(cpu_s, cpu_time(batch, engine))
    at_s = now_s + cpu_s
    for stage in range(engine.num_stages):
        if stage > 0:
            at_s += engine.handover_s + num_tokens * engine.handover_s_per_token
        at_s = max(at_s, fleet.stages[first, stage]) + gpu_s / engine.num_stages
        fleet.stages[first, stage] = at_s
    return at_s


@rare
def keep_place(fleet: Fleet, first: int) -> bool:
    """Lets a plan that found nothing to do hold a place among the steps in flight, as vLLM does; returns whether it does.

    It is done as soon as the step before it is; with none in flight it holds nothing up.
    """
    replica = fleet.replicas[first]
    num_requests = 0
    for r in range(first, first + fleet.engines[replica.pool].num_together):
        num_requests += fleet.loads[r].num_running + fleet.loads[r].num_waiting
    if replica.num_in_flight == 0 or num_requests == 0:
        return False
    batch_of(fleet, first, replica.num_steps - 1).num_empty_behind += 1
    replica.num_empty += 1
    return True


@verb
def awaits_tokens(fleet: Fleet, first: int) -> bool:
    """Tells whether the latest step in flight waits for tokens of one before it, so that none is planned behind it yet."""
    return batch_of(fleet, first, fleet.replicas[first].num_steps - 1).awaits_tokens > 0
