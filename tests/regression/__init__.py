"""Small frozen scenarios: their percentiles are held to a baseline, and each to what can be derived of it."""

from pathlib import Path

HERE = Path(__file__).parent
SCENARIOS = sorted((HERE / "scenarios").glob("*.yaml"))


def baseline_of(scenario: Path) -> Path:
    """Returns the file of a scenario's frozen percentiles."""
    return HERE / "baselines" / f"{scenario.stem}.json"
