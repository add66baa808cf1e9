"""The KV cache of one replica in blocks: how many a request holds and needs."""

from typing import Any

from sim.compiled import verb
from sim.records import CATCHING_UP, DECODING, LAST_TOKEN, SURPLUS


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
    if request.phase == DECODING or request.phase == SURPLUS:
        return request.num_prompt_tokens + request.num_output_tokens - 1 - (request.last_step - step)
    if request.phase == LAST_TOKEN:
        return request.num_prompt_tokens + request.num_output_tokens - 1
    if request.phase == CATCHING_UP:
        return request.num_computed_tokens
    return 0


@verb
def held_blocks(request: Any, step: int, engine: Any) -> int:
    """Returns the blocks that a running request holds once `step` is planned."""
    if engine.reserves_output:
        return reserved_blocks(request, engine)
    if request.phase == CATCHING_UP:
        return request.num_blocks
    return blocks_for(computed_tokens(request, step), engine.block_size)


@verb
def reserved_blocks(request: Any, engine: Any) -> int:
    """Returns the blocks of the whole sequence but its last token, which an engine before paged caches sets aside."""
    return blocks_for(request.num_prompt_tokens + request.num_output_tokens - 1, engine.block_size)


@verb
def growth_residue(request: Any, block_size: int) -> int:
    """Returns the residue, modulo the block size, of the steps in which a decoding request needs one more block.

    It needs one when its computed tokens fill its blocks: prompt + output - 2 - (last_step - step) = 0 (mod block_size).
    """
    return (request.last_step + 2 - request.num_prompt_tokens - request.num_output_tokens) % block_size
