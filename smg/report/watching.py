"""Where every run in a folder stands, as its log tells: rounds, losses, alignment, and the time left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from smg.bench.folder import FAILURE, planned_in
from smg.errors import SmgError
from smg.files import left_alone
from smg.learner.events import LOG, read_events

TAIL = 60_000  # bytes of a log's end that are looked at: a few hundred reports
SILENT = 15 * 60  # seconds without a line after which a run is taken for stopped
RECENT = 20  # reports that the pace is reckoned over


@dataclass(frozen=True)
class Watched:
    """One run, as of the last line of its log."""

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
    measures: dict[str, float | None] | None = None  # of DSC, when it is done
    said: str = ""  # last, when it failed

    @property
    def share(self) -> float:
        """Of all its iterations."""
        if self.state == "done":
            return 1.0
        whole = self.rounds * self.iterations
        return ((max(self.round, 1) - 1) * self.iterations + self.iteration) / whole if whole else 0.0

    @property
    def over(self) -> bool:
        return self.state != "under way"


def find_runs_begun(paths: Sequence[Path]) -> list[Path]:
    """The folders of every run in or below these, by their logs, or by what one said that failed without."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give a run's or a bench's")
        found |= dict.fromkeys(file.parent for name in (LOG, FAILURE) for file in sorted(path.rglob(name)))
    return list(found)


def planned(paths: Sequence[Path]) -> set[Path]:
    """The folders of the runs that the benches in or below these hold, begun or not."""
    return {run for path in paths for file in path.rglob("bench.json") for run in planned_in(file.parent)}


def watch_all(paths: Sequence[Path]) -> tuple[list[Watched], int]:
    """Every run that has begun, and how many of a bench are still to begin."""
    begun = find_runs_begun(paths)
    runs, waiting = [watch(folder, paths) for folder in begun], len(planned(paths) - set(begun))
    if not runs and not waiting:
        raise SmgError(f"{paths[0]}: no run has begun there; start one with `smg run` or `smg bench`")
    return runs, waiting


def watch(folder: Path, under: Sequence[Path], now: datetime | None = None) -> Watched:
    """Where the run in a folder stands."""
    begun = _first(folder)
    label = _label(folder, under)
    rounds, iterations = len(begun.get("rounds", [])), int(begun.get("iterations", 0))
    events = list(read_events(folder, tail=TAIL))
    if (folder / "results.json").is_file():
        end = next((e for e in reversed(events) if e["event"] == "end"), {})
        return Watched(label, "done", rounds, rounds, measures=end.get("measures", {}).get("dsc"))
    steps = [e for e in events if e["event"] == "step"]
    last = steps[-1] if steps else {}
    when = events[-1].get("time") if events else None
    told: dict[str, Any] = {
        key: last[key] for key in ("round", "site", "iteration", "losses", "cosines") if key in last
    }
    told |= {"rounds": rounds, "iterations": iterations, "said": _failure(folder)}
    silent = when and ((now or datetime.now(UTC)) - datetime.fromisoformat(when)).total_seconds() > SILENT
    stopped = silent or (left_alone(folder) and not _to_be_taken_up(folder))
    state = "failed" if told["said"] else "stopped" if stopped else "under way"
    made = Watched(label, state, **told)
    return made if made.over else Watched(label, state, **told, seconds_left=_left(steps, made))


def _to_be_taken_up(folder: Path) -> bool:
    """Whether a run that nobody is at work on belongs to a bench that is, which goes on with it in its turn."""
    here = folder.resolve()
    benches = [bench for bench in here.parents[:3] if here in planned_in(bench, now=True)]
    return any((bench / "lock").is_file() and not left_alone(bench) for bench in benches)


def _first(folder: Path) -> dict[str, Any]:
    """What the run said of itself when it began: the log's first line."""
    try:
        with (folder / LOG).open() as log:
            told: dict[str, Any] = json.loads(log.readline())
    except (OSError, ValueError):
        return {}
    return told


def _failure(folder: Path) -> str:
    """The last line of what a failed run said, which its bench leaves; a log that went on since has outlived it."""
    said, log = folder / FAILURE, folder / LOG
    if not said.is_file() or (log.is_file() and said.stat().st_mtime < log.stat().st_mtime):
        return ""
    return (said.read_text().strip() or "without a word").splitlines()[-1].removeprefix("smg: ")


def _left(steps: list[dict[str, Any]], stands: Watched) -> float | None:
    """By the pace of the last reports of this round; later rounds are taken to go as this one does."""
    recent = [step for step in steps[-RECENT:] if step["round"] == stands.round]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    advanced = last["iteration"] - first["iteration"]
    seconds = (datetime.fromisoformat(last["time"]) - datetime.fromisoformat(first["time"])).total_seconds()
    whole = stands.rounds * stands.iterations
    return seconds / advanced * whole * (1 - stands.share) if advanced > 0 else None


def _label(folder: Path, under: Iterable[Path]) -> str:
    for path in under:
        if folder == path:
            return folder.name or str(folder)
        if path in folder.parents:
            return str(folder.relative_to(path))
    return str(folder)
