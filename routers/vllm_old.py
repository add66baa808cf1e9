"""`vllm_old`: the score of vLLM's data-parallel load balancer up to 0.19 at least."""

from routers.pick import router
from sim.records import RouterView


@router
def choose(view: RouterView) -> int:
    """Sends each request to the lowest of 4 * waiting + running; ties go to the first in a scan whose start moves on."""
    loads, candidates = view.loads, view.candidates
    start = view.memory[0] % candidates.size
    view.memory[0] += 1
    best, best_score = -1, -1
    for k in range(start, start + candidates.size):
        r = candidates[k if k < candidates.size else k - candidates.size]
        score = 4 * loads[r].num_waiting + loads[r].num_running
        if best < 0 or score < best_score:
            best, best_score = r, score
    return best
