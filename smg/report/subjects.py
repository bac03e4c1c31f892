"""Every subject's numbers, packed for the page's table, and the failures counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smg.report.runs import Run

# What is told of a subject: the key in `results.json`, the column's head, the scale, the digits.
NUMBERS = (
    ("dsc", "DSC %", 100.0, 1),
    ("asd", "ASD mm", 1.0, 2),
    ("hd95", "HD95 mm", 1.0, 1),
    ("surface_dice", "surface Dice %", 100.0, 1),
    ("volume_difference", "volume ml", 1.0, 1),
)
WORDS = ("method", "stream", "seed", "after", "site", "subject")


@dataclass(frozen=True)
class Failures:
    """How many of a method's test subjects, at the end of their streams, have no surface to measure, or a poor DSC."""

    method: str
    subjects: int
    empty: int
    poor: int  # a DSC under one half, the empty ones with them


def packed(runs: Sequence[Run]) -> dict[str, Any]:
    """Rows of numbers: words as places in a list, which makes thousands of rows small."""
    lists: list[dict[str, int]] = [{} for _ in WORDS]
    several = len(_classes(runs)) > 1
    rows = []
    for run in runs:
        for row in run.results["subjects"]:
            for name, told in row["classes"].items():
                subject = f"{row['subject']} ({name})" if several else row["subject"]
                words = (run.name, run.stream, str(run.seed), row["round"], row["site"], subject)
                places = [known.setdefault(str(word), len(known)) for known, word in zip(lists, words, strict=True)]
                rows.append([*places, *(_number(told.get(key), scale, digits) for key, _, scale, digits in NUMBERS)])
    ends = [run.results["stream"]["order"][-1] for run in {run.stream: run for run in runs}.values()]
    return {
        "words": [list(known) for known in lists],
        "heads": [*WORDS, *(head for _, head, _, _ in NUMBERS)],
        "digits": [digits for *_, digits in NUMBERS],
        "ends": ends,  # of each stream, the site of its last round
        "rows": rows,
    }


def _classes(runs: Sequence[Run]) -> set[str]:
    return {name for run in runs for row in run.results["subjects"][:1] for name in row["classes"]}


def _number(value: float | None, scale: float, digits: int) -> float | None:
    return None if value is None else round(scale * value, digits)


def failures(runs: Sequence[Run]) -> list[Failures]:
    """Method by method, over its streams and seeds; of several classes one that fails is enough."""
    told = []
    for name in dict.fromkeys(run.name for run in runs):
        here = [
            list(row["classes"].values())
            for run in runs
            if run.name == name
            for row in run.results["subjects"]
            if row["round"] == run.results["stream"]["order"][-1]
        ]
        empty = sum(any(one["asd"] is None for one in classes) for classes in here)
        poor = sum(any((one["dsc"] or 0.0) < 0.5 for one in classes) for classes in here)
        told.append(Failures(name, len(here), empty, poor))
    return told
