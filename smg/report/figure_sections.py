"""The page's sections with figures: memory against generalisation, curves, matrices, replay buffer and objective."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from smg.evaluation.metrics import COMPARED
from smg.report.buffer import Exemplar, exemplars, feature_map, indistinct
from smg.report.charts import (
    BANDS_AT_MOST,
    draw_curves,
    draw_features,
    draw_measures,
    draw_series,
    draw_times,
    fill_differences,
    fill_matrices,
)
from smg.report.collect import Material, Record, milliseconds_per_step
from smg.report.figures import WIDTH, Drawn, Figures
from smg.report.focus import Focus
from smg.report.matrices import HeatCell, curve_of, heat_rows, limits_of, matrix_of
from smg.report.objective import QUANTITIES, logged, round_starts
from smg.report.style import looks
from smg.report.table import paper_tables

SHOWN = ("BM", "FM")  # measures in the figure of differences


@dataclass(frozen=True)
class FigurePart:
    """One figure with its title."""

    title: str
    figure: Drawn
    stream: str = ""
    meaning: str = ""
    has_references: bool = False


@dataclass(frozen=True)
class MethodMark:
    """A method in the list of those that can be highlighted."""

    name: str
    rank: int  # its mark in figures
    colour: int  # its place in the palette
    is_chosen: bool


@dataclass(frozen=True)
class HeatMap:
    """One method's accuracy matrix."""

    name: str
    rows: list[list[HeatCell]]


@dataclass(frozen=True)
class MatrixPart:
    """The accuracy matrices of one stream and metric, on one scale."""

    metric: str
    head: str
    title: str
    sites: list[str]
    maps: list[HeatMap]
    low: str
    high: str
    figure: Drawn


@dataclass(frozen=True)
class BufferPart:
    """What one run or model keeps for replay."""

    label: str
    slug: str
    figure: Drawn
    exemplars: list[Exemplar]
    explained: str  # % of the features' variance in the figure
    policy: str
    folder: Path  # of the model
    indistinct: list[str]  # sites whose candidates the score cannot tell apart


def measures_figures(material: Material, figures: Figures) -> list[FigurePart]:
    """Return BM against FM for each stream with several methods to compare."""
    style, parts = looks(material.methods), []
    for number, table in enumerate(paper_tables(material.runs), start=1):
        if sum(row["dsc", "FM"].mean is not None for row in table.rows.values()) < 2:
            continue
        alt = f"Memory against generalisation, stream {table.stream}: " + "; ".join(
            f"{name} BM {row['dsc', 'BM'].text()}, FM {row['dsc', 'FM'].text()}" for name, row in table.rows.items()
        )
        drawn = figures.draw(f"measures-{number}", alt, partial(draw_measures, table=table, style=style), height=360)
        parts.append(FigurePart(material.title(table.stream), drawn, has_references=bool(table.references)))
    return parts


def difference_figure(material: Material, focus: Focus, figures: Figures) -> Drawn | None:
    """Return one figure of what every method differs from the baseline by, on all streams; None with one method."""
    found = [one for one in focus.differences if one.measure in SHOWN]
    if focus.baseline is None or not found:
        return None
    streams = {stream: material.title(stream) for stream in material.streams}
    ends = "; ".join(
        f"{d.method} {d.measure} {d.mean:+.1f} [{d.low:+.1f}, {d.high:+.1f}] on {streams[d.stream]}" for d in found
    )
    fill = partial(fill_differences, differences=found, baseline=focus.baseline, streams=streams, measures=SHOWN)
    methods = len({one.method for one in found})
    height = 110 + 22 * len(streams) + (18 + 10 * len(streams)) * methods
    return figures.compose(
        "differences", f"Each method minus {focus.baseline}, points of DSC: {ends}", fill, WIDTH, height
    )


def method_marks(material: Material, focus: Focus) -> list[MethodMark]:
    """Return the methods that a reader can highlight; none where there are few enough to tell apart."""
    if len(material.methods) <= BANDS_AT_MOST:
        return []
    chosen = {focus.method, focus.baseline}
    return [MethodMark(name, look.rank, look.place, name in chosen) for name, look in looks(material.methods).items()]


def curve_figures(material: Material, figures: Figures) -> list[FigurePart]:
    """Return, for each stream, the DSC on the first and on the held-out site after each round."""
    style, parts = looks(material.methods), []
    for number, stream in enumerate(material.streams, start=1):
        by_name = {name: runs for name in material.methods if (runs := material.of(stream, name))}
        run = next(iter(by_name.values()))[0]
        sites = [("first", run.order[0], "Memory: site {}, the first learned"),
                 ("unseen", run.unseen, "Generalisation: held-out site {}")]  # fmt: skip
        for place, site, title in sites:
            if site is None:
                continue
            made = {name: curve_of(runs, site) for name, runs in by_name.items()}
            ends = "; ".join(f"{n} {c.means[-1]:.1f} %" for n, c in made.items() if c.means[-1] is not None)
            alt = f"DSC on site {site} as sites are learned, stream {stream}. At the end: {ends}"
            draw = partial(draw_curves, curves=made, style=style, order=run.order)
            drawn = figures.draw(f"curve-{place}-{number}", alt, draw, height=330)
            parts.append(FigurePart(title.format(site), drawn, stream=run.stream_title))
    return parts


def matrix_figures(material: Material, figures: Figures) -> list[MatrixPart]:
    """Return the accuracy matrices of each stream and metric, one heat map a method."""
    parts = []
    for number, stream in enumerate(material.streams, start=1):
        by_name = {name: runs for name in material.methods if (runs := material.of(stream, name))}
        sites = next(iter(by_name.values()))[0].sites
        for metric, entry in COMPARED.items():
            made = {name: matrix_of(runs, metric) for name, runs in by_name.items()}
            low, high = limits_of(list(made.values()))
            maps = [HeatMap(name, heat_rows(values, sites, low, high, entry.digits)) for name, values in made.items()]
            fill = partial(fill_matrices, matrices=made, sites=sites, low=low, high=high, digits=entry.digits)
            columns, rows = min(4, len(made)), -(-len(made) // 4)
            width, height = 60 + (34 * len(sites) + 60) * columns, 40 + (40 + 24 * len(sites)) * rows
            drawn = figures.compose(f"matrix-{metric}-{number}", entry.head, fill, width, height, inline=False)
            limits = f"{low:.{entry.digits}f}", f"{high:.{entry.digits}f}"
            parts.append(MatrixPart(metric, entry.head, material.title(stream), sites, maps, *limits, drawn))
    return parts


# --- the replay buffer ------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """A run or a model whose buffer is shown."""

    label: str
    slug: str
    folder: Path
    rounds: Sequence[Record]


def buffer_figures(material: Material, figures: Figures) -> list[BufferPart]:
    """Return what each method kept, with its first seed on each stream, and what each model keeps."""
    sources = []
    for stream in material.streams:
        for name in material.methods:
            for run in material.of(stream, name)[:1]:
                label = f"{name}, {run.stream_title}, seed {run.seed}"
                rounds = material.records[run.folder]
                sources.append(_Source(label, _slug(f"{stream}-{name}"), run.folder / "model", rounds))
    for name, model in material.named_models:
        sources.append(_Source(f"model {name}", _slug(f"model-{name}"), model.folder, model.rounds))
    parts = []
    for source, slug in zip(sources, _distinct([source.slug for source in sources]), strict=True):
        features = feature_map(source.rounds)
        if features is None:
            continue
        count = sum(map(len, features.points.values()))
        alt = f"Features of {count} subjects by site, exemplars with a ring: {source.label}"
        draw = partial(draw_features, points=features.points, chosen=features.chosen)
        drawn = figures.draw(f"features-{slug}", alt, draw, height=340)
        policy = _in_turn(r.selection.policy for r in source.rounds)
        explained = f"{100 * features.explained:.0f}"
        parts.append(BufferPart(source.label, slug, drawn, exemplars(source.rounds), explained, policy, source.folder,
                                indistinct(source.rounds)))  # fmt: skip
    return parts


# --- the objective ----------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A stream or a model whose training is shown."""

    slug: str
    title: str
    rounds: Mapping[str, Sequence[Sequence[Record]]]  # by method, one entry a run


def objective_figures(material: Material, figures: Figures) -> list[FigurePart]:
    """Return the cosines and losses over all iterations, and the time of a step."""
    groups = []
    for number, stream in enumerate(material.streams, start=1):
        here = {n: [material.records[run.folder] for run in material.of(stream, n)] for n in material.methods}
        rounds = {n: [r for r in runs if r] for n, runs in here.items()}
        groups.append(_Group(str(number), material.title(stream), rounds))
    for name, model in material.named_models:
        method = _in_turn(record.config.method for record in model.rounds)
        groups.append(_Group(_slug(name), f"model {name}", {method: [model.rounds]}))
    parts = []
    for group, slug in zip(groups, _distinct([group.slug for group in groups]), strict=True):
        style = looks(list(group.rounds))
        starts = next((round_starts(runs[0]) for runs in group.rounds.values() if runs), [])
        for key, made in logged(group.rounds).items():
            label, meaning = QUANTITIES[key]
            ends = "; ".join(f"{n} {float(np.nanmean(y[-10:])):.2f}" for n, (_, y) in made.items())
            draw = partial(draw_series, series=made, style=style, rounds=starts, label=label)
            alt = f"{label} over iterations, {group.title}. At the end: {ends}"
            drawn = figures.draw(f"{_slug(key)}-{slug}", alt, draw)
            parts.append(FigurePart(label, drawn, stream=group.title, meaning=meaning))
    return parts + _time_figures(material, figures)


def _time_figures(material: Material, figures: Figures) -> list[FigurePart]:
    """Return the figure of the time of a step; none where no run has a log."""
    times = {name: [ms for run in material.runs if run.name == name for ms in milliseconds_per_step(run).values()]
             for name in material.methods}  # fmt: skip
    times = {name: values for name, values in times.items() if values}
    if not times:
        return []
    style = looks(material.methods)
    alt = "Milliseconds per step, median: " + "; ".join(f"{n} {statistics.median(v):.0f}" for n, v in times.items())
    drawn = figures.draw("time-a-step", alt, partial(draw_times, times=times, style=style), 120 + 24 * len(times))
    return [FigurePart("time per step", drawn, meaning="a dot for each round of each run; the bar ends at the median")]


# --- names ------------------------------------------------------------------------------------------------------------


def _in_turn(names: Iterable[str]) -> str:
    """Return what the rounds of a model used, which may change: `comprehensive, then representative`."""
    return ", then ".join(dict.fromkeys(names))


def _distinct(slugs: Sequence[str]) -> list[str]:
    """Return the slugs with a number after each that is a repetition."""
    made: list[str] = []
    for slug in slugs:
        tries = (slug or "one", *(f"{slug or 'one'}-{n}" for n in range(2, len(slugs) + 2)))
        made.append(next(name for name in tries if name not in made))
    return made


def _slug(text: str) -> str:
    """Return a text as part of a file's name: `sga+c` is `sga-plus-c`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("+", " plus ")).strip("-")
