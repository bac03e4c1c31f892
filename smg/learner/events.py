"""What a run tells while it goes on: one JSON object a line, in `log.jsonl`, for whoever follows it.

    {"event": "begin", "rounds": ["A", "B", "C"], "iterations": 1500, ...}
    {"event": "step", "round": 2, "site": "B", "iteration": 51, "losses": {...}, "norms": {...}, "cosines": {...}}
    {"event": "evaluation", "round": 2, "site": "B", "dsc": {"A": 0.81, ...}, "asd": {"A": 1.4, ...}}
    {"event": "end", "measures": {"dsc": {"BM": ...}, "asd": {...}}}

Every line has its `time`. A run that was killed goes on from a checkpoint, and tells again what came after it: of two
lines on one iteration the last counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from smg.files import append_line

Event = dict[str, Any]
Listener = Callable[[Event], None]
LOG = "log.jsonl"


def appending(folder: Path) -> Listener:
    """Writes each event to the run's log as one line."""

    def write(event: Event) -> None:
        append_line(folder / LOG, {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event})

    return write


def read_events(folder: Path, tail: int | None = None) -> Iterator[Event]:
    """The run's events, first to last; with `tail`, only those in the log's last bytes. A line cut short is skipped."""
    try:
        with (folder / LOG).open("rb") as log:
            if tail is not None:
                log.seek(max(0, log.seek(0, os.SEEK_END) - tail))
            lines = log.read().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    round: int = 0
    site: str = ""
    iteration: int = 0
    share: float = 0.0  # of all its iterations


def standing(folder: Path, rounds: int, iterations: int) -> Standing:
    """Where the run in a folder stands, by the last lines of its log."""
    for event in reversed(list(read_events(folder, tail=20_000))):
        if event["event"] == "end":
            return Standing(rounds, event.get("site", ""), iterations, 1.0)
        if event["event"] in ("step", "evaluation"):
            iteration = iterations if event["event"] == "evaluation" else int(event["iteration"])
            done = ((event["round"] - 1) * iterations + iteration) / (rounds * iterations)
            return Standing(event["round"], event["site"], iteration, done)
    return Standing()
