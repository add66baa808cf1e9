"""Refuses numbers that mean nothing, in words: `ValueError` with the name, what was given and what is allowed."""

import math


def check_positive(name: str, value: float) -> None:
    """Refuses what is not a finite number above 0.

    >>> check_positive("service_s", float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: service_s must be a positive number, got nan
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    """Refuses what is not a finite number from 0 up."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number from 0 up, got {value!r}")


def check_share(name: str, value: float) -> None:
    """Refuses what is not in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be a share above 0 and at most 1, got {value!r}")


def check_whole(name: str, value: float, least: int = 1) -> None:
    """Refuses what is not a whole number from `least` up."""
    if not least <= value < math.inf or value != int(value):
        raise ValueError(f"{name} must be a whole number from {least} up, got {value!r}")
