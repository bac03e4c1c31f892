"""A plan's runs in a bench's folder: which are done, under way, failed or still to come, and each one's command.

How runs are carried out is left to those who build on it: worker processes of this machine, or a cluster's jobs.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from smg.bench.folder import BENCH, FAILURE, BenchRecord, NamedMethod, NamedStream, read_bench, write_bench
from smg.bench.planned_runs import Plan, PlannedRun
from smg.errors import SmgError
from smg.files import replacing
from smg.learner.config import OPENED, LearnerConfig
from smg.learner.config_layers import over
from smg.learner.events import Standing, standing
from smg.learner.results import StreamRecord, results_of


@dataclass
class Active:
    """A run under way."""

    run: PlannedRun
    begun: float  # on the monotonic clock
    begun_at: float  # share of the run that was done when it was started
    stands: Standing = field(default_factory=Standing)
    waits: str = ""  # for what, if it is not running

    def seconds_a_run(self) -> float | None:
        """Return the time that the whole run would take at this run's pace."""
        advanced = self.stands.share - self.begun_at
        return (time.monotonic() - self.begun) / advanced if advanced > 0 else None

    def seconds_left(self) -> float | None:
        """Return the time left for this run, if its pace is known."""
        whole = self.seconds_a_run()
        return None if whole is None else whole * (1 - self.stands.share)


Run = TypeVar("Run", bound=Active)
Named = TypeVar("Named", NamedStream, NamedMethod)


@dataclass
class PlannedBench(Generic[Run]):
    """A plan's runs: those done, under way, failed, and still to come."""

    plan: Plan
    folder: Path
    data: Path
    workers: int  # runs at a time
    threads: int = 0  # CPU threads of each run; 0: the worker's default
    options: tuple[str, ...] = ()  # added to every run's command
    todo: list[PlannedRun] = field(default_factory=list)
    active: list[Run] = field(default_factory=list)
    done: list[PlannedRun] = field(default_factory=list)
    failed: list[tuple[PlannedRun, str]] = field(default_factory=list)  # with the reason
    pace: dict[str, float] = field(default_factory=dict)  # method's name -> seconds per run, as measured here

    def sort(self) -> None:
        """Tell finished runs from those still to come, and write the plan into the folder."""
        for run in self.plan.runs():
            if self._is_done(run):
                (run.folder(self.folder) / FAILURE).unlink(missing_ok=True)  # it was killed after its last result
                self.done.append(run)
            else:
                self.todo.append(run)
        self.claim()

    def command(self, run: PlannedRun) -> list[str]:
        """Write a run's settings file and return the command that carries it out or resumes it."""
        folder = run.folder(self.folder)
        with replacing(folder / "run.yaml") as temporary:
            temporary.write_text(run.as_file())
        (folder / FAILURE).unlink(missing_ok=True)
        return self.words(run)

    def words(self, run: PlannedRun) -> list[str]:
        """Return the command of a run, whose settings file is written by `command`."""
        folder = run.folder(self.folder)
        words = [sys.executable, "-m", "smg", "run", "--quiet", str(folder / "run.yaml"), "--data", str(self.data)]
        return [*words, "--out", str(folder), "--threads", str(self.threads_of_a_run()), *self.options]

    def threads_of_a_run(self) -> int:
        """Return the CPU threads of each run: those asked for, those of OMP_NUM_THREADS, or one."""
        return self.threads or openmp_threads() or 1

    def commands(self) -> list[str]:
        """Return the shell's line for each run that is not done."""
        self.sort()
        return [shlex.join(self.command(run)) for run in self.todo]

    def stands(self, run: PlannedRun) -> Standing:
        """Return how far a run is, by its log."""
        return standing(run.folder(self.folder), len(run.stream.sites), run.config.iterations)

    def look_at(self, active: Run) -> None:
        """Note how far a run has come, and the pace of its method."""
        active.stands = self.stands(active.run)
        if (pace := active.seconds_a_run()) is not None:
            self.pace[active.run.name] = pace

    def end(self, active: Run, fault: str | None) -> None:
        """Move a run that has ended to the finished or the failed ones."""
        self.active.remove(active)
        if fault is None:
            self.done.append(active.run)
        else:
            self.failed.append((active.run, fault))

    def _is_done(self, run: PlannedRun) -> bool:
        """Return whether the run's results are there; results of another run under its name raise an error."""
        folder = run.folder(self.folder)
        if (results := results_of(folder)) is None:
            return False
        stream = StreamRecord(order=tuple(run.stream.order), unseen=run.stream.unseen)
        try:
            config = LearnerConfig.model_validate(results.config.tree(), context=OPENED)
            planned = run.config.with_channels(config.preparation.channels or ("image",))
            same = config == planned and results.stream == stream
        except (ValidationError, SmgError):  # of another version
            same = False
        if not same:
            raise SmgError(
                f"{folder}: holds a run of another configuration; give the method another name, or give another --out"
            )
        return True

    def seconds_left(self) -> float | None:
        """Return the time left for the bench, by the pace of each method; a method not seen yet has the mean pace."""
        if not self.pace:
            return None
        usual = sum(self.pace.values()) / len(self.pace)
        coming = sum(self.pace.get(run.name, usual) for run in self.todo)
        active = [worker.seconds_left() or self.pace.get(worker.run.name, usual) for worker in self.active]
        return max((coming + sum(active)) / self.workers, max(active, default=0.0))

    def claim(self) -> None:
        """Write the plan into the folder; methods, streams and seeds may be added later, but not other settings."""
        planned = tuple(str(run.folder(Path())) for run in self.plan.runs())
        record = BenchRecord(
            settings=over(self.plan.settings, self.plan.words),
            part=self.plan.part,
            streams=tuple(
                NamedStream(name=name, order=tuple(s.order), unseen=s.unseen) for name, s in self.plan.streams.items()
            ),
            methods=tuple(NamedMethod.model_validate({"name": n, **own}) for n, own in self.plan.methods.items()),
            seeds=tuple(sorted(set(self.plan.seeds or (0,)))),
            runs=planned,
            now=planned,
        )
        if (self.folder / BENCH).exists():
            before = read_bench(self.folder)
            for key in ("settings", "part"):
                if getattr(before, key) != getattr(record, key):
                    raise SmgError(f"{self.folder}: holds a bench with other {key}; give another --out")
            joined = {
                "streams": self._joined("stream", before.streams, record.streams),
                "methods": self._joined("method", before.methods, record.methods),
                "seeds": tuple(sorted({*before.seeds, *record.seeds})),
                "runs": (*planned, *(run for run in before.runs if run not in planned)),
            }
            record = record.model_copy(update=joined)
        write_bench(self.folder, record)

    def _joined(self, what: str, before: Sequence[Named], now: Sequence[Named]) -> tuple[Named, ...]:
        """Return both lists as one, in the order they came; a name must mean the same in both."""
        known = {one.name: one for one in before}
        for one in now:
            if known.setdefault(one.name, one) != one:
                raise SmgError(
                    f"{self.folder}: holds another {what} called {one.name!r}; "
                    f"give this one another name, or give another --out"
                )
        return tuple(known.values())


def openmp_threads() -> int:
    """Return the number of threads that OMP_NUM_THREADS sets, or 0."""
    word = os.environ.get("OMP_NUM_THREADS", "")
    return int(word) if word.isdigit() else 0


OnPoll = Callable[[], None]
OnFinished = Callable[[PlannedRun, str | None], None]  # the run, and why it failed if it did
