"""The KV cache of one replica, counted in blocks. Which block holds what does not matter until prefixes are shared."""

from typing import Any

from sim.compiled import verb
from sim.records import DECODING, LAST_TOKEN, PREFILLING, Fleet


@verb
def blocks_for(num_tokens: int, block_size: int) -> int:
    """Returns how many blocks `num_tokens` tokens fill.

    >>> blocks_for(16, 16), blocks_for(17, 16), blocks_for(0, 16)
    (1, 2, 0)
    """
    return (num_tokens + block_size - 1) // block_size


@verb
def computed_tokens(request: Any, step: int) -> int:
    """Returns the tokens of `request` that have KV once `step`, the latest one planned, is done.

    A decode gains one token a step, so its count follows from the step that will yield its last token; nothing is
    written per step. The last sampled token never gets KV.
    """
    if request.phase == DECODING:
        return request.num_prompt_tokens + request.num_output_tokens - 1 - (request.last_step - step)
    if request.phase == LAST_TOKEN:
        return request.num_prompt_tokens + request.num_output_tokens - 1
    if request.phase == PREFILLING:
        return request.num_computed_tokens
    return 0


@verb
def growth_residue(request: Any, block_size: int) -> int:
    """Returns the residue, modulo the block size, of the steps in which a decoding request needs one more block.

    It needs one when its computed tokens fill its blocks: prompt + output - 2 - (last_step - step) = 0 (mod block_size).
    """
    return (request.last_step + 2 - request.num_prompt_tokens - request.num_output_tokens) % block_size


@verb
def take_blocks(fleet: Fleet, r: int, num_blocks: int) -> None:
    """Takes blocks out of the free ones of replica `r`; the caller has checked that there are enough."""
    fleet.loads[r].num_free_blocks -= num_blocks


@verb
def free_blocks(fleet: Fleet, r: int, request: Any) -> None:
    """Gives back all that `request` holds on replica `r`; call it before its phase changes."""
    replica, load = fleet.replicas[r], fleet.loads[r]
    num_tokens = computed_tokens(request, replica.num_steps - 1)
    load.num_free_blocks += blocks_for(num_tokens, fleet.engines[replica.pool].block_size)
    load.running_tokens -= num_tokens
