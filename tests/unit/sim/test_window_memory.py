"""The fleet's memory follows what is in use, not what could be."""

from experiments.contracts.fleets import engine
from sim.metrics import NUM_ITL_BINS
from sim.window import new_fleet


def test_block_tables_of_a_thousand_replicas_take_no_memory_until_used() -> None:
    """Room for 1,000 x 1,024 sequences of 131,072 tokens in blocks of 16 would be 34 GB."""
    limits = engine(enable_prefix_caching=1, max_num_seqs=1024, max_model_len=131_072, num_usable_blocks=10_000)
    fleet = new_fleet(limits, 1000, NUM_ITL_BINS)
    assert fleet.tables.nbytes > 30e9
    fleet.tables[999, 1023, -1] = 7
    assert fleet.tables[999, 1023, -1] == 7
    assert fleet.tables[0, 0, 0] == 0
