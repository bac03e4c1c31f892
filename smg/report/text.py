"""Print results as text: tables for a reader, JSON for a script."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence

from smg.files import to_json

PIPE_WIDTH = 200  # columns of a table that no terminal shows


def printable(text: str) -> str:
    """Return a text without control characters, which names of files may hold to deceive a terminal: `\\x1b`."""
    return "".join(c if c in "\n\t" or not _is_control(c) else repr(c)[1:-1] for c in text)


def one_line(text: object) -> str:
    """Return a message on one line, without control characters."""
    return printable(" ".join(str(text).split("\n"))).replace("\t", " ")


def _is_control(character: str) -> bool:
    """Return whether a character moves the cursor, changes colours or turns the direction of a line around."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != "\xad"


def print_line(text: object) -> None:
    """Print to standard output without control characters: names in a model or a file may come from elsewhere."""
    print(printable(str(text)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output: the first column to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else box.ASCII2,
        header_style="bold",
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    for number, column in enumerate(columns):
        # On a narrow terminal a cell folds; nothing is cut away.
        table.add_column(
            Text(printable(column)), justify="left" if number == 0 else "right", no_wrap=number == 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # as Text: rich would read a[T][s] as markup
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def print_json(value: object) -> None:
    """Print a value to standard output as indented, strict JSON."""
    print(to_json(value, indent=2))


def duration(seconds: float | None) -> str:
    """Format a time as `45 s`, `12 min` or `3 h 20 min`; `-` if it is not known."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
