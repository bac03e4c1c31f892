"""Collect what a report is made of: finished runs with the records of their rounds, models, and unfinished runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from smg.errors import SmgError
from smg.learner.events import LOG, StepReport, read_events
from smg.learner.history import History
from smg.learner.records import RoundRecord
from smg.report.runs import Run, find_runs

Record = RoundRecord


@dataclass(frozen=True)
class Model:
    """A model's folder: the rounds that led to the version in use, oldest first, and all other rounds."""

    folder: Path
    rounds: tuple[Record, ...]
    aside: tuple[Record, ...] = ()  # held, or rolled back
    held: frozenset[int] = frozenset()  # numbers of the rounds that are held


@dataclass(frozen=True)
class Material:
    """Everything found in the folders of a report."""

    runs: tuple[Run, ...]
    models: tuple[Model, ...]
    unfinished: tuple[Path, ...]  # folders of runs without results

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(run.stream for run in self.runs))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.name for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def named_models(self) -> list[tuple[str, Model]]:
        """Return the models by folder name, with as much of the path as is needed to distinguish them."""
        paths = [model.folder.resolve() for model in self.models]
        depth = next(n for n in range(1, 100) if n == 99 or len({path.parts[-n:] for path in paths}) == len(set(paths)))
        return [("/".join(path.parts[-depth:]), model) for path, model in zip(paths, self.models, strict=True)]

    def of(self, stream: str, method: str) -> list[Run]:
        """Return the runs of one method on one stream, by seed."""
        return [run for run in self.runs if run.stream == stream and run.name == method]

    def title(self, stream: str) -> str:
        """Return a stream as a reader sees it: `A → B → C, held-out site F`."""
        return next(run for run in self.runs if run.stream == stream).stream_title

    @cached_property
    def records(self) -> dict[Path, tuple[Record, ...]]:
        """Return the rounds of every run by the run's folder; none where its model is not beside its results."""
        models = {run.folder: run.folder / "model" for run in self.runs}
        return {
            folder: tuple(History(model).records()) if (model / "model.json").is_file() else ()
            for folder, model in models.items()
        }


def collect(paths: Sequence[Path]) -> Material:
    """Return the runs, benches and models in these folders, which may be mixed."""
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give the folder of a run, a bench or a model")
    models = [path for path in paths if (path / "model.json").is_file()]
    others = [path for path in paths if path not in models]
    runs = find_runs(others)
    finished = {run.folder.resolve() for run in runs}
    started = {log.parent.resolve() for path in others for log in path.rglob(LOG)} - finished
    if not runs and not models:
        to_do = f"`smg watch {paths[0]}` shows the state of {len(started)} unfinished" if started else ""
        raise SmgError(
            f"{paths[0]}: no finished run and no model there; {to_do or 'make one with `smg run` or `smg bench`'}"
        )
    return Material(tuple(runs), tuple(_model(path) for path in models), tuple(sorted(started)))


def _model(folder: Path) -> Model:
    """Read the rounds of a model."""
    history = History(folder)
    line = history.records()
    aside = [n for n in history.model.numbers if n not in {record.round for record in line}]
    held = frozenset(number for number in aside if history.held(number))
    return Model(folder, tuple(line), tuple(history.record(number) for number in aside), held)


def milliseconds_per_step(run: Run) -> dict[int, float]:
    """Return, for each round, the median time of an iteration, from the times of the reports in the run's log."""
    paces: dict[int, list[float]] = {}
    last: tuple[int, int, datetime] | None = None
    for event in read_events(run.folder):
        if not isinstance(event, StepReport):
            last = None  # the time of an evaluation is not that of a step
            continue
        now = event.round, event.iteration, datetime.fromisoformat(event.time)
        if last and last[0] == now[0] and now[1] > last[1]:
            paces.setdefault(now[0], []).append(1000 * (now[2] - last[2]).total_seconds() / (now[1] - last[1]))
        last = now
    return {number: statistics.median(values) for number, values in paces.items()}
