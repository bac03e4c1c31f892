"""The accuracy matrices, site by round, averaged over seeds, and the colours of their cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smg.report.charts import HEAT
from smg.report.runs import Run
from smg.sites.formats import Array


@dataclass(frozen=True)
class HeatCell:
    """One cell of the page's heat map."""

    text: str
    background: str
    ink: str
    note: str  # what it is, for a pointer and a screen reader
    learned_now: bool  # the site this round learned


def matrix_of(runs: Sequence[Run], metric: str, scale: float) -> Array:
    """[round, site], the mean over the seeds of one method on one stream; NaN where nothing was measured."""
    sites = sites_of(runs[0])
    rows = []
    for learned in sites:
        row = []
        for site in sites:
            told = [run.results["matrix"][metric].get(learned, {}).get(site) for run in runs]
            values = [scale * value for value in told if value is not None]
            row.append(statistics.fmean(values) if values else math.nan)
        rows.append(row)
    return np.array(rows)


def sites_of(run: Run) -> list[str]:
    """The stream's sites in order, the unseen one last."""
    stream = run.results["stream"]
    return [*stream["order"], *([stream["unseen"]] if stream["unseen"] else [])]


def bounds_of(matrices: Sequence[Array]) -> tuple[float, float]:
    """One scale for all."""
    whole = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    return (float(whole.min()), float(max(whole.max(), whole.min() + 1e-6))) if whole.size else (0.0, 1.0)


def heat_rows(values: Array, sites: Sequence[str], low: float, high: float, digits: int) -> list[list[HeatCell]]:
    """The cells of one method's matrix, round by round."""
    from matplotlib import colormaps

    colours = colormaps[HEAT]
    rows = []
    for row, learned in enumerate(sites):
        cells = []
        for column, site in enumerate(sites):
            value = float(values[row, column])
            if math.isnan(value):
                cells.append(HeatCell("–", "transparent", "inherit", f"{site} after {learned}: not measured", False))
                continue
            red, green, blue, _ = colours((value - low) / (high - low))
            background = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
            ink = "#000" if _luminance(red, green, blue) > 0.18 else "#fff"
            text = f"{value:.{digits}f}"
            cells.append(HeatCell(text, background, ink, f"{site} after {learned}: {text}", row == column))
        rows.append(cells)
    return rows


def _luminance(*colour: float) -> float:
    """As the contrast rules of the web reckon it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
