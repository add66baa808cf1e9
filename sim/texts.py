"""Texts that a user gave, as messages show them: cut where they are long, with the nearest one that is known."""

import difflib
from collections.abc import Iterable

LONGEST = 160
"""Characters of a given text that a message shows: enough to know it again."""


def bounded(given: object, most: int = LONGEST) -> str:
    """Returns a text of at most about `most` characters, the middle left out where it is longer.

    >>> bounded("x" * 1000, 20)
    'xxxxxxxxxx...(980 more)...xxxxxxxxxx'
    """
    text = str(given)
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...({len(text) - 2 * half:,} more)...{text[len(text) - half :]}"


def nearest(given: object, known: Iterable[str]) -> str | None:
    """Returns the known word that `given` most likely stands for, or None.

    >>> nearest("forcast", ["fixed", "forecast", "queue_target"])
    'forecast'
    >>> nearest("zzz", ["fixed", "forecast"]) is None
    True
    """
    words = {word.lower().replace("-", "_"): word for word in known}
    plain = str(given)[:LONGEST].strip().lower().replace("-", "_").replace(" ", "_")
    matches = difflib.get_close_matches(plain, words, n=1, cutoff=0.6)
    return words[matches[0]] if matches else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Returns the question that goes behind a message on a name that is not known; "" where none is near.

    >>> did_you_mean("promt", ["prompt", "output"])
    "; did you mean 'prompt'?"
    """
    match = nearest(given, known)
    return f"; did you mean '{match}'?" if match else ""


def unknown_name(noun: str, given: object, known: Iterable[str]) -> str:
    """Returns the sentence for a name that is not in a table.

    >>> unknown_name("autoscaler", "forcast", ["fixed", "forecast"])
    "no autoscaler named 'forcast'; did you mean 'forecast'? known: fixed, forecast"
    """
    known = sorted(known)
    match = nearest(given, known)
    hint = f"did you mean '{match}'? " if match else ""
    return f"no {noun} named '{bounded(given)}'; {hint}known: {listed(known)}"


def listed(known: Iterable[str], most: int = 40) -> str:
    """Returns names in a row; of many the first, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    names = [bounded(name) for name in known]
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
