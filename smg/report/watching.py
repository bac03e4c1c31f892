"""Read the state of every run in a folder from its log: round, losses, alignment, and the time left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from smg.bench.folder import BENCH, FAILURE, planned_in
from smg.bench.slurm_queue import queued_runs
from smg.errors import SmgError
from smg.files import left_alone
from smg.learner.events import LOG, End, StepReport, first_event, read_events
from smg.learner.results import RESULTS, read_results

TAIL = 60_000  # bytes at the end of a log that are read: a few hundred reports
SILENT = 15 * 60  # seconds without a new line after which a run counts as stopped
RECENT = 20  # reports from which the pace is computed


@dataclass(frozen=True)
class Watched:
    """The state of one run, by the last line of its log."""

    label: str
    state: str  # under way, done, failed, stopped
    round: int = 0
    rounds: int = 0
    site: str = ""
    iteration: int = 0
    iterations: int = 0
    losses: dict[str, float] | None = None
    cosines: dict[str, float] | None = None
    seconds_left: float | None = None
    measures: dict[str, float | None] | None = None  # BM, BT, FM, FT of DSC, when it is done
    said: str = ""  # the last line of its error, when it failed

    @property
    def share(self) -> float:
        """Return the share of all iterations that are done."""
        if self.state == "done":
            return 1.0
        whole = self.rounds * self.iterations
        return ((max(self.round, 1) - 1) * self.iterations + self.iteration) / whole if whole else 0.0

    @property
    def over(self) -> bool:
        """Return whether the run has ended: done, failed or stopped."""
        return self.state != "under way"


def find_started_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of every run in or below these that has a log, or an error from before its log began.

    A bench's published run, which has its results and no log, is among them.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give the folder of a run or a bench")
        found |= dict.fromkeys(file.parent for name in (LOG, FAILURE) for file in sorted(path.rglob(name)))
    found |= dict.fromkeys(run for run in sorted(planned(paths)) if (run / RESULTS).is_file())
    return list(found)


def planned(paths: Sequence[Path]) -> set[Path]:
    """Return the folders of the runs that the benches in or below these plan, started or not."""
    return {run for path in paths for file in path.rglob(BENCH) for run in planned_in(file.parent)}


def watch_all(paths: Sequence[Path]) -> tuple[list[Watched], int]:
    """Return the state of every run that has started, and how many runs of a bench have not."""
    started = find_started_runs(paths)
    runs, waiting = [watch(folder, paths) for folder in started], len(planned(paths) - set(started))
    if not runs and not waiting:
        raise SmgError(f"{paths[0]}: no run has started there; start one with `smg run` or `smg bench`")
    return runs, waiting


def watch(folder: Path, under: Sequence[Path], now: datetime | None = None) -> Watched:
    """Return the state of the run in a folder; `now` is the present time if not given."""
    first = first_event(folder)
    label = _label(folder, under)
    rounds, iterations = (len(first.rounds), first.iterations) if first else (0, 0)
    events = list(read_events(folder, tail=TAIL))
    if (folder / RESULTS).is_file():
        end = next((event for event in reversed(events) if isinstance(event, End)), None)
        if events:
            return Watched(label, "done", rounds, rounds, measures=end.measures.get("dsc") if end else None)
        results = read_results(folder)
        rounds = len(results.stream.order) + (results.stream.unseen is not None)
        return Watched(label, "done", rounds, rounds, measures=results.measures.get("dsc"))
    steps = [event for event in events if isinstance(event, StepReport)]
    when, error = events[-1].time if events else "", _failure(folder)
    silent = when and ((now or datetime.now(UTC)) - datetime.fromisoformat(when)).total_seconds() > SILENT
    stopped = silent or (left_alone(folder) and not _will_be_resumed(folder))
    state = "failed" if error else "stopped" if stopped else "under way"
    run = Watched(label, state, rounds=rounds, iterations=iterations, said=error)
    if steps:
        last = steps[-1]
        run = replace(
            run,
            round=last.round,
            site=last.site,
            iteration=last.iteration,
            losses=last.losses,
            cosines=last.cosines,
        )
    return run if run.over else replace(run, seconds_left=_seconds_left(steps, run))


def _will_be_resumed(folder: Path) -> bool:
    """Return whether a run without a process belongs to a bench that is running, or to a cluster's queue."""
    here = folder.resolve()
    benches = [bench for bench in here.parents[:3] if here in planned_in(bench, now=True)]
    return any(
        ((bench / "lock").is_file() and not left_alone(bench)) or here in queued_runs(bench) for bench in benches
    )


def _failure(folder: Path) -> str:
    """Return the last line of the error that a bench wrote for a failed run; empty if the run has logged since."""
    error, log = folder / FAILURE, folder / LOG
    if not error.is_file() or (log.is_file() and error.stat().st_mtime < log.stat().st_mtime):
        return ""
    return (error.read_text().strip() or "no error message").splitlines()[-1].removeprefix("smg: ")


def _seconds_left(steps: list[StepReport], run: Watched) -> float | None:
    """Return the time left at the pace of the last reports, assuming that later rounds take as long as this one."""
    recent = [step for step in steps[-RECENT:] if step.round == run.round]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    advanced = last.iteration - first.iteration
    seconds = (datetime.fromisoformat(last.time) - datetime.fromisoformat(first.time)).total_seconds()
    whole = run.rounds * run.iterations
    return seconds / advanced * whole * (1 - run.share) if advanced > 0 else None


def _label(folder: Path, under: Iterable[Path]) -> str:
    """Return the path of a run below the folder that was given."""
    for path in under:
        if folder == path:
            return folder.name or str(folder)
        if path in folder.parents:
            return str(folder.relative_to(path))
    return str(folder)
