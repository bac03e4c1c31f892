"""Runs with random numbers, for tests of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smg.evaluation.measures import measures
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
    return Run(Path(), {"name": name, "seed": seed, "stream": stream, "subjects": rows, "measures": made})
