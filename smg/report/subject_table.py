"""The numbers of every subject, packed for the table on the page, and the count of failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smg.evaluation.metrics import LISTED, is_missed
from smg.report.runs import Run

WORDS = ("method", "stream", "seed", "after", "site", "subject")  # the columns before the metrics
POOR = 0.5  # DSC below which a subject counts as a failure


@dataclass(frozen=True)
class Failures:
    """Failures of a method on its test subjects, at the end of its streams."""

    method: str
    subjects: int
    empty: int  # nothing was predicted, and so there is no surface to measure, where something is
    poor: int  # with a DSC below `POOR`, including the empty ones


def packed(runs: Sequence[Run], names: bool = False) -> dict[str, Any]:
    """Return the table of subjects as JSON for the page's script.

    Words are stored as places in lists, so that thousands of rows stay small. Without `names` subjects are numbered:
    a file's name may be a patient's.
    """
    numbers = {} if names else numbered(runs)
    lists: list[dict[str, int]] = [{} for _ in WORDS]
    several = len(_classes(runs)) > 1
    rows = []
    for run in runs:
        for row in run.results.subjects:
            for name, values in row.classes.items():
                called = numbers.get((row.site, row.subject), row.subject)
                subject = f"{called} ({name})" if several else called
                words = (run.name, run.stream, str(run.seed), row.round, row.site, subject)
                places = [known.setdefault(word, len(known)) for known, word in zip(lists, words, strict=True)]
                rows.append([*places, *_numbers(values)])
    ends = [run.order[-1] for run in {run.stream: run for run in runs}.values()]
    return {
        "words": [list(known) for known in lists],
        "heads": [*WORDS, *(metric.head for metric in LISTED.values())],
        "metrics": list(LISTED),
        "digits": [metric.digits for metric in LISTED.values()],
        "ends": ends,  # of each stream, the site of its last round
        "rows": rows,
    }


def numbered(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Return a number for each (site, case), the same in all runs of a report."""
    cases = sorted({(row.site, row.subject) for run in runs for row in run.results.subjects})
    of_site: dict[str, int] = {}
    found = {}
    for site, case in cases:
        of_site[site] = 1 + of_site.get(site, 0)
        found[site, case] = f"subject-{of_site[site]}"
    return found


def _numbers(values: dict[str, float | None]) -> list[float | None]:
    """Return the metrics of a subject in their units, None where one does not exist."""
    stored = [(values.get(name), metric) for name, metric in LISTED.items()]
    return [None if value is None else round(metric.scale * value, metric.digits) for value, metric in stored]


def _classes(runs: Sequence[Run]) -> set[str]:
    return {name for run in runs for row in run.results.subjects[:1] for name in row.classes}


def failures(runs: Sequence[Run]) -> list[Failures]:
    """Return the failures of each method over its streams and seeds; a subject fails if any of its classes does."""
    found = []
    for name in dict.fromkeys(run.name for run in runs):
        here = [
            list(row.classes.values())
            for run in runs
            if run.name == name
            for row in run.results.subjects
            if row.round == run.order[-1]
        ]
        empty = sum(any(is_missed(one) for one in classes) for classes in here)
        poor = sum(any((one["dsc"] or 0.0) < POOR for one in classes) for classes in here)
        found.append(Failures(name, len(here), empty, poor))
    return found
