"""How pages and pictures write figures."""

import math


def number(value: float, digits: int = 4) -> str:
    """Writes a number in so many digits, and whole from 1,000 on.

    >>> [number(x) for x in (5.6618, 27_537.9, 400_000, float("inf"), float("nan"))]
    ['5.662', '27,538', '400,000', 'never', '-']
    """
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "never"
    is_large = abs(value) >= 1000 - 0.5 * 10.0 ** (3 - digits)
    return f"{value:,.0f}" if is_large else f"{value:.{digits}g}"


def percent(value: float, digits: int = 1, sign: str = "") -> str:
    """Writes a share, or with the sign `+` a change; a dash where there is none.

    >>> percent(0.4567), percent(0.5, 0), percent(0.0213, sign="+"), percent(float("nan"))
    ('45.7 %', '50 %', '+2.1 %', '-')
    """
    return f"{100 * value:{sign}.{digits}f} %" if math.isfinite(value) else "-"


def share(part: float, digits: int = 2) -> str:
    """Writes a share of requests, rounded down: one that misses a target never reads as if it met it.

    >>> share(0.9876), share(0.999996), share(0.9996, 1), share(1.0), share(float("nan"))
    ('98.76 %', '99.99 %', '99.9 %', '100.00 %', 'not measurable')
    """
    if math.isnan(part):
        return "not measurable"
    return f"{math.floor(part * 10.0 ** (digits + 2) + 1e-9) / 10.0**digits:.{digits}f} %"


def utilization(value: float) -> str:
    """Writes how much of a pool is used; infinite is a pool of which nothing is left."""
    return percent(value) if math.isfinite(value) else "nothing left"


def duration(seconds: float, _: object = None) -> str:
    """Writes a latency in the unit that reads best; the second argument is an axis's, which formats its ticks so.

    >>> [duration(x) for x in (0.0000131, 0.0131, 0.05, 1.25, 2000, float("inf"))]
    ['0.0131 ms', '13.1 ms', '50 ms', '1.25 s', '2,000 s', 'for ever']
    """
    if not math.isfinite(seconds):
        return "for ever"
    return f"{number(seconds, 3)} s" if seconds >= 1 else f"{number(seconds * 1000, 3)} ms"


def span(seconds: float) -> str:
    """Writes how long something takes or lasts, to a second at best.

    >>> span(34.0), span(300.0), span(9000.0)
    ('34 s', '5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def several(number: int, what: str) -> str:
    """Writes a number of things.

    >>> several(1, "GPU"), several(1440, "GPU")
    ('1 GPU', '1,440 GPUs')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def minutes(seconds: float) -> str:
    """Writes how long of a day."""
    return "never" if seconds == 0 else f"{seconds / 60:,.0f} min/day"
