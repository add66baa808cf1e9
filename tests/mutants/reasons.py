"""Mutants that no test can notice, each with the reason why it changes nothing that counts."""

_EDGE = "another interval only for an instant within a rounding of its edge, where either will do"

REASONS: dict[tuple[str, str], str] = {
    (
        "experiments/results/timeline.py",
        '- interval = (columns["finished_at_s"][is_finished] // self._interval_s).astype(np.int64) '
        '+ interval = (columns["finished_at_s"][is_finished] / self._interval_s).astype(np.int64)',
    ): _EDGE,
    ("autoscalers/fixed.py", "- return 0 + return -1"): "as a least number of replicas, either binds nobody",
}
"""(file, the lines that differ as the page shows them) -> why."""
