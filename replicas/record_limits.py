"""What an engine's options may be at most: more would not fit into the records that the data plane counts in."""

from typing import Any

from sim.limits import MAX_HELD_TOKENS, MAX_NUM_SEQS, MAX_STAGES, MAX_TOKENS

_MOST = {
    "max_num_seqs": MAX_NUM_SEQS,
    "max_num_batched_tokens": MAX_TOKENS,
    "max_model_len": MAX_TOKENS,
    "block_size": 2**16,  # each engine keeps a list for every place in a block
    "num_usable_blocks": MAX_HELD_TOKENS,
    "num_stages": MAX_STAGES,
    "num_speculative_tokens": MAX_TOKENS,
}
_OPTION = {"num_usable_blocks": "num_gpu_blocks", "num_stages": "pipeline_parallel_size"}


def check_fields(fields: dict[str, Any]) -> None:
    """Refuses fields of an ENGINE record that a count of the data plane could outgrow.

    Raises:
        ValueError: which option, what was given and what is allowed.
    """
    for name, most in _MOST.items():
        if fields[name] > most:
            raise ValueError(f"{_OPTION.get(name, name)} must be at most {most:,}, given {int(fields[name]):,}")
    for name, value in fields.items():
        if isinstance(value, int) and value >= 2**63:
            raise ValueError(f"{name} must be below 2**63, given {value:,}")


def check_held_tokens(engine: Any) -> None:
    """Refuses an engine whose requests could together hold more tokens than are counted.

    With prefix caching they can hold more than there is room for, as each counts the blocks that it shares.

    Args:
        engine: an ENGINE record, complete.

    Raises:
        ValueError: what bounds the tokens, and how far it has to come down.
    """
    usable = int(engine["num_usable_blocks"]) * int(engine["block_size"])
    seqs, longest = int(engine["max_num_seqs"]), min(int(engine["max_model_len"]), usable)
    most = seqs * longest if engine["enable_prefix_caching"] else min(usable, seqs * longest)
    if most > MAX_HELD_TOKENS:
        raise ValueError(
            f"{seqs:,} requests (max_num_seqs) of {longest:,} tokens (max_model_len, or what fits in the KV cache) hold up to "
            f"{most:,} tokens; an engine counts at most {MAX_HELD_TOKENS:,}: lower max_num_seqs to "
            f"{MAX_HELD_TOKENS // longest:,}, max_model_len, or num_gpu_blocks"
        )
