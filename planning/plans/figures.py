"""How a plan writes its figures."""

import math


def rate(value: float) -> str:
    """Four digits, and whole from 1,000 on.

    >>> [rate(x) for x in (5.6618, 27_537.9, 400_000)]
    ['5.662', '27,538', '400,000']
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def share(value: float) -> str:
    """Writes a share in per cent; infinite is a pool of which nothing is left."""
    return f"{value * 100:.1f} %" if math.isfinite(value) else "nothing left"


def duration(seconds: float) -> str:
    """Writes a short time in the unit that reads best.

    >>> [duration(x) for x in (0.0000131, 0.0131, 1.25, float("inf"))]
    ['0.013 ms', '13.1 ms', '1.25 s', 'for ever']
    """
    if not math.isfinite(seconds):
        return "for ever"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.{1 if seconds >= 0.001 else 3}f} ms"


def several(number: int, what: str) -> str:
    """Writes a number of things.

    >>> several(1, "GPU"), several(1440, "GPU")
    ('1 GPU', '1,440 GPUs')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def minutes(seconds: float) -> str:
    """Writes how long of a day."""
    return "never" if seconds == 0 else f"{seconds / 60:,.0f} min/day"
