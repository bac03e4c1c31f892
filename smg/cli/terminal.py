"""How commands speak: progress and tables on a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call once for each thing done: a bar on a terminal, a line for every tenth in a pipe."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda _: bar.advance(task)
        return
    done = 0

    def advance(_: str) -> None:
        nonlocal done
        done += 1
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            print(f"{title} {done}/{total}", file=sys.stderr, flush=True)

    yield advance


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, numbers to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else box.ASCII2,
        header_style="bold",
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    for number, column in enumerate(columns):
        # On a narrow terminal a cell folds; nothing is cut away.
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # In a pipe nothing may be cut to the width of a terminal that is not there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
