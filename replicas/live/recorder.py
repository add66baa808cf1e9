"""Looks over a vLLM scheduler's shoulder: what each step holds, and when its parts began and ended.

The rows are those of a step trace: `t0..t3` are the starts and ends of planning and of taking the output in, `c0..c3` the CPU
seconds of the thread at the same points, `reqs` is [request, new tokens, computed before, prompt tokens, known tokens] in the
scheduler's order. Between t1 and t2 the model runs.
"""

import time
from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from typing import Any


class Recorder:
    """Wraps `schedule` and `update_from_output` of one scheduler object (vLLM 0.32.0: `vllm/v1/core/sched/scheduler.py`).

    Attributes:
        planned: rows of the steps planned since the last `take`, in order; a step whose output is not in yet has no t2.
        ended: rows of the steps whose output was taken in since then.
        overhead_s: seconds that looking has cost since then, by the wall clock (t) and of the thread's CPU (c), which on a busy
            machine is less; they are not the engine's.
        settling: (instant, overhead by the wall clock) when an output was last taken in, None if none was since `take`.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.planned: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.overhead_s = {"t": 0.0, "c": 0.0}
        self.settling: tuple[float, float] | None = None
        self._rows: dict[int, dict[str, Any]] = {}  # by the identity of the scheduler's output, which is alive until taken in
        self._num_steps = 0
        self._schedule: Callable[..., Any] = scheduler.schedule
        self._update: Callable[..., Any] = scheduler.update_from_output
        scheduler.schedule, scheduler.update_from_output = self.schedule, self.update_from_output

    def take(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, float]]:
        """Returns planned, ended and overhead_s, and begins anew."""
        taken = self.planned, self.ended, self.overhead_s
        self.planned, self.ended, self.overhead_s, self.settling = [], [], {"t": 0.0, "c": 0.0}, None
        return taken

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Has the scheduler plan a step and notes it."""
        entered, entered_c = time.perf_counter(), time.thread_time()
        before = {request.request_id: request.num_preemptions for request in self.scheduler.running}
        t0, c0 = time.perf_counter(), time.thread_time()
        output = self._schedule(*args, **kwargs)
        t1, c1 = time.perf_counter(), time.thread_time()
        if output.num_scheduled_tokens:
            row = self._row(output, before) | {"t0": t0, "t1": t1, "c0": c0, "c1": c1}
            self._rows[id(output)] = row
            self.planned.append(row)
        self._note_cost(t0 - entered, c0 - entered_c)
        self._note_cost(time.perf_counter() - t1, time.thread_time() - c1)
        return output

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        """Has the scheduler take a step's output in and notes who finished."""
        t2, c2 = time.perf_counter(), time.thread_time()
        self.settling = t2, self.overhead_s["t"]
        result = self._update(output, model_output)
        t3, c3 = time.perf_counter(), time.thread_time()
        row = self._rows.pop(id(output), None)
        if row is not None:
            ends = [one for client in result.values() for one in client.outputs if one.finish_reason is not None]
            row |= {"t2": t2, "t3": t3, "c2": c2, "c3": c3, "finished": [one.request_id for one in ends]}
            row["nivcsw"] = _switches() - row["nivcsw"]
            row["free_blocks_after"] = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            self.ended.append(row)
        self._note_cost(time.perf_counter() - t3, time.thread_time() - c3)
        return result

    def _note_cost(self, wall_s: float, cpu_s: float) -> None:
        self.overhead_s["t"] += wall_s
        self.overhead_s["c"] += cpu_s

    def _row(self, output: Any, before: dict[str, int]) -> dict[str, Any]:
        scheduler, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        requests = scheduler.requests
        self._num_steps += 1
        return {
            "step": self._num_steps - 1,
            "reqs": [
                [
                    name,
                    num_new,
                    requests[name].num_computed_tokens - num_new,  # vLLM has already counted them as computed
                    requests[name].num_prompt_tokens,
                    requests[name].num_tokens,
                ]
                for name, num_new in output.num_scheduled_tokens.items()
            ],
            "new": [new.req_id for new in output.scheduled_new_reqs],
            "resumed": sorted(output.scheduled_cached_reqs.resumed_req_ids),
            "preempted": [n for n, count in before.items() if n in requests and requests[n].num_preemptions > count],
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "free_blocks": pool.get_num_free_blocks(),
            "total_blocks": pool.num_gpu_blocks,
            "nivcsw": _switches(),
            "finished": [],
        }


def _switches() -> int:
    """Returns how often this thread was put off its core so far: a sign of contention."""
    return getrusage(RUSAGE_THREAD).ru_nivcsw


class Overlap:
    """Says how long an engine's call lasts in virtual time when its device still works on the step before.

    With async scheduling a call plans and launches step k+1, then waits for step k, then takes its output in. In virtual time
    nothing passes between two calls, and other replicas may have had the device, so after each call the device is let run
    dry, and how long that took is kept: it is what the next call would have waited for. The next call meets an idle device, so
    that its own seconds are the CPU's alone, and

        lasted = max(planning and launching, what was left of the step before) + taking the output in

    >>> overlap = Overlap()
    >>> overlap.lasted(0.002, 0.0, left_s=0.010, waits=False)  # the first call only fills the queue
    0.002
    >>> overlap.lasted(0.002, 0.001, left_s=0.009)  # the device is the slower: 10 ms, and 1 ms to take the output in
    0.011
    >>> overlap.lasted(0.020, 0.001, left_s=0.009)  # now the CPU is
    0.021
    """

    def __init__(self) -> None:
        self.left_s = 0.0

    def lasted(self, launch_s: float, settle_s: float, left_s: float, *, waits: bool = True) -> float:
        """Returns the seconds of a call and keeps what it leaves on the device.

        Args:
            launch_s: planning and launching, until the output of the step before is wanted.
            settle_s: from there on.
            left_s: how long the device went on afterwards.
            waits: False for a call that returns without waiting for a step.
        """
        if waits:
            lasted = max(launch_s, self.left_s) + settle_s
            self.left_s = left_s
        else:
            lasted = launch_s + settle_s
            self.left_s = max(0.0, self.left_s - lasted) + left_s
        return lasted
