"""Read what is planned in a bench's folder.

bench.json                      streams, methods and seeds, every run planned so far, and the runs of the last command
STREAM/METHOD/seed-N/           a run's folder
    failure.txt                 everything it printed, if it failed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAILURE = "failure.txt"


def all_of(record: dict[str, Any]) -> list[str]:
    """Return the runs of a bench.json that does not list them: every method on every stream with every seed."""
    return [
        f"{stream['name']}/{method['name']}/seed-{seed}"
        for seed in record["seeds"]
        for stream in record["streams"]
        for method in record["methods"]
    ]


def planned_in(folder: Path, now: bool = False) -> list[Path]:
    """Return the folders of all runs ever planned, or of the last command's (`now`); none if it is not a bench."""
    try:
        record = json.loads((folder / "bench.json").read_text())
        return [folder / run for run in record.get("now" if now else "runs", all_of(record))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
