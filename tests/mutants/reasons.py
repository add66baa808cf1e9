"""Mutants that no test can notice, each with the reason why it changes nothing that counts."""

REASONS: dict[tuple[str, str], str] = {}
"""(file, the lines that differ as the page shows them) -> why."""
