"""Values of a file in messages: on one line, and no longer than a line."""

MOST_LETTERS = 80


def shown(value: object) -> str:
    """Writes a value as Python would, cut in the middle where it is long, so that both its ends are there.

    >>> shown(" 12"), shown(None), shown(float("inf"))
    ("' 12'", 'None', 'inf')
    >>> shown(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 ... 2, 993, 994, 995, 996, 997, 998, 999]'
    """
    return cut(repr(value))


def cut(text: str) -> str:
    """Returns a text of any length on one line, cut in the middle where it is long.

    >>> cut("two\\nlines"), len(cut("x" * 1000)) <= MOST_LETTERS
    ('two lines', True)
    """
    half = (MOST_LETTERS - 5) // 2
    if len(text) > MOST_LETTERS:
        text = f"{text[:half]} ... {text[-half:]}"
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text
