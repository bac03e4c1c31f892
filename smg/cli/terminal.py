"""How commands speak: progress and tables on a terminal, plain lines in a pipe, and no more than was asked for."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smg.errors import Stopped

if TYPE_CHECKING:
    from smg.methods import Step
    from smg.sites.site import Subject

loudness = 0  # -1 with --quiet: results and faults alone; 1 with -v: details as well
pending = False  # whether the cursor is behind a line that is to be written over


def set_loudness(level: int) -> None:
    global loudness
    loudness = level


def say(line: str) -> None:
    """What a user wants to know on the way."""
    if loudness >= 0:
        clear()
        print(line, file=sys.stderr, flush=True)


def clear() -> None:
    """Wipe a line that renews itself, so that what comes next begins at the margin."""
    global pending
    if pending:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    pending = False


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


class Line:
    """What goes on: a line that renews itself on a terminal, one every 10 s in a pipe."""

    def __init__(self) -> None:
        self.renewing, self.last = renewing(), time.monotonic()

    def due(self, done: bool = False) -> bool:
        """Whether it is time for another; at the end it always is."""
        now = time.monotonic()
        if now - self.last < (0.2 if self.renewing else 10) and not done:
            return False
        self.last = now
        return True

    def write(self, line: str, done: bool = False) -> None:
        global pending
        if not self.renewing:
            say(line)
            return
        print(f"\r\033[K{line}", end="\n" if done else "", file=sys.stderr, flush=True)
        pending = not done


def looking(total: int) -> Callable[[str], None]:
    """Tells how many scans have been looked through."""
    line, done = Line(), 0

    def told(site: str) -> None:
        nonlocal done
        done += 1
        if line.due(done == total):
            line.write(f"looked through {done} of {total} scans, at {site}", done == total)

    return told


@contextmanager
def measuring() -> Iterator[Callable[[Subject, int, int], None]]:
    """Tells which subject is being evaluated."""
    line = Line()

    def told(subject: Subject, number: int, total: int) -> None:
        if line.due():
            line.write(f"evaluating {subject.site}: {subject.case}, {number} of {total}")

    try:
        yield told
    finally:
        clear()


class Teller:
    """Iteration, loss, alignment and time left.

    While it is open, Ctrl-C stops after the iteration under way, with a checkpoint; a second one stops at once. Of
    several processes the first decides: the others go on with it until it has gone, or it would wait for them in vain.
    """

    def __init__(self, iterations: int) -> None:
        self.iterations, self.line = iterations, Line()
        self.begun, self.first = 0.0, 0
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

        if first_process():
            raise Stopped(f"stopped at iteration {iteration} of {self.iterations}; the same command goes on from there")

    def __call__(self, iteration: int, step: Step) -> None:
        if self.stopping and iteration < self.iterations:
            self._end(iteration)
        if iteration <= self.first or not self.begun:  # a round begins, perhaps from a checkpoint
            self.begun, self.first, self.line = time.monotonic(), iteration, Line()
            return
        done = iteration == self.iterations
        if not self.line.due(done):
            return
        left = (time.monotonic() - self.begun) / max(iteration - self.first, 1) * (self.iterations - iteration)
        loss = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items() if name in ("incoming", "replay"))
        cosines = "  ".join(f"{name.replace('_', ' ')} {value:+.2f}" for name, value in step.cosines.items())
        told = "  ".join(part for part in (f"loss: {loss}", cosines, f"{duration(left)} left") if part)
        self.line.write(f"iteration {iteration}/{self.iterations}  {told}", done)


def duration(seconds: float | None) -> str:
    """`45 s`, `12 min`, `3 h 20 min`"""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
