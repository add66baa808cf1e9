"""A page of sections, as plain text for the terminal and as one HTML file that carries its pictures."""

import base64
import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH = 110
"""Characters of a line of text."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.9rem; margin-bottom: .3rem } h2 { font-size: 1.25rem; margin: 2.4rem 0 .4rem }
p { margin: .5rem 0 } p.lead { font-size: 1.15rem } p.note { color: #52606d; font-size: .92rem }
table { border-collapse: collapse; margin: .8rem 0; font-size: .9rem; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #9fb3c8; padding: .25rem .8rem .25rem 0; vertical-align: bottom }
td { border-bottom: 1px solid #e4e7eb; padding: .22rem .8rem .22rem 0; vertical-align: top }
td.number, th.number { text-align: right } tr.chosen td { background: #eef6ff; font-weight: 600 }
img { max-width: 100%; margin: .6rem 0 } .scroll { overflow-x: auto }
"""


@dataclass(frozen=True)
class Table:
    """Cells as they are shown. A column is flush right if all that it holds begins with a digit, a sign or a dollar."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chosen: int | None = None  # a row to stand out


@dataclass(frozen=True)
class Section:
    """A heading, what to know, and what backs it."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    picture: str = ""  # file name below the result's folder
    notes: Sequence[str] = ()  # what to doubt


@dataclass(frozen=True)
class Page:
    """The whole."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]


def as_text(page: Page) -> str:
    """Returns the page for a terminal; pictures are left to the HTML."""
    parts = [page.title, "=" * len(page.title), "", *map(_wrapped, page.lead)]
    for section in page.sections:
        parts += ["", section.title, "-" * len(section.title)]
        parts += [_wrapped(line) for line in section.lines]
        for table in section.tables:
            parts += ["", *_text_table(table)]
        parts += [_wrapped(f"! {note}") for note in section.notes]
    return "\n".join(parts) + "\n"


def _wrapped(line: str) -> str:
    return "\n".join(textwrap.wrap(line, WIDTH)) if line else ""


def _text_table(table: Table) -> list[str]:
    marked = [[("> " if index == table.chosen else "  ") + row[0], *row[1:]] for index, row in enumerate(table.rows)]
    cells = [[f"  {table.head[0]}", *table.head[1:]], *marked]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.head))]
    right = _numbers(table)
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return [lines[0], "  " + "-" * (max(map(len, lines)) - 2), *lines[1:]]


def as_html(page: Page, folder: Path) -> str:
    """Returns the page as one file; the pictures are read from `folder` and written into it."""
    body = [f"<h1>{_escaped(page.title)}</h1>", *(f'<p class="lead">{_escaped(line)}</p>' for line in page.lead)]
    for section in page.sections:
        body.append(f"<h2>{_escaped(section.title)}</h2>")
        body += [f"<p>{_escaped(line)}</p>" for line in section.lines]
        if section.picture:
            data = base64.b64encode((folder / section.picture).read_bytes()).decode()
            body.append(f'<img alt="{_escaped(section.title)}" src="data:image/png;base64,{data}">')
        body += [_html_table(table) for table in section.tables]
        body += [f'<p class="note">{_escaped(note)}</p>' for note in section.notes]
    head = f'<meta charset="utf-8"><title>{_escaped(page.title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _html_table(table: Table) -> str:
    right = [' class="number"' if one else "" for one in _numbers(table)]
    head = "".join(f"<th{mark}>{_escaped(cell)}</th>" for cell, mark in zip(table.head, right, strict=True))
    rows = []
    for index, row in enumerate(table.rows):
        cells = "".join(f"<td{mark}>{_escaped(cell)}</td>" for cell, mark in zip(row, right, strict=True))
        rows.append(f"<tr{' class=chosen' if index == table.chosen else ''}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _numbers(table: Table) -> list[bool]:
    """Which columns are flush right; the first never is."""
    columns = [[row[column] for row in table.rows] for column in range(len(table.head))]
    return [bool(index) and all(_is_number(cell) for cell in column) for index, column in enumerate(columns)]


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or (cell[0] in "$+-<>0123456789" and any(letter.isdigit() for letter in cell) and len(cell) < 14)


def _escaped(text: str) -> str:
    return html.escape(text)
