"""Messages and progress of the commands: a line that is redrawn on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smg.errors import Stopped
from smg.report.text import duration, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from smg.methods import Step
    from smg.sites.site import Subject

PIPE_SECONDS = 10.0  # between two lines of progress in a pipe
REDRAW_SECONDS = 0.2  # between two texts on a terminal
BAR_COLUMNS = 12

loudness = 0  # -1 with --quiet: results and errors alone; 1 with -v: details as well
_drawn: ProgressLine | None = None  # a terminal shows one progress line at a time


def set_loudness(level: int) -> None:
    """Set how much is printed: -1 quiet, 0 normal, 1 verbose."""
    global loudness
    loudness = level


def say(line: str) -> None:
    """Print a line of progress to standard error, unless the command is quiet."""
    if loudness >= 0:
        print(printable(line), file=sys.stderr, flush=True)


def detail(line: str) -> None:
    """Print a line to standard error if the command is verbose."""
    if loudness > 0:
        print(printable(line), file=sys.stderr, flush=True)


def redraws() -> bool:
    """Return whether a line on standard error can be redrawn."""
    return loudness >= 0 and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def clear() -> None:
    """Remove the progress line from the terminal, so that the next message begins at the margin."""
    if _drawn:
        _drawn.close()


class ProgressLine:
    """One line of progress: a bar and a text that are redrawn on a terminal, a line every ten seconds in a pipe.

    On a narrow terminal the end of the text is cut off; the line never breaks.
    """

    def __init__(self) -> None:
        self.redraws, self.last = redraws(), time.monotonic()
        self.bar: Progress | None = None

    def is_due(self, last: bool = False) -> bool:
        """Return whether it is time for another text; the last one is always due."""
        now = time.monotonic()
        if now - self.last < (REDRAW_SECONDS if self.redraws else PIPE_SECONDS) and not last:
            return False
        self.last = now
        return True

    def show(self, text: str, done: int, total: int, keep: bool = False) -> None:
        """Show the text; with `keep` it stays on the terminal as the last one."""
        if not self.redraws:
            say(text)
            return
        text = printable(text)
        if self.bar:
            self.bar.update(self.bar.task_ids[0], description=text, completed=done, total=total)
        else:
            self._open(text, done, total)
        if keep:
            self.close(keep=True)

    def close(self, keep: bool = False) -> None:
        """Stop drawing, and remove the line unless it is to be kept."""
        global _drawn
        if self.bar:
            self.bar.live.transient = not keep
            self.bar.stop()
            self.bar, _drawn = None, None

    def _open(self, text: str, done: int, total: int) -> None:
        global _drawn
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        clear()
        cut = Column(no_wrap=True, overflow="ellipsis")
        texts = TextColumn("{task.description}", markup=False, table_column=cut)
        bar = BarColumn(BAR_COLUMNS, table_column=Column(min_width=BAR_COLUMNS))  # a long text would take its place
        self.bar = Progress(bar, texts, console=_console(), refresh_per_second=5)
        self.bar.add_task(text, total=total, completed=done)
        self.bar.start()
        _drawn = self


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show how many of `total` things are done; the function yielded is called once for each."""
    line, done = ProgressLine(), 0

    def on_done(_: str) -> None:
        nonlocal done
        done += 1
        if line.is_due(done == total):
            line.show(f"{title} {done}/{total}", done, total)

    try:
        yield on_done
    finally:
        line.close()


@contextmanager
def subject_progress() -> Iterator[Callable[[Subject, int, int], None]]:
    """Show which subject is being evaluated; the function yielded takes (subject, index, total)."""
    line = ProgressLine()

    def on_subject(subject: Subject, index: int, total: int) -> None:
        if line.is_due():
            line.show(f"evaluating {subject.site}: {subject.case}, {index} of {total}", index, total)

    try:
        yield on_subject
    finally:
        line.close()


class TrainingProgress:
    """Show iteration, time left, losses and alignment while a round is trained; called as `on_step`.

    While it is open, Ctrl-C stops after the current iteration, with a checkpoint; a second Ctrl-C stops at once. If
    several processes train together, the first one decides. The others go on until it has ended: if one of them ended
    earlier, the first would wait for it forever.
    """

    def __init__(self, iterations: int) -> None:
        self.iterations, self.line = iterations, ProgressLine()
        self.begun, self.first = 0.0, 0
        self.stopping = False

    def __enter__(self) -> TrainingProgress:
        self.before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        signal.signal(signal.SIGINT, self.before)

    def _stop(self, *_: object) -> None:
        self.stopping = True
        signal.signal(signal.SIGINT, self.before)

    def _end(self, iteration: int) -> None:
        from smg.learner.processes import first_process

        if first_process():
            raise Stopped(f"stopped at iteration {iteration} of {self.iterations}; the same command resumes there")

    def __call__(self, iteration: int, step: Step) -> None:
        if self.stopping and iteration < self.iterations:
            self._end(iteration)
        if iteration <= self.first or not self.begun:  # a round begins, perhaps from a checkpoint
            self.begun, self.first, self.line = time.monotonic(), iteration, ProgressLine()
            return
        last = iteration == self.iterations
        if self.line.is_due(last):
            self.line.show(self._text(iteration, step), iteration, self.iterations, keep=last)

    def heard(self, line: str) -> None:
        """Print a line of who answers; stop where Ctrl-C asked for it, since no iteration may end for long."""
        self.line.close()
        say(line)
        if self.stopping:
            raise Stopped("stopped while a hospital was away; the same command resumes the round")

    def _text(self, iteration: int, step: Step) -> str:
        """Return the line's text; what comes last is cut off first on a narrow terminal."""
        left = (time.monotonic() - self.begun) / max(iteration - self.first, 1) * (self.iterations - iteration)
        loss = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items() if name in ("incoming", "replay"))
        cosines = [f"{name.replace('_', ' ')} {value:+.2f}" for name, value in step.cosines.items()]
        parts = [f"iteration {iteration}/{self.iterations}", f"{duration(left)} left", f"loss: {loss}", *cosines]
        return "  ".join(parts)
