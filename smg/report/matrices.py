"""Accuracy matrices and curves, averaged over seeds, and the coloured cells that show them on the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smg.evaluation.metrics import METRICS, decimal
from smg.report.charts import HEAT, Curve
from smg.report.runs import Run
from smg.sites.formats import Array


@dataclass(frozen=True)
class HeatCell:
    """One cell of a heat map on the page."""

    text: str
    background: str
    ink: str
    note: str  # what the cell is, for a pointer and a screen reader
    is_own_site: bool = False  # the site that the round learned
    change: str = ""  # since the site was learned, in the unit of the text


def matrix_of(runs: Sequence[Run], metric: str) -> Array:
    """Return the matrix [round, site] of one method on one stream, mean over seeds, in the unit of the metric.

    An entry that was not measured is NaN.
    """
    sites = runs[0].sites
    values = [[_over_seeds(runs, metric, learned, site) for site in sites] for learned in sites]
    return np.array([[statistics.fmean(of) if of else math.nan for of in row] for row in values])


def curve_of(runs: Sequence[Run], site: str, metric: str = "dsc") -> Curve:
    """Return the accuracy on one site after each round, of one method on one stream."""
    values = [_over_seeds(runs, metric, learned, site) for learned in runs[0].order]
    return Curve(
        tuple(statistics.fmean(of) if of else None for of in values),
        tuple(statistics.stdev(of) if len(of) > 1 else None for of in values),
    )


def _over_seeds(runs: Sequence[Run], metric: str, learned: str, site: str) -> list[float]:
    """Return one entry of the matrix for each seed that has it, in the metric's unit."""
    entries = [run.results.matrix.get(metric, {}).get(learned, {}).get(site) for run in runs]
    return [METRICS[metric].scale * value for value in entries if value is not None]


def limits_of(matrices: Sequence[Array]) -> tuple[float, float]:
    """Return the lowest and the highest value of all matrices, for one scale of colours."""
    whole = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    return (float(whole.min()), float(max(whole.max(), whole.min() + 1e-6))) if whole.size else (0.0, 1.0)


def heat_rows(values: Array, sites: Sequence[str], low: float, high: float, digits: int) -> list[list[HeatCell]]:
    """Return the cells of one method's matrix, round by round."""
    return [
        [
            replace(_cell(float(values[row, column]), f"{site} after {learned}", low, high, digits),
                    is_own_site=row == column)
            for column, site in enumerate(sites)
        ]
        for row, learned in enumerate(sites)
    ]  # fmt: skip


def final_row(
    values: Array, sites: Sequence[str], learned: int, low: float, high: float, digits: int
) -> list[HeatCell]:
    """Return the accuracy on every site at the end, with its change since each of the `learned` sites was learned."""
    cells = [
        _cell(float(v), f"{site} at the end", low, high, digits)
        for v, site in zip(values[learned - 1], sites, strict=True)
    ]
    for place in range(learned - 1):
        change = float(values[learned - 1, place] - values[place, place])
        if math.isfinite(change):
            text = decimal(change, digits)
            signed = text.replace("-", "−") if float(text) <= 0 else f"+{text}"
            note = f"{cells[place].note}, {signed} since it was learned"
            cells[place] = replace(cells[place], change=signed, note=note)
    return cells


def _cell(value: float, what: str, low: float, high: float, digits: int) -> HeatCell:
    from matplotlib import colormaps

    if math.isnan(value):
        return HeatCell("–", "transparent", "inherit", f"{what}: not measured")
    red, green, blue, _ = colormaps[HEAT]((value - low) / (high - low))
    background = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    ink = "#000" if _luminance(red, green, blue) > 0.18 else "#fff"
    text = f"{value:.{digits}f}"
    return HeatCell(text, background, ink, f"{what}: {text}")


def _luminance(*colour: float) -> float:
    """Return the relative luminance of an sRGB colour, as WCAG defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
