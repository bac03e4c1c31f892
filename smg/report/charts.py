"""The report's charts, each a function onto an axis: memory against generalisation, matrices, features, objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smg.report.style import FAINT, INK, MARKERS, PALETTE, Look
from smg.report.table import Cell, StreamTable
from smg.sites.formats import Array

HEAT = "cividis"  # the same to every reader, colour-blind or not
Series = tuple[Array, Array]  # x, y


def legend_below(axis: Any, columns: int = 4) -> None:
    """Under the axis, as wide as it takes."""
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        axis.figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)),
                           columnspacing=1.3, handlelength=2.2, handletextpad=0.5)  # fmt: skip


def draw_measures(axis: Any, table: StreamTable, style: Mapping[str, Look]) -> None:
    """Each method a point: BM across, FM up, bars for the spread over seeds; its name beside it."""
    points = {name: (row["dsc", "BM"], row["dsc", "FM"]) for name, row in table.rows.items()}
    points = {name: both for name, both in points.items() if both[0].mean is not None and both[1].mean is not None}
    for name, (across, up) in points.items():
        look = style[name]
        axis.errorbar(across.mean, up.mean, xerr=across.spread, yerr=up.spread, color=look.colour, marker=look.marker,
                      ms=9, elinewidth=1.2, capsize=2.5, mec="none", label=name)  # fmt: skip
    axis.set_xlabel("memory: BM, DSC % over the sites learned")
    axis.set_ylabel("generalisation: FM, DSC %")
    axis.margins(0.2)
    axis.annotate("better ↗", (1, 1), xycoords="axes fraction", ha="right", va="top", color=FAINT, size=10)
    _name_points(axis, points)


SIDES = ((8, 9), (-8, 9), (8, -10), (-8, -10), (8, 22), (-8, 22), (8, -23), (-8, -23))  # points from a point


def _name_points(axis: Any, points: Mapping[str, tuple[Cell, Cell]]) -> None:
    """Each name beside its point, off the bars, where it covers no other name and no other point."""
    axis.figure.draw_without_rendering()  # what is where is known only once it is laid out
    frame, scale = axis.get_window_extent(), axis.figure.dpi / 72
    places = {name: axis.transData.transform((a.mean, u.mean)) for name, (a, u) in points.items()}
    taken = [(x - 5 * scale, y - 5 * scale, x + 5 * scale, y + 5 * scale) for x, y in places.values()]
    for name, (x, y) in places.items():
        wide, high = 6.6 * len(name) * scale, 12 * scale
        boxes = {}
        for across, up in SIDES:
            left = x + across * scale - (wide if across < 0 else 0)
            boxes[across, up] = (left, y + up * scale - high / 2, left + wide, y + up * scale + high / 2)
        free = [
            side
            for side, box in boxes.items()
            if frame.x0 <= box[0] and box[2] <= frame.x1 and not any(_overlap(box, other) for other in taken)
        ]
        side = (free or list(SIDES))[0]
        taken.append(boxes[side])
        at = points[name][0].mean, points[name][1].mean
        axis.annotate(name, at, xytext=side, textcoords="offset points", ha="left" if side[0] > 0 else "right",
                      va="center", color=INK, size=10.5)  # fmt: skip


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def fill_matrices(figure: Any, matrices: Mapping[str, Array], sites: Sequence[str], low: float, high: float) -> None:
    """One heat map a method on one scale: rounds down, sites across; NaN is left white."""
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
                axis.text(column, row, f"{value:.{1 if high > 30 else 2}f}", ha="center", va="center", size=7.5,
                          color="black" if light else "white")  # fmt: skip


def draw_features(axis: Any, points: Mapping[str, Array], chosen: Mapping[str, Sequence[bool]]) -> None:
    """Subjects' features in two dimensions, a colour and a marker a site; what the buffer kept has a ring."""
    for place, (site, at) in enumerate(points.items()):
        colour, marker = PALETTE[place % len(PALETTE)][0], MARKERS[place % len(MARKERS)]
        axis.scatter(at[:, 0], at[:, 1], s=34, c=colour, marker=marker, alpha=0.75, linewidths=0, label=site)
        kept = at[np.asarray(chosen[site], bool)]
        axis.scatter(kept[:, 0], kept[:, 1], s=150, facecolors="none", edgecolors=INK, linewidths=1.6,
                     label="kept" if place == len(points) - 1 else None)  # fmt: skip
    axis.set_xticklabels([])
    axis.set_yticklabels([])
    axis.tick_params(length=0)
    axis.set_xlabel("first principal direction")
    axis.set_ylabel("second")
    axis.margins(0.1)
    axis.grid(False)
    legend_below(axis, 7)


def draw_series(
    axis: Any, series: Mapping[str, Series], style: Mapping[str, Look], rounds: Mapping[str, float], label: str
) -> None:
    """A line a method over the iterations of all rounds; `rounds` gives each site the iteration its round began at."""
    for name, (x, y) in series.items():
        axis.plot(x, y, color=style[name].colour, ls=style[name].dash, lw=1.5, label=name)
    axis.set_ylabel(label)
    for begun in list(rounds.values())[1:]:
        axis.axvline(begun, color=FAINT, lw=0.8, ls=(0, (2, 2)))
    axis.set_xticks(list(rounds.values()), [f"{site}" for site in rounds], ha="left")
    axis.grid(False, axis="x")
    axis.set_xlabel("site being learned")
    legend_below(axis)


def draw_times(axis: Any, times: Mapping[str, Sequence[float]], style: Mapping[str, Look]) -> None:
    """Milliseconds a step, a dot a round and run; the line is the median."""
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
    axis.set_xlabel("milliseconds a step")
