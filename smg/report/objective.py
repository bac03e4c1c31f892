"""The training objective over time: losses and gradient cosines over the iterations of all rounds, mean over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from smg.report.charts import Series
from smg.report.collect import Record

# The quantities in a round's log: key -> (label of the axis, explanation).
COSINES = {
    "cos_incoming_replay": (
        "cos(G_D, G_P)",
        "gradient of the incoming site against that of replay: above zero, a step that helps one helps the other",
    ),
    "cos_train_test": ("cos(G_tr, G_te)", "gradients of two random halves of all sites' slices against each other"),
}
LOSSES = {"incoming": ("loss on the incoming site", ""), "replay": ("loss on replayed exemplars", "")}
QUANTITIES = COSINES | LOSSES
POINTS = 40  # points of a line in each round, each the mean of its iterations


def round_starts(rounds: Sequence[Record]) -> list[tuple[str, float]]:
    """Return (site, first iteration) of each round, with iterations counted over all rounds."""
    starts, at = [], 0.0
    for record in rounds:
        starts.append((record.site, at))
        at += record.log[-1].iteration if record.log else 0
    return starts


def series(runs: Iterable[Sequence[Record]], kind: str, key: str) -> Series | None:
    """Return one quantity over all rounds, the mean over the runs of one method; None where none logged it."""
    lines = [line for rounds in runs if (line := _line(rounds, kind, key)) is not None]
    if not lines:
        return None
    shortest = min(len(x) for x, _ in lines)
    return lines[0][0][:shortest], np.mean([y[:shortest] for _, y in lines], axis=0)


def _line(rounds: Sequence[Record], kind: str, key: str) -> Series | None:
    xs: list[float] = []
    ys: list[float] = []
    for record, (_, start) in zip(rounds, round_starts(rounds), strict=True):
        points = [(point.iteration, getattr(point, kind)[key]) for point in record.log if key in getattr(point, kind)]
        if points:
            x, y = _thinned(np.asarray(points, float))
            xs += [*(start + x), float("nan")]  # a gap between rounds
            ys += [*y, float("nan")]
    return (np.asarray(xs), np.asarray(ys)) if xs else None


def _thinned(points: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Series:
    """Return at most `POINTS` points, each the mean of its neighbours."""
    parts = np.array_split(points, min(POINTS, len(points)))
    means = np.array([part.mean(axis=0) for part in parts])
    return means[:, 0], means[:, 1]


def logged(rounds: Mapping[str, Sequence[Sequence[Record]]]) -> dict[str, dict[str, Series]]:
    """Return quantity -> method -> line, for the quantities that any method logged."""
    found: dict[str, dict[str, Series]] = {}
    for kind, keys in (("cosines", COSINES), ("losses", LOSSES)):
        for key in keys:
            lines = {name: line for name, runs in rounds.items() if (line := series(runs, kind, key)) is not None}
            if lines:
                found[key] = lines
    return found
