"""What a report can be made of: finished runs with the records of their rounds, models, and what is not finished."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.learner.events import LOG, read_events
from smg.report.runs import Run, find_runs

Record = dict[str, Any]  # a round's `round.json`


@dataclass(frozen=True)
class Model:
    """A model's folder: the rounds that led to the version in use, first to last, and those aside from that line."""

    folder: Path
    rounds: tuple[Record, ...]
    aside: tuple[Record, ...] = ()  # held, or rolled back from


@dataclass(frozen=True)
class Material:
    """Everything found in the folders a report was asked of."""

    runs: tuple[Run, ...]
    models: tuple[Model, ...]
    unfinished: tuple[Path, ...]  # runs without results yet

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(run.stream for run in self.runs))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.name for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def of(self, stream: str, method: str) -> list[Run]:
        """One method's runs on one stream, by seed."""
        return [run for run in self.runs if run.stream == stream and run.name == method]

    @cached_property
    def records(self) -> dict[Path, tuple[Record, ...]]:
        """The rounds of every run whose model is still beside its results."""
        return {run.folder: tuple(_rounds(run.folder / "model")) for run in self.runs}


def collect(paths: Sequence[Path]) -> Material:
    """Runs, benches and models, in any mixture."""
    for path in paths:
        if not path.is_dir():
            raise SmgError(f"{path}: no such folder; give a run's, a bench's or a model's")
    models = [path for path in paths if (path / "model.json").is_file()]
    others = [path for path in paths if path not in models]
    runs = find_runs(others)
    finished = {run.folder.resolve() for run in runs}
    begun = {log.parent.resolve() for path in others for log in path.rglob(LOG)} - finished
    if not runs and not models:
        more = f"; of {len(begun)} begun, `smg watch {paths[0]}` tells how they stand" if begun else ""
        raise SmgError(
            f"{paths[0]}: no finished run and no model there{more or '; make one with `smg run` or `smg bench`'}"
        )
    return Material(tuple(runs), tuple(_model(path) for path in models), tuple(sorted(begun)))


def _rounds(model: Path) -> Iterable[Record]:
    for path in sorted(model.glob("rounds/[0-9]*/round.json")):
        yield _read(path)


def _model(folder: Path) -> Model:
    told = _read(folder / "model.json")
    records = {record["round"]: record for record in _rounds(folder)}
    line: list[Record] = []
    number = told.get("current", 0)
    while number in records:
        line.append(records.pop(number))
        number = line[-1]["parent"]
    return Model(folder, tuple(line[::-1]), tuple(records.values()))


def _read(path: Path) -> Record:
    try:
        told: Record = json.loads(path.read_text())
    except (OSError, ValueError):
        raise SmgError(f"{path}: missing or damaged; restore it from a backup") from None
    return told


def milliseconds_a_step(run: Run) -> dict[int, float]:
    """By round: the median over its log of the time between two reports, for each iteration between them."""
    paces: dict[int, list[float]] = {}
    last: tuple[int, int, datetime] | None = None
    for event in read_events(run.folder):
        if event["event"] != "step":
            last = None  # an evaluation's time is not a step's
            continue
        now = event["round"], event["iteration"], datetime.fromisoformat(event["time"])
        if last and last[0] == now[0] and now[1] > last[1]:
            paces.setdefault(now[0], []).append(1000 * (now[2] - last[2]).total_seconds() / (now[1] - last[1]))
        last = now
    return {number: statistics.median(values) for number, values in paces.items()}


def told_stream(stream: dict[str, Any]) -> str:
    """`A → B → C, unseen F`"""
    return " → ".join(stream["order"]) + (f", unseen {stream['unseen']}" if stream["unseen"] else "")
