"""How commands speak: progress and tables on a terminal, plain lines in a pipe, and no more than was asked for."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg.methods import Step

loudness = 0  # -1 with --quiet: results and faults alone; 1 with -v: details as well


def set_loudness(level: int) -> None:
    global loudness
    loudness = level


def say(line: str) -> None:
    """What a user wants to know on the way."""
    if loudness >= 0:
        print(line, file=sys.stderr, flush=True)


def detail(line: str) -> None:
    """What only someone who looks for a fault wants to know."""
    if loudness > 0:
        print(line, file=sys.stderr, flush=True)


def renewing() -> bool:
    """Whether a line on standard error can be written over."""
    return loudness >= 0 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call once for each thing done: a bar on a terminal, a line for every tenth in a pipe."""
    if renewing():
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
            say(f"{title} {done}/{total}")

    yield advance


class Teller:
    """Iteration, loss, alignment and time left: a line that renews itself on a terminal, one every 10 s in a pipe.

    While it is open, Ctrl-C stops after the iteration under way, with a checkpoint; a second one stops at once. Of
    several processes the first decides: the others go on with it until it has gone, or it would wait for them in vain.
    """

    def __init__(self, iterations: int) -> None:
        self.iterations, self.renewing = iterations, renewing()
        self.begun, self.first, self.last = time.monotonic(), 0, 0.0
        self.stopping = False

    def __enter__(self) -> Teller:
        self.before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def _stop(self, *_: object) -> None:
        self.stopping = True
        signal.signal(signal.SIGINT, self.before)

    def _end(self, iteration: int) -> None:
        from smg.learner.processes import first_process
        from smg.learner.round import Stopped

        if first_process():
            raise Stopped(f"stopped at iteration {iteration} of {self.iterations}; the same command goes on from there")

    def __call__(self, iteration: int, step: Step) -> None:
        if self.stopping and iteration < self.iterations:
            self._end(iteration)
        now = time.monotonic()
        if iteration <= self.first or not self.last:  # a round begins, perhaps from a checkpoint
            self.begun, self.first, self.last = now, iteration, now
            return
        done = iteration == self.iterations
        if now - self.last < (0.2 if self.renewing else 10) and not done:
            return
        self.last = now
        left = (now - self.begun) / max(iteration - self.first, 1) * (self.iterations - iteration)
        loss = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items() if name in ("incoming", "replay"))
        cosines = "  ".join(f"{name.replace('_', ' ')} {value:+.2f}" for name, value in step.cosines.items())
        told = "  ".join(part for part in (f"loss: {loss}", cosines, f"{duration(left)} left") if part)
        line = f"iteration {iteration}/{self.iterations}  {told}"
        if self.renewing:
            print(f"\r\033[K{line}", end="\n" if done else "", file=sys.stderr, flush=True)
        else:
            say(line)


def duration(seconds: float | None) -> str:
    """`45 s`, `12 min`, `3 h 20 min`"""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, numbers to the right."""
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
        table.add_column(Text(column), justify="left" if number == 0 else "right", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # a[T][s] is no markup
    # In a pipe nothing may be cut to the width of a terminal that is not there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
