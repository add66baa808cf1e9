"""What random configs (`python -m tests.campaign`) have shown wrong, by symptom."""

import pytest

from experiments.contracts.fleets import arrivals, classes, engine, run


@pytest.mark.parametrize("passed_by_go_first", [0, 1])
def test_sglangs_queue_has_no_part_that_goes_first_whatever_version_of_vllm_is_named(passed_by_go_first: int) -> None:
    """One at a time, a second each, nothing cached: by arrival. With vllm_version 0.30 structured output went to the front."""
    ran = run(
        arrivals([(0.0, 10, 1, 0), (0.1, 10, 1, 0), (0.2, 10, 1, 1), (0.3, 10, 1, 0)]),
        engine(
            max_num_seqs=1,
            overhead_s=1.0,
            schedules_by_prefix=1,
            enable_prefix_caching=1,
            passed_by_go_first=passed_by_go_first,
        ),
        classes=classes((0, 0, 0, 0.0), (0, 0, 0, 0.1)),
    )
    assert ran.requests.finished_at_s.tolist() == [1.0, 2.0, 3.0, 4.0]
