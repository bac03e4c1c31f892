"""The accuracy matrices, site by round, averaged over seeds, and the colours of their cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smg.report.charts import HEAT
from smg.report.runs import Run
from smg.report.table import printed
from smg.sites.formats import Array


@dataclass(frozen=True)
class HeatCell:
    """One cell of the page's heat map."""

    text: str
    background: str
    ink: str
    note: str  # what it is, for a pointer and a screen reader
    learned_now: bool = False  # the site this round learned
    change: str = ""  # in the unit of the text, since the site was learned


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
    return [
        [
            replace(_cell(float(values[row, column]), f"{site} after {learned}", low, high, digits),
                    learned_now=row == column)
            for column, site in enumerate(sites)
        ]
        for row, learned in enumerate(sites)
    ]  # fmt: skip


def kept_row(values: Array, sites: Sequence[str], learned: int, low: float, high: float, digits: int) -> list[HeatCell]:
    """What is left at the end of each of the sites `learned`, and since it was; then of the unseen one."""
    cells = [
        _cell(float(v), f"{site} at the end", low, high, digits)
        for v, site in zip(values[learned - 1], sites, strict=True)
    ]
    for place in range(learned - 1):
        change = float(values[learned - 1, place] - values[place, place])
        if math.isfinite(change):
            text = printed(change, digits)
            signed = text.replace("-", "−") if float(text) <= 0 else f"+{text}"
            cells[place] = replace(
                cells[place], change=signed, note=f"{cells[place].note}, {signed} since it was learned"
            )
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
    """As the contrast rules of the web reckon it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
