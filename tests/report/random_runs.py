"""Runs with random numbers, for tests of statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from smg.evaluation.measures import measures
from smg.learner.config import LearnerConfig
from smg.learner.results import Results
from smg.report.runs import Run

SITES = {"A": 5, "B": 3, "F": 4}


def run(name: str, seed: int, rng: np.random.Generator, shift: float = 0.0, missing: str = "") -> Run:
    """Return a run of the stream A B | F with random values for every subject after every round."""
    rows: list[dict[str, Any]] = []
    matrix: dict[str, dict[str, float]] = {}
    for round_site in SITES:
        for site, count in SITES.items():
            values = shift + rng.normal(0.7, 0.1, count)
            matrix.setdefault(round_site, {})[site] = float(values.mean())
            for number, value in enumerate(values):
                dsc = None if f"{round_site}{site}{number}" == missing else float(value)
                classes = {"foreground": {"dsc": dsc, "asd": 10 * float(value)}}
                rows.append({"round": round_site, "site": site, "subject": f"Case{number}", "classes": classes})
    stream = {"order": ["A", "B"], "unseen": "F"}
    made = {"dsc": measures(matrix, ["A", "B"], "F")}
    return Run(Path(), as_results(name=name, seed=seed, stream=stream, subjects=rows, measures=made))


def as_results(**entries: Any) -> Results:
    """Return the content of a results.json with these entries; the others are as empty as they may be."""
    config = LearnerConfig(seed=entries.get("seed", 0)).model_dump(mode="json")
    others = {"method": entries.get("name", "jm"), "seed": 0, "matrix": {}, "measures": {}, "subjects": []}
    others |= {"stream": {"order": ["A", "B"], "unseen": "F"}, "config": config, "versions": {}}
    tree = Results.upgrade(others | entries | {"format": Results.FORMAT}, Results.FORMAT)
    return Results.model_validate_json(json.dumps(tree))


def changed(run: Run, **entries: Any) -> Run:
    """Return a run with other entries in its results."""
    return Run(run.folder, as_results(**(run.results.model_dump(mode="json") | entries)))
