"""The tables of measures and costs: memorizability and generalizability, read off the accuracy matrix a[round][site].

a[r][s] is the mean accuracy on the test part of site s after round r; a round is named by the site it learned. T is
the last round of the stream. Round T+1 continues from T and learns the unseen (held-out) site with the same method.

Every measure is a mean over some sites s of a[T][s], or, for a transfer, of a[T][s] - a[s][s]. To add such a measure,
add one entry to `MEASURES`. A measure is better in the direction of its metric: forgetting lowers DSC and raises ASD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Matrix = dict[str, dict[str, float]]  # the round's site -> the evaluated site -> mean


@dataclass(frozen=True)
class Measure:
    """One entry of the table of measures."""

    name: str
    title: str
    meaning: str
    formula: str
    sites: Callable[[Sequence[str], str | None], Sequence[str]]  # of the stream's order and its unseen site
    is_transfer: bool  # a difference to the round that learned the site


def _unseen(order: Sequence[str], unseen: str | None) -> list[str]:
    return [unseen] if unseen else []


_TABLE = (
    Measure(
        "BM", "Backward measure", "mean accuracy over the learned sites, after the last of them was learned",
        "mean over learned sites s of a[T][s]", lambda order, unseen: order, is_transfer=False,
    ),
    Measure(
        "BT", "Backward transfer", "change on the earlier sites since each was learned; a fall of DSC, or a rise of "
        "ASD, is forgetting",
        "mean over s < T of a[T][s] - a[s][s]", lambda order, unseen: order[:-1], is_transfer=True,
    ),
    Measure(
        "FM", "Forward measure", "accuracy on the held-out site, after the last learned site",
        "a[T][unseen], over every subject of the unseen site outside its validation part", _unseen, is_transfer=False,
    ),
    Measure(
        "FT", "Forward transfer", "accuracy on the held-out site, minus the accuracy after learning that site too",
        "a[T][unseen] - a[T+1][unseen], over its test part", _unseen, is_transfer=True,
    ),
)  # fmt: skip
MEASURES = {measure.name: measure for measure in _TABLE}


@dataclass(frozen=True)
class Cost:
    """One entry of the table of costs: what a stream of rounds costs, and what it gives beside the measures."""

    name: str  # the key in results.json
    label: str
    scale: float  # from the stored value to the shown one
    digits: int
    formula: str
    is_of_metric: bool = False  # has a value for each compared metric, in the unit of that metric
    by_median: bool = False  # of three seeds or more the median is shown, without a standard deviation


_COSTS = (
    Cost("plasticity", "plasticity", 1.0, 1,
         "mean over learned sites s of a[s][s] - b[s], b[s] of a network trained as long on s alone",
         is_of_metric=True),
    Cost("replay_subjects", "subjects kept", 1.0, 0, "subjects of all learned sites that are kept after round T"),
    Cost("replay_bytes", "MB kept", 1e-6, 2, "bytes of their slices, masks and stored outputs, and of spectra"),
    Cost("state_bytes", "MB remembered", 1e-6, 1, "bytes that the method remembers after round T"),
    Cost("parameters", "million parameters", 1e-6, 2, "weights of all the networks that answer after round T"),
    Cost("seconds", "seconds a round", 1.0, 0,
         "mean over rounds, from begin_round to end_round, with its validation; of three seeds or more the "
         "median, since other work of the machine shows in it",
         by_median=True),
)  # fmt: skip
COSTS = {cost.name: cost for cost in _COSTS}
FORMULAS = {entry.name: entry.formula for entry in (*_TABLE, *_COSTS)}


def measures(matrix: Matrix, order: Sequence[str], unseen: str | None) -> dict[str, float]:
    """Return every measure by name; NaN where a value it needs was not evaluated."""
    return {name: _mean(measure, matrix, order, unseen) for name, measure in MEASURES.items()}


def _mean(measure: Measure, matrix: Matrix, order: Sequence[str], unseen: str | None) -> float:
    values = [
        _at(matrix, order[-1], site) - (_at(matrix, site, site) if measure.is_transfer else 0.0)
        for site in measure.sites(order, unseen)
    ]
    return sum(values) / len(values) if values else math.nan


def plasticity(matrix: Matrix, order: Sequence[str], alone: Mapping[str, float]) -> float:
    """Return the mean over sites of the accuracy right after learning each, minus that of a network of its own.

    alone: the accuracy of a network trained on each site alone. NaN where one is missing.
    """
    return sum(_at(matrix, site, site) - alone.get(site, math.nan) for site in order) / len(order)


def _at(matrix: Matrix, round_site: str, site: str) -> float:
    """Return a[round][site]; NaN if it was not evaluated."""
    return matrix.get(round_site, {}).get(site, math.nan)
