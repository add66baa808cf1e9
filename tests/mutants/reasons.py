"""Mutants that no test can notice, each with the reason why it changes nothing that counts."""

_EDGE = "another interval only for an instant within a rounding of its edge, where either will do"

_ONLY_ONE = "an array of one record, whose first is its last"

_AS_LONG = "both are as long; strict=True says so to the reader"

REASONS: dict[tuple[str, str], str] = {
    (
        "experiments/results/timeline.py",
        '- interval = (columns["finished_at_s"][is_finished] // self._interval_s).astype(np.int64) '
        '+ interval = (columns["finished_at_s"][is_finished] / self._interval_s).astype(np.int64)',
    ): _EDGE,
    (
        "experiments/results/timeline.py",
        "- self._completions = np.zeros((0, len(self._pools) + 1), dtype=np.int64) "
        "+ self._completions = np.zeros(( 1, len(self._pools) + 1), dtype=np.int64)",
    ): "room for intervals is made as they come, from whatever there is at first",
    (
        "experiments/results/shortage.py",
        "- width = round(HOUR_S / lengths_s[0]) if len(rows) else 0 + width = round(HOUR_S / lengths_s[0]) if len(rows) else 1",
    ): "of no intervals an hour has no share, however many would make it",
    (
        "experiments/results/shortage.py",
        "- width = round(HOUR_S / lengths_s[0]) if len(rows) else 0 "
        "+ width = round(HOUR_S / lengths_s[0]) if len(rows) else -1",
    ): "of no intervals an hour has no share, however many would make it",
    (
        "experiments/results/writer.py",
        "- longer = np.full(max(64, 2 * machine + 2), -1, dtype=np.int64) "
        "+ longer = np.full(max(64, 2 * machine - 2), -1, dtype=np.int64)",
    ): "room for machines that grows a little sooner again",
    ("experiments/results/writer.py", "- _STRETCH = 1 << 12 + _STRETCH = 1 << 11"): "only slower",
    (
        "experiments/results/summary.py",
        '- "reasons": {name: n for name, n in zip(REASON_NAMES, reasons.tolist(), strict=True) if name and n}, '
        '+ "reasons": {name: n for name, n in zip(REASON_NAMES, reasons.tolist(), strict=False) if name and n},',
    ): _AS_LONG,
    (
        "experiments/results/costs.py",
        "- whole = cost([machine], 0.0, duration_s) + whole = cost([machine], -1.0, duration_s)",
    ): "no machine is asked for before 0 s",
    (
        "experiments/results/timeline.py",
        '- is_alone = len(self._pools) == 1 and (rows["pool"] == 0).all() '
        '+ is_alone = len(self._pools) == 1 or (rows["pool"] == 0).all()',
    ): "of requests that all are of one pool its statistics are the whole fleet's",
    (
        "planning/balance.py",
        "- for _ in range(50): + for _ in range( 49):",
    ): "a batch that is known to 2^-49 of the most is known",
    (
        "planning/queue_paths.py",
        "- waits[mine] = waits_s(np.diff(arrived_at_s[mine], prepend=0.0), services_s[mine]) "
        "+ waits[mine] = waits_s(np.diff(arrived_at_s[mine], prepend= -1.0), services_s[mine])",
    ): "the first gap is not looked at",
    (
        "planning/plans/confidence.py",
        "- return share < self.share - 1e-12 + return share <= self.share - 1e-12",
    ): "another verdict only for a share that is below by 1e-12 to the last bit, which is there for rounding",
    ("planning/plans/trial.py", "- engine[0] = instance.engine + engine[ -1] = instance.engine"): _ONLY_ONE,
    ("planning/plans/trial.py", "- engine[0].max_loras = 0 + engine[ -1].max_loras = 0"): _ONLY_ONE,
    ("planning/plans/trial.py", "- one = engine[0] + one = engine[ -1]"): _ONLY_ONE,
    (
        "planning/plans/trial.py",
        "- plane.open(slot, slot, 0.0) + plane.open(slot, slot, -1.0)",
    ): "no request comes before 0 s, and a trial bills nobody",
    (
        "routers/pick.py",
        "- for _ in range(random_below(view, num_ties) if num_ties > 1 else 0): "
        "+ for _ in range(random_below(view, num_ties) if num_ties > 1 else -1):",
    ): "either goes on no further",
    (
        "routers/vllm.py",
        '- best, best_score = -1, float("inf") + best, best_score = - 2, float("inf")',
    ): "some candidate always takes its place",
    (
        "sim/simulation.py",
        "- clock = self.plane.fleet.clock[0] + clock = self.plane.fleet.clock[ -1]",
    ): _ONLY_ONE,
    (
        "sim/percentiles.py",
        "- _PLAN = (_VALUES, _CELLS, nb.int64[:, ::1], nb.int32[:, ::1], nb.int64[:, ::1]) "
        "+ _PLAN = (_VALUES, _CELLS, nb.int64[:, :: 0], nb.int32[:, ::1], nb.int64[:, ::1])",
    ): "a looser type of the same array: only slower",
    (
        "sim/percentiles.py",
        "- if 0 <= key - ranges[r, 0] < ranges[r, 1]: + if -1 <= key - ranges[r, 0] < ranges[r, 1]:",
    ): "one too many is counted, behind all others of its range; where values are collected, a test notices",
    (
        "traces/recorded.py",
        "- pieces = _cut(batches, max(1, CHUNK_ROWS // self._times_segments)) "
        "+ pieces = _cut(batches, max( 2, CHUNK_ROWS // self._times_segments))",
    ): "twice the memory, and only where a row has more copies than a chunk has rows",
    (
        "traces/rescaling.py",
        "- at_s = np.where((at_s >= 0) & (at_s < self._duration_s), at_s, np.nan) "
        "+ at_s = np.where((at_s >= 0) & (at_s <= self._duration_s), at_s, np.nan)",
    ): "another instant only for one that rounds to the very end",
    ("autoscalers/fixed.py", "- return 0 + return -1"): "as a least number of replicas, either binds nobody",
}
"""(file, the lines that differ as the page shows them) -> why."""
