"""A bench's folder, as those see it who only look: what is planned there.

bench.json                      streams, methods and seeds, every run planned so far, and those of the last command
STREAM/METHOD/seed-N/           a run's folder
    failure.txt                 all it said, if it failed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAILURE = "failure.txt"


def all_of(told: dict[str, Any]) -> list[str]:
    """The runs of a bench.json that does not list them: every method on every stream with every seed."""
    return [
        f"{stream['name']}/{method['name']}/seed-{seed}"
        for seed in told["seeds"]
        for stream in told["streams"]
        for method in told["methods"]
    ]


def planned_in(folder: Path, now: bool = False) -> list[Path]:
    """The folders of the runs that a bench has planned, ever or by its last command; none if it is no bench."""
    try:
        told = json.loads((folder / "bench.json").read_text())
        return [folder / run for run in told.get("now" if now else "runs", all_of(told))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
