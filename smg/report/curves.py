"""The curves of the paper's figure: DSC on one site as rounds go by, a line a method, its spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smg.report.charts import legend_below, site_ticks
from smg.report.runs import Run
from smg.report.style import Look


@dataclass(frozen=True)
class Curve:
    """One method on one site: after each round of the stream the mean over seeds, in percent, and the spread."""

    means: tuple[float | None, ...]
    spreads: tuple[float | None, ...]


def curve_of(runs: Sequence[Run], site: str, metric: str = "dsc", scale: float = 100.0) -> Curve:
    """Of one method's runs on one stream."""
    means: list[float | None] = []
    spreads: list[float | None] = []
    for learned in runs[0].results["stream"]["order"]:
        told = [run.results["matrix"][metric].get(learned, {}).get(site) for run in runs]
        values = [scale * float(value) for value in told if value is not None]
        means.append(statistics.fmean(values) if values else None)
        spreads.append(statistics.stdev(values) if len(values) > 1 else None)
    return Curve(tuple(means), tuple(spreads))


def draw_curves(
    axis: Any, curves: Mapping[str, Curve], style: Mapping[str, Look], order: Sequence[str], legend: bool = True
) -> None:
    """A line a method; what was not evaluated is a gap, and a single seed has no spread.

    The spread is a band for a few methods; more of them would cover one another, and get bars side by side.
    """
    nan, few = float("nan"), len(curves) <= 4
    for place, (name, curve) in enumerate(curves.items()):
        look = style[name]
        means = [nan if mean is None else mean for mean in curve.means]
        spreads = [0.0 if spread is None else spread for spread in curve.spreads]
        x = [at + (0 if few else 0.035 * (place - (len(curves) - 1) / 2)) for at in range(len(means))]
        if any(spreads) and few:
            low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
            axis.fill_between(x, low, high, color=look.colour, alpha=0.13, lw=0)
        elif any(spreads):
            axis.errorbar(x, means, spreads, color=look.colour, fmt="none", elinewidth=0.9, alpha=0.7)
        axis.plot(x, means, color=look.colour, marker=look.marker, ls=look.dash, label=name)
    site_ticks(axis, range(len(order)), [order[0], *(f"+ {site}" for site in order[1:])])
    axis.set_xlim(-0.25, len(order) - 0.75)
    axis.set_xlabel("sites learned so far")
    axis.set_ylabel("DSC %")
    if legend:
        legend_below(axis)
