"""The log of a run, `log.jsonl`: one JSON object a line, which can be followed while the run goes on.

    {"event": "begin", "rounds": ["A", "B", "C"], "iterations": 1500, ...}
    {"event": "step", "round": 2, "site": "B", "iteration": 51, "losses": {...}, "norms": {...}, "cosines": {...}}
    {"event": "evaluation", "round": 2, "site": "B", "dsc": {"A": 0.81, ...}, "asd": {"A": 1.4, ...}}
    {"event": "end", "measures": {"dsc": {"BM": ...}, "asd": {...}}}

Every line has its `time`. A run that was killed resumes from a checkpoint and repeats the iterations after it. If two
lines report the same iteration, the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from smg.files import append_line
from smg.json_records import Record, Tree
from smg.learner.records import LoggedStep
from smg.learner.results import Measures, StreamRecord

LOG = "log.jsonl"


class Begin(Record):
    """The start of a run, or its resumption."""

    event: Literal["begin"] = "begin"
    time: str = ""
    rounds: tuple[str, ...]
    iterations: int  # of each round
    name: str = ""
    method: str
    stream: StreamRecord
    seed: int
    part: str = "test"


class StepReport(LoggedStep):
    """The report of one iteration."""

    event: Literal["step"] = "step"
    time: str = ""
    round: int
    site: str


class Evaluation(Record):
    """The accuracy on every site after a round: metric -> site -> mean."""

    event: Literal["evaluation"] = "evaluation"
    time: str = ""
    round: int
    site: str
    means: dict[str, dict[str, float | None]]

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, given: Tree) -> Tree:
        """Gather the metrics, which are separate keys in a line of the log."""
        known = {key: value for key, value in given.items() if key in cls.model_fields}
        return {"means": {key: value for key, value in given.items() if key not in cls.model_fields}} | known


class End(Record):
    """The end of a run."""

    event: Literal["end"] = "end"
    time: str = ""
    measures: dict[str, Measures]  # by metric


Event = Begin | StepReport | Evaluation | End
Listener = Callable[[Event], None]
KINDS: dict[str, type[Event]] = {"begin": Begin, "step": StepReport, "evaluation": Evaluation, "end": End}


def appending(folder: Path) -> Listener:
    """Return a listener that writes each event to the run's log as one line."""

    def write(event: Event) -> None:
        line = event.model_dump(mode="json")
        line |= {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **line.pop("means", {})}
        append_line(folder / LOG, line)

    return write


def read_events(folder: Path, tail: int | None = None) -> Iterator[Event]:
    """Yield a run's events, first to last; with `tail`, only those in the log's last bytes.

    A truncated line, or one that is not an event, is skipped.
    """
    try:
        with (folder / LOG).open("rb") as log:
            if tail is not None:
                log.seek(max(0, log.seek(0, os.SEEK_END) - tail))
            lines = log.read().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        if event := _event(line):
            yield event


def _event(line: bytes) -> Event | None:
    try:
        kind = KINDS[json.loads(line)["event"]]
        return kind.model_validate_json(line)
    except (ValueError, KeyError, TypeError, RecursionError):  # a ValidationError is a ValueError
        return None


def first_event(folder: Path) -> Begin | None:
    """Return the first line of a run's log, which describes the run; None if there is none."""
    try:
        with (folder / LOG).open("rb") as log:
            event = _event(log.readline())
    except OSError:
        return None
    return event if isinstance(event, Begin) else None


@dataclass(frozen=True)
class Standing:
    """The progress of a run."""

    round: int = 0
    site: str = ""
    iteration: int = 0
    share: float = 0.0  # of all its iterations


def standing(folder: Path, rounds: int, iterations: int) -> Standing:
    """Return the progress of the run in a folder, from the last lines of its log."""
    for event in reversed(list(read_events(folder, tail=20_000))):
        if isinstance(event, End):
            return Standing(rounds, "", iterations, 1.0)
        if isinstance(event, StepReport | Evaluation):
            iteration = event.iteration if isinstance(event, StepReport) else iterations
            done = ((event.round - 1) * iterations + iteration) / (rounds * iterations)
            return Standing(event.round, event.site, iteration, done)
    return Standing()
