"""What the objective did: losses and the two cosines over the iterations of all rounds, averaged over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from smg.report.charts import Series
from smg.report.collect import Record

# The quantities a round's log holds, each with what its axis says.
COSINES = {
    "cos_incoming_replay": (
        "cos(G_D, G_P)",
        "incoming site against replay: above zero, learning the one helps the other",
    ),
    "cos_train_test": ("cos(G_tr, G_te)", "one random half of all sites' slices against the other"),
}
LOSSES = {"incoming": ("loss on the incoming site", ""), "replay": ("loss on replayed exemplars", "")}
POINTS = 40  # of a line in each round: what is between them is averaged


def rounds_begin(rounds: Sequence[Record]) -> list[tuple[str, float]]:
    """The site of each round, and the iteration it began at."""
    begun, at = [], 0.0
    for record in rounds:
        begun.append((record["site"], at))
        at += record["log"][-1]["iteration"] if record["log"] else 0
    return begun


def series(runs: Iterable[Sequence[Record]], kind: str, key: str) -> Series | None:
    """One quantity over all rounds, the mean of the runs (one method's, one a seed); None where none logged it."""
    lines = [line for rounds in runs if (line := _line(rounds, kind, key)) is not None]
    if not lines:
        return None
    shortest = min(len(x) for x, _ in lines)
    return lines[0][0][:shortest], np.mean([y[:shortest] for _, y in lines], axis=0)


def _line(rounds: Sequence[Record], kind: str, key: str) -> Series | None:
    xs: list[float] = []
    ys: list[float] = []
    found = False
    for record, (_, begun) in zip(rounds, rounds_begin(rounds), strict=True):
        points = [(point["iteration"], point[kind][key]) for point in record["log"] if key in point.get(kind, {})]
        if points:
            found = True
            x, y = _thinned(np.asarray(points, float))
            xs += [*(begun + x), float("nan")]  # a gap between rounds
            ys += [*y, float("nan")]
    return (np.asarray(xs), np.asarray(ys)) if found else None


def _thinned(points: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Series:
    """At most `POINTS`, each the mean of its stretch."""
    parts = np.array_split(points, min(POINTS, len(points)))
    means = np.array([part.mean(axis=0) for part in parts])
    return means[:, 0], means[:, 1]


def logged(rounds: Mapping[str, Sequence[Sequence[Record]]]) -> dict[str, dict[str, Series]]:
    """quantity -> method -> line, for the quantities that any method logged."""
    told: dict[str, dict[str, Series]] = {}
    for kind, keys in (("cosines", COSINES), ("losses", LOSSES)):
        for key in keys:
            lines = {name: line for name, runs in rounds.items() if (line := series(runs, kind, key)) is not None}
            if lines:
                told[key] = lines
    return told
