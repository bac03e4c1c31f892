"""The report's charts. Each function draws one chart onto a matplotlib axis or figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smg.evaluation.metrics import METRICS
from smg.report.paired import Difference
from smg.report.style import CARD, FAINT, INK, MARKERS, PALETTE, Look
from smg.report.table import StreamTable
from smg.sites.formats import Array

HEAT = "cividis"  # looks the same to readers with and without colour blindness
BANDS_AT_MOST = 4  # methods whose spread is drawn as a band; more bands would cover one another
Series = tuple[Array, Array]  # x, y


@dataclass(frozen=True)
class Curve:
    """One method on one site: mean and standard deviation over seeds after each round, in the metric's unit."""

    means: tuple[float | None, ...]
    spreads: tuple[float | None, ...]


def mark(look: Look, *artists: Any) -> None:
    """Mark what is drawn of a method, so that a reader of the page can highlight it (smg.report.figures)."""
    for artist in artists:
        artist.set_gid(f"method-{look.rank}")


def legend_below(axis: Any, style: Mapping[str, Look] | None = None) -> None:
    """Draw the legend below the axis, in as many columns as fit; entries of methods in `style` are marked."""
    handles, labels = axis.get_legend_handles_labels()
    for columns in range(min(5, len(labels)), 0, -1):
        legend = axis.figure.legend(handles, labels, loc="outside lower center", ncols=columns,
                                    columnspacing=1.3, handlelength=2.2, handletextpad=0.5)  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= axis.figure.bbox.width:
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                if style and text.get_text() in style:
                    mark(style[text.get_text()], handle, text)
            return
        legend.remove()


def site_ticks(axis: Any, places: Sequence[float], names: Sequence[str], ha: str = "center") -> None:
    """Label each place on the x axis with a site; long names are shortened in the middle and slanted."""
    short = [name if len(name) <= 22 else f"{name[:12]}…{name[-9:]}" for name in names]
    if sum(map(len, short)) > 48:
        axis.set_xticks(places, short, rotation=25, ha="right", rotation_mode="anchor")
    else:
        axis.set_xticks(places, short, ha=ha)


def draw_measures(axis: Any, table: StreamTable, style: Mapping[str, Look]) -> None:
    """Draw each method as a point: BM across, FM up, bars for the spread over seeds; hollow for reference methods."""
    for name, row in table.rows.items():
        across, up, look = row["dsc", "BM"], row["dsc", "FM"], style[name]
        is_reference = name in table.references
        if across.mean is not None and up.mean is not None:
            axis.errorbar(across.mean, up.mean, xerr=across.spread, yerr=up.spread, color=look.colour, ls="none",
                          marker=look.marker, ms=8, mew=1.4 * is_reference, elinewidth=1,
                          mfc="none" if is_reference else look.colour,
                          label=f"{name} (reference)" if is_reference else name)  # fmt: skip
    axis.set_xlabel("memory: BM, DSC % over the learned sites")
    axis.set_ylabel("generalisation: FM, DSC %")
    axis.margins(0.12)
    axis.annotate("better ↗", (1, 1), xycoords="axes fraction", ha="right", va="top", color=FAINT, size=10)
    legend_below(axis)


def fill_differences(
    figure: Any, differences: Sequence[Difference], baseline: str, streams: Mapping[str, str], measures: Sequence[str]
) -> None:
    """Draw what each method differs from the baseline by, with 95 % intervals: a column a measure, a mark a stream.

    streams: the title of each stream. Where an interval excludes zero and comes from several seeds, the mark is filled.
    """
    methods = list(dict.fromkeys(one.method for one in differences))
    axes = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        axis.axvline(0, color=FAINT, lw=1)
        for place, (stream, title) in enumerate(streams.items()):
            colour, marker = PALETTE[place % len(PALETTE)][0], MARKERS[place % len(MARKERS)]
            axis.plot([], [], color=colour, marker=marker, ms=6, ls="none", mfc=colour, label=title)
            for one in (d for d in differences if (d.stream, d.measure) == (stream, measure)):
                y = methods.index(one.method) + 0.26 * (place - (len(streams) - 1) / 2)
                axis.plot([one.low, one.high], [y, y], color=colour, lw=1.6, solid_capstyle="butt")
                axis.plot(one.mean, y, color=colour, marker=marker, ms=6, mfc=colour if one.certain else CARD)
        axis.set_title(measure)
        axis.set_xlabel("points of DSC")
        axis.grid(False, axis="y")
        axis.set_ylim(len(methods) - 0.5, -0.5)
    axes[0].set_yticks(
        range(len(methods)), [name if len(name) <= 20 else f"{name[:12]}…{name[-7:]}" for name in methods]
    )
    figure.suptitle(f"minus {baseline}", size=11)
    legend_below(axes[0])


def draw_curves(
    axis: Any, curves: Mapping[str, Curve], style: Mapping[str, Look], order: Sequence[str], legend: bool = True
) -> None:
    """Draw the DSC on one site, one line a method; a value that was not measured leaves a gap.

    The spread over seeds is a band for a few methods, and bars side by side for more.
    """
    nan, few = float("nan"), len(curves) <= BANDS_AT_MOST
    for place, (name, curve) in enumerate(curves.items()):
        look = style[name]
        means = [nan if mean is None else mean for mean in curve.means]
        spreads = [0.0 if spread is None else spread for spread in curve.spreads]
        x = [at + (0 if few else 0.035 * (place - (len(curves) - 1) / 2)) for at in range(len(means))]
        if any(spreads) and few:
            low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
            mark(look, axis.fill_between(x, low, high, color=look.colour, alpha=0.13, lw=0))
        elif any(spreads):
            bars = axis.errorbar(x, means, spreads, color=look.colour, fmt="none", elinewidth=0.9, alpha=0.7)
            mark(look, *bars.get_children())
        mark(look, *axis.plot(x, means, color=look.colour, marker=look.marker, ls=look.dash, label=name))
    site_ticks(axis, range(len(order)), [order[0], *(f"+ {site}" for site in order[1:])])
    axis.set_xlim(-0.25, len(order) - 0.75)
    axis.set_xlabel("sites learned so far")
    axis.set_ylabel(METRICS["dsc"].head)
    if legend:
        legend_below(axis, style)


def fill_matrices(
    figure: Any, matrices: Mapping[str, Array], sites: Sequence[str], low: float, high: float, digits: int
) -> None:
    """Draw one heat map for each method on one scale: rounds down, sites across; NaN stays white."""
    columns = min(4, len(matrices))
    rows = -(-len(matrices) // columns)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(matrices) :]:
        axis.set_axis_off()
    for axis, (name, values) in zip(axes.flat, matrices.items(), strict=False):
        drawn = axis.imshow(values, cmap=HEAT, vmin=low, vmax=high, aspect="auto")
        axis.grid(False)
        axis.set_title(name)
        axis.set_xticks(range(len(sites)), sites, size=8, rotation=90 if max(map(len, sites)) > 3 else 0)
        axis.set_yticks(range(len(values)), [f"after {site}" for site in sites[: len(values)]], size=8)
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                light = drawn.norm(value) > 0.55
                axis.text(column, row, f"{value:.{digits}f}", ha="center", va="center", size=7.5,
                          color="black" if light else "white")  # fmt: skip


def draw_features(axis: Any, points: Mapping[str, Array], chosen: Mapping[str, Sequence[bool]]) -> None:
    """Draw the features of subjects in two dimensions, a colour and a marker for each site; exemplars have a ring."""
    for place, (site, at) in enumerate(points.items()):
        colour, marker = PALETTE[place % len(PALETTE)][0], MARKERS[place % len(MARKERS)]
        axis.scatter(at[:, 0], at[:, 1], s=34, c=colour, marker=marker, alpha=0.75, linewidths=0, label=site)
        kept = at[np.asarray(chosen[site], bool)]
        axis.scatter(kept[:, 0], kept[:, 1], s=150, facecolors="none", edgecolors=INK, linewidths=1.6,
                     label="kept" if place == len(points) - 1 else None)  # fmt: skip
    axis.set_xticklabels([])
    axis.set_yticklabels([])
    axis.tick_params(length=0)
    axis.set_xlabel("first principal component")
    axis.set_ylabel("second")
    axis.margins(0.1)
    axis.grid(False)
    legend_below(axis)


def draw_series(
    axis: Any, series: Mapping[str, Series], style: Mapping[str, Look], rounds: Sequence[tuple[str, float]], label: str
) -> None:
    """Draw one line a method over the iterations of all rounds; `rounds` holds (site, first iteration)."""
    for name, (x, y) in series.items():
        mark(style[name], *axis.plot(x, y, color=style[name].colour, ls=style[name].dash, lw=1.5, label=name))
    axis.set_ylabel(label)
    for _, start in rounds[1:]:
        axis.axvline(start, color=FAINT, lw=0.8, ls=(0, (2, 2)))
    site_ticks(axis, [start for _, start in rounds], [site for site, _ in rounds], ha="left")
    axis.grid(False, axis="x")
    axis.set_xlabel("site being learned")
    legend_below(axis, style)


def draw_times(axis: Any, times: Mapping[str, Sequence[float]], style: Mapping[str, Look]) -> None:
    """Draw the milliseconds of a step: one dot for each round of each run, and a bar that ends at the median."""
    for place, (name, values) in enumerate(times.items()):
        look = style[name]
        axis.plot(
            [0, float(np.median(values))], [place, place], color=look.colour, lw=5, alpha=0.35, solid_capstyle="butt"
        )
        axis.scatter(values, [place] * len(values), color=look.colour, marker=look.marker, s=22, linewidths=0)
    axis.set_yticks(range(len(times)), list(times))
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.grid(False, axis="y")
    axis.set_xlabel("milliseconds per step")
