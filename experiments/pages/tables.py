"""Tables as plain text and in Markdown."""

import shutil
from collections.abc import Iterable, Sequence

Line = tuple[str, Sequence[str]]
"""A row: its label, and its cells."""


def columns(rows: Sequence[Line], width: int | None = None) -> str:
    """Returns labels and columns flush right, as many beside each other as `width` characters hold, the others below.

    Args:
        rows: the first is the head.
        width: None = the terminal's.

    >>> print(columns([("", ["a", "b"]), ("requests", ["10", "1,000"])], width=15))
               a
    requests  10
    <BLANKLINE>
                  b
    requests  1,000
    """
    margin = max(len(label) for label, _ in rows)
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells in rows), strict=True)]
    room = (width or shutil.get_terminal_size((120, 24)).columns) - margin
    blocks, start = [], 0
    while start < len(widths):
        stop, used = start, 0
        while stop < len(widths) and (stop == start or used + widths[stop] + 2 <= room):
            used += widths[stop] + 2
            stop += 1
        blocks.append("\n".join(_line(row, margin, widths, range(start, stop)) for row in rows))
        start = stop
    return "\n\n".join(blocks)


def _line(row: Line, margin: int, widths: Sequence[int], shown: range) -> str:
    label, cells = row
    return (f"{label:<{margin}}" + "".join(f"  {cells[i]:>{widths[i]}}" for i in shown)).rstrip()


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> str:
    """Returns a table in Markdown.

    Args:
        head: of each column.
        rows: their cells.
        num_left: columns flush left; those after them are flush right.
    """
    lines = [_cells(head), "|" + "---|" * num_left + "---:|" * (len(head) - num_left), *map(_cells, rows)]
    return "\n".join(lines)


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
