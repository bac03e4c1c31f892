"""Draw the picture of `smg demo`: what each method forgot of the first site, and how it does on the held-out site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smg.errors import SmgError
from smg.evaluation.metrics import dice
from smg.files import replacing
from smg.learner.results import StreamRecord
from smg.report.charts import draw_curves
from smg.report.matrices import curve_of
from smg.report.pictures import Seen, contours
from smg.report.runs import Run
from smg.report.style import AFTER, END, FAINT, INK, TRUTH, drawing, looks
from smg.report.table import enumerated

TILES = 4  # of each method, two by two
NAMES = {
    "finetune": ("fine-tuning", "trains on the newest site alone"),
    "sga+c": ("SGA(+c), the paper's method", "replays two subjects a site, aligns gradients"),
    "sga": ("SGA", "aligns gradients with those of replayed subjects"),
    "jm": ("joint minimisation", "trains on the newest site and on replayed subjects"),
}
Tile = tuple[Seen, int]  # a subject and one of its axial slices


def draw_demo(runs: Sequence[Run], data: Path, path: Path) -> None:
    """Draw, for each method of one stream, contours on the first site; beneath, DSC round by round.

    Numbers are means over seeds; the contours are of the first seed.
    """
    if len({run.stream for run in runs}) != 1:
        raise SmgError("the demo's picture: the runs are of several streams; give those of one")
    from matplotlib.figure import Figure

    stream, methods = runs[0].results.stream, by_method(runs)
    first, last = stream.order[0], len(stream.order)
    subjects = [contours(of[0].folder, data, first, (1, last)) for of in methods.values()]
    with drawing():
        figure: Any = Figure(figsize=(11, 9.8), facecolor="white")
        top, curves = figure.subfigures(2, 1, height_ratios=(6.8, 3.0))
        blocks = top.subfigures(1, len(methods), squeeze=False)[0]
        for block, of, seen in zip(blocks, methods.values(), subjects, strict=True):
            _draw_block(block, of, seen, last)
        _headline(top, stream)
        _draw_both_curves(curves, methods, stream)
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=150)


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each method, by seed."""
    names = dict.fromkeys(run.name for run in runs)
    return {name: sorted((run for run in runs if run.name == name), key=lambda run: run.seed) for name in names}


def mean_dsc(runs: Sequence[Run], after: str, site: str) -> float:
    """Return the mean over seeds of a site's DSC after the round of another."""
    return sum(run.results.matrix["dsc"][after][site] or 0.0 for run in runs) / len(runs)


def tiles_of(subjects: Sequence[Seen], count: int = TILES) -> list[Tile]:
    """Return `count` slices: one of each subject, or several where there are few subjects, spread over the gland."""
    if not subjects:
        raise SmgError("the demo's picture: no test subject to draw; give more subjects a site")
    chosen = list(subjects[:count])
    shares = [count // len(chosen) + (place < count % len(chosen)) for place in range(len(chosen))]
    tiles: list[Tile] = []
    for seen, share in zip(chosen, shares, strict=True):
        inside = seen.inside() or list(range(len(seen.slices)))
        tiles += [(seen, inside[int((n + 0.5) / share * len(inside))]) for n in range(share)]
    return tiles


def _headline(figure: Any, stream: StreamRecord) -> None:
    """Write the question, and below it the legend of the contours."""
    from matplotlib.lines import Line2D

    first, later = stream.order[0], enumerated(stream.order[1:])
    question = f"What does each method remember of site {first} after learning {later}?"
    figure.text(0.0225, 0.962, question, fontsize=16, weight="bold", color=INK, va="center")
    where = f"Test slices of site {first}:"
    figure.text(0.0225, 0.912, where, fontsize=10, color=FAINT, va="center")
    lines = (("true contour", TRUTH, "-"), (f"right after {first} was learned", AFTER, "--"),
             (f"at the end, after {later}", END, "-"))  # fmt: skip
    handles = [Line2D([], [], color=colour, ls=dash, lw=2.4, label=label) for label, colour, dash in lines]
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=(0.18, 0.912), ncols=3, fontsize=9.5, frameon=True,
                  facecolor="#30343a", edgecolor="none", framealpha=1, labelcolor="white", handlelength=2.4,
                  columnspacing=1.8, borderpad=0.45)  # fmt: skip


def _draw_block(figure: Any, runs: Sequence[Run], subjects: Sequence[Seen], last: int) -> None:
    """Draw one method: its name, what it kept of the first site, and its tiles."""
    run, order = runs[0], runs[0].order
    name, does = NAMES.get(run.name, (run.name, ""))
    colour = looks(["finetune", "sga+c", run.name])[run.name].colour
    before, end = (mean_dsc(runs, after, order[0]) for after in (order[0], order[-1]))
    figure.text(0.045, 0.838, name, fontsize=13, weight="bold", color=colour, va="bottom")
    figure.text(0.045, 0.829, does, fontsize=8.5, color=FAINT, va="top")
    course = f"DSC {100 * before:.1f} % → {100 * end:.1f} %"
    figure.text(0.97, 0.838, course, fontsize=12, weight="bold", ha="right", va="bottom")
    seeds = f"{len(runs)} seeds" if len(runs) > 1 else "one seed"
    figure.text(0.97, 0.829, f"{lost(before, end)}; mean of {seeds}", fontsize=8.5, color=FAINT, va="top", ha="right")
    axes = figure.subplots(2, 2, gridspec_kw={"left": 0.045, "right": 0.97, "bottom": 0.03, "top": 0.765,
                                              "wspace": 0.04, "hspace": 0.1})  # fmt: skip
    for axis, (seen, number) in zip(axes.flat, tiles_of(subjects), strict=True):
        draw_tile(axis, seen, number, 1, last)
        one, other = (100 * slice_dsc(seen, number, n) for n in (1, last))
        axis.set_title(f"{seen.case}, slice {number + 1}: {one:.0f} % → {other:.0f} %", fontsize=8.5, weight="normal",
                       color=FAINT, pad=3.5)  # fmt: skip


def lost(then: float, now: float) -> str:
    """Return the points of DSC between two values, as the two are printed: to one digit."""
    points = round(round(100 * then, 1) - round(100 * now, 1), 1)
    return f"{abs(points):.1f} points {'lost' if points >= 0 else 'gained'}"


def slice_dsc(seen: Seen, number: int, after: int) -> float:
    """Return the DSC of the first class on one slice after a round."""
    return dice(seen.axial(seen.predicted[after])[number] == 1, seen.axial(seen.truth)[number] == 1)


def draw_tile(axis: Any, seen: Seen, number: int, after: int, end: int) -> None:
    """Draw one slice around the gland with its three contours."""
    box = seen.box()
    image = seen.slices[number][box].astype(np.float32)
    low, high = np.percentile(image, (1, 99.5))
    axis.imshow(image, cmap="gray", vmin=low, vmax=high, aspect=seen.aspect, interpolation="bilinear")
    for mask, colour, width, dash in (
        (seen.truth, TRUTH, 1.3, "solid"),
        (seen.predicted[end], END, 2.0, "solid"),
        (seen.predicted[after], AFTER, 1.8, "dashed"),
    ):
        flat = seen.axial(mask)[number][box]
        if flat.any():
            axis.contour(flat > 0, levels=[0.5], colors=[colour], linewidths=width, linestyles=dash)
    axis.set_axis_off()


def _draw_both_curves(figure: Any, methods: dict[str, list[Run]], stream: StreamRecord) -> None:
    sites = [(stream.order[0], "Memory: DSC on site {}, the first learned")]
    if stream.unseen:
        sites.append((stream.unseen, "Generalisation: DSC on the held-out site {}"))
    axes = figure.subplots(1, len(sites), squeeze=False, sharey=True, gridspec_kw={
        "left": 0.06, "right": 0.985, "bottom": 0.15, "top": 0.87, "wspace": 0.07})[0]  # fmt: skip
    style = looks(["finetune", "sga+c", *methods])
    for axis, (site, title) in zip(axes, sites, strict=True):
        made = {name: curve_of(of, site) for name, of in methods.items()}
        draw_curves(axis, made, style, stream.order, legend=False)
        axis.set_title(title.format(site), fontsize=10.5)
    axes[0].set_ylim(min(axes[0].get_ylim()[0], 50.0), 100)
    for axis in axes[1:]:
        axis.set_ylabel("")
    lines, names = axes[-1].get_legend_handles_labels()
    axes[-1].legend(lines, [NAMES.get(name, (name,))[0] for name in names], loc="best")
