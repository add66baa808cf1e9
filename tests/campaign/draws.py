"""What all sections of a random config draw with."""

from random import Random
from typing import Any

Section = dict[str, Any]


def some(random: Random, chance: float, /, **options: Any) -> Section:
    """Returns these options, each with this chance."""
    return {name: value for name, value in options.items() if random.random() < chance}
