"""Memorizability and generalizability, read off the accuracy matrix a[round][site].

a[r][s] is the mean accuracy on site s's test part after round r; rounds go by the site they learned. T is the last
round of the stream, and round T+1 goes on from T and learns the unseen site with the same method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Matrix = dict[str, dict[str, float]]  # the round's site -> the evaluated site -> mean

FORMULAS = {
    "BM": "mean over learned sites s of a[T][s]",
    "BT": "mean over s < T of a[T][s] - a[s][s]",
    "FM": "a[T][unseen], over every subject of the unseen site outside its validation part",
    "FT": "a[T][unseen] - a[T+1][unseen], over its test part",
}
COSTS = {  # what a stream of rounds costs, and what it gives beside the measures
    "plasticity": "mean over learned sites s of a[s][s] - b[s], b[s] of a network trained as long on s alone",
    "replay_subjects": "subjects of all learned sites that are kept after round T",
    "replay_bytes": "bytes of their slices, masks and stored outputs",
    "state_bytes": "bytes that the method remembers after round T",
    "parameters": "weights of all the networks that answer after round T",
    "seconds": "of each round, from begin_round to end_round, with its validation",
}


def measures(matrix: Matrix, order: Sequence[str], unseen: str | None) -> dict[str, float]:
    """BM, BT, FM, FT; what was not evaluated is NaN, and never counted as zero."""
    last = order[-1]
    transfers = [_at(matrix, last, site) - _at(matrix, site, site) for site in order[:-1]]
    seen = _at(matrix, last, unseen) if unseen else math.nan
    return {
        "BM": sum(_at(matrix, last, site) for site in order) / len(order),
        "BT": sum(transfers) / len(transfers) if transfers else math.nan,
        "FM": seen,
        "FT": seen - _at(matrix, unseen, unseen) if unseen else math.nan,
    }


def plasticity(matrix: Matrix, order: Sequence[str], alone: Mapping[str, float]) -> float:
    """How far each site, right after its round, is from a network of its own (`alone`); NaN where that is not known."""
    return sum(_at(matrix, site, site) - alone.get(site, math.nan) for site in order) / len(order)


def _at(matrix: Matrix, round_site: str, site: str) -> float:
    return matrix.get(round_site, {}).get(site, math.nan)
