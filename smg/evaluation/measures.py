"""Memorizability and generalizability, read off the accuracy matrix a[round][site].

a[r][s] is the mean accuracy on site s's test part after round r; rounds go by the site they learned. T is the last
round of the stream, and round T+1 goes on from T and learns the unseen site with the same method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = dict[str, dict[str, float]]  # the round's site -> the evaluated site -> mean

FORMULAS = {
    "BM": "mean over learned sites s of a[T][s]",
    "BT": "mean over s < T of a[T][s] - a[s][s]",
    "FM": "a[T][unseen], over every subject of the unseen site outside its validation part",
    "FT": "a[T][unseen] - a[T+1][unseen], over its test part",
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


def _at(matrix: Matrix, round_site: str, site: str) -> float:
    return matrix.get(round_site, {}).get(site, math.nan)
