"""The page's sections, each a function from the material to what its part of the template shows."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from smg.evaluation.measures import FORMULAS
from smg.report.answer import Verdict, verdict
from smg.report.buffer import exemplars, feature_map
from smg.report.charts import draw_features, draw_measures, draw_series, draw_times, fill_matrices
from smg.report.collect import Material, Model, Record, milliseconds_a_step, told_stream
from smg.report.costs import COLUMNS, cost_tables
from smg.report.curves import curve_of, draw_curves
from smg.report.figures import Figures
from smg.report.matrices import bounds_of, heat_rows, kept_row, matrix_of, sites_of
from smg.report.objective import COSINES, LOSSES, logged, rounds_begin
from smg.report.runs import Run
from smg.report.style import looks
from smg.report.table import DIGITS, MEASURES, METRICS, Cell, StreamTable, cells, paper_tables, printed
from smg.sites.labels import first_class

Part = dict[str, Any]
MEANING = {
    "BM": ("Backward measure", "mean accuracy over the sites learned, after the last of them"),
    "BT": ("Backward transfer", "what later sites did to the earlier ones: forgetting is a fall of DSC, a rise of ASD"),
    "FM": ("Forward measure", "accuracy on the unseen site, after the last site learned"),
    "FT": ("Forward transfer", "what is missing on the unseen site to a network that has learned it too"),
}


def answer(material: Material) -> list[Part]:
    """1, 2: each stream's answers on the first screen, the sentence, who forgot what, and the paper's table."""
    parts = []
    for table in paper_tables(material.runs):
        runs = [run for run in material.runs if run.stream == table.stream]
        rows = [{"name": n, "bound": n in table.bounds, "seeds": _listed(table.seeds[n]),
                 "cells": [_cell(c, d) for c, d in cells(row)]} for n, row in table.rows.items()]  # fmt: skip
        seeds = sorted({seed for some in table.seeds.values() for seed in some})
        title = ", ".join(filter(None, [told_stream(runs[0].results["stream"]), table.of]))
        parts.append({"title": title, "verdict": _judged(table, runs), "rows": rows, "seeds": seeds, "even": table.even,
                      "scale": table.scale, "kept": _kept(table, runs),
                      "marked": any(cell.best for row in table.rows.values() for cell in row.values())})  # fmt: skip
    return parts


def _kept(table: StreamTable, runs: list[Run]) -> Part:
    """What each method has at the end of every site, and what it lost of it since: who forgot what."""
    order, sites = runs[0].results["stream"]["order"], sites_of(runs[0])
    made = {name: matrix_of([run for run in runs if run.name == name], "dsc", METRICS["dsc"][1]) for name in table.rows}
    low, high = bounds_of([values[len(order) - 1] for values in made.values()])
    rows = [{"name": n, "bound": n in table.bounds, "cells": kept_row(v, sites, len(order), low, high, DIGITS["dsc"])}
            for n, v in made.items()]  # fmt: skip
    return {"learned": order, "unseen": sites[len(order) :], "rows": rows}


def _judged(table: StreamTable, runs: list[Run]) -> Verdict:
    """By the seeds that all methods have, where some have more."""
    if table.even:
        return verdict(table, runs)
    if not table.common:
        told = "The methods have no seed in common, so they cannot be compared yet."
        return Verdict(told, told, told)
    shared = [run for run in runs if run.seed in table.common]
    made = verdict(paper_tables(shared)[0], shared)
    return replace(made, sentence=f"By seed {_listed(table.common)}, which all methods have: {made.sentence}")


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _cell(cell: Cell, digits: int) -> Part:
    if cell.mean is None:
        return {"mean": "–", "spread": "", "best": False}
    spread = "" if cell.spread is None else f"± {cell.spread:.{digits}f}"
    return {"mean": printed(cell.mean, digits).replace("-", "−"), "spread": spread, "best": cell.best}


def measure_heads() -> list[Part]:
    """The columns of the table, each with its formula."""
    return [{"name": m, "title": MEANING[m][0], "meaning": MEANING[m][1], "formula": FORMULAS[m], "metric": metric}
            for metric in METRICS for m in MEASURES]  # fmt: skip


def costs(material: Material) -> list[Part]:
    """2, too: what each method costs and gives beside the measures, where the runs say it."""
    titles = {run.stream: told_stream(run.results["stream"]) for run in material.runs}
    return [
        {"title": titles[table.stream],
         "rows": [{"name": name, "cells": [_cell(c, column.digits) for c, column in zip(row, COLUMNS, strict=True)]}
                  for name, row in table.rows.items()]}
        for table in cost_tables(material.runs)
    ]  # fmt: skip


def history(models: Sequence[Model]) -> list[Part]:
    """For a model: what each round reached on its own test part, and did to the earlier sites' exemplars."""
    parts = []
    for name, model in _named(models):
        rows, falls = [], []
        for record in model.rounds:
            earlier = {site: (100 * dsc["before"], 100 * dsc["after"]) for site, dsc in record["earlier"].items()}
            falls += [(before - after, site, record) for site, (before, after) in earlier.items()]
            rows.append({"record": record, "dsc": _mean_of(record, "dsc", 100.0), "asd": _mean_of(record, "asd", 1.0),
                         "earlier": earlier})  # fmt: skip
        parts.append({"name": name, "rows": rows, "aside": model.aside, "sentence": _fell(falls, rows)})
    return parts


def _mean_of(record: Record, metric: str, scale: float) -> float | None:
    told = [row["classes"][first_class(record)][metric] for row in record["test"]]
    values = [scale * value for value in told if value is not None]
    return statistics.fmean(values) if values else None


def _fell(falls: list[tuple[float, str, Record]], rows: list[Part]) -> str:
    if not rows:
        return "It has learned nothing yet."
    count = f"It has learned {len(rows)} site{'s' * (len(rows) > 1)}"
    if not falls:
        kept = "no exemplar of an earlier site was kept" if len(rows) > 1 else "there was nothing to forget yet"
        return f"{count}; {kept}, so what it forgot cannot be told."
    most, site, record = max(falls, key=lambda fall: fall[0])
    if most <= 0:
        return f"{count}, and no round lowered the DSC of an earlier site's exemplars."
    where = f"{site}, in round {record['round']} ({record['site']})"
    return f"{count}; the largest fall of an earlier site's exemplars was {most:.1f} points of DSC: {where}."


def at_a_glance(material: Material, figures: Figures) -> list[Part]:
    """3: BM against FM, where there are methods to compare."""
    style, parts = looks(material.methods), []
    for number, table in enumerate(paper_tables(material.runs), start=1):
        if sum(row["dsc", "FM"].mean is not None for row in table.rows.values()) < 2:
            continue
        alt = f"Memory against generalisation, stream {table.stream}: " + "; ".join(
            f"{name} BM {row['dsc', 'BM'].text()}, FM {row['dsc', 'FM'].text()}" for name, row in table.rows.items()
        )
        drawn = figures.draw(f"measures-{number}", alt, partial(draw_measures, table=table, style=style), height=360)
        parts.append({"title": _title(material, table.stream), "figure": drawn, "scale": table.scale})
    return parts


def curves(material: Material, figures: Figures) -> list[Part]:
    """4: DSC on the first and on the unseen site as rounds go by."""
    style, parts = looks(material.methods), []
    for number, stream in enumerate(material.streams, start=1):
        by_name = {name: runs for name in material.methods if (runs := material.of(stream, name))}
        told = next(iter(by_name.values()))[0].results["stream"]
        sites = [("first", told["order"][0], "Memory: site {}, the first learned"),
                 ("unseen", told["unseen"], "Generalisation: site {}, never seen")]  # fmt: skip
        for place, site, title in sites:
            if site is None:
                continue
            made = {name: curve_of(runs, site) for name, runs in by_name.items()}
            ends = "; ".join(f"{n} {c.means[-1]:.1f} %" for n, c in made.items() if c.means[-1] is not None)
            alt = f"DSC on site {site} as sites are learned, stream {stream}. At the end: {ends}"
            draw = partial(draw_curves, curves=made, style=style, order=told["order"])
            drawn = figures.draw(f"curve-{place}-{number}", alt, draw, height=330)
            parts.append({"title": title.format(site), "stream": told_stream(told), "figure": drawn})
    return parts


def matrices(material: Material, figures: Figures) -> list[Part]:
    """5: heat maps, one a method, on one scale for each stream and metric."""
    parts = []
    for number, stream in enumerate(material.streams, start=1):
        for metric, (head, scale, _) in METRICS.items():
            made = {
                name: matrix_of(runs, metric, scale) for name in material.methods if (runs := material.of(stream, name))
            }
            sites = sites_of(next(run for run in material.runs if run.stream == stream))
            low, high = bounds_of(list(made.values()))
            digits = DIGITS[metric]
            maps = [{"name": n, "rows": heat_rows(values, sites, low, high, digits)} for n, values in made.items()]
            fill = partial(fill_matrices, matrices=made, sites=sites, low=low, high=high)
            columns, rows = min(4, len(made)), -(-len(made) // 4)
            width, height = 60 + (34 * len(sites) + 60) * columns, 40 + (40 + 24 * len(sites)) * rows
            drawn = figures.compose(f"matrix-{metric}-{number}", head, fill, width, height, inline=False)
            part = {"metric": metric, "head": head, "title": _title(material, stream), "sites": sites, "maps": maps}
            parts.append(part | {"low": f"{low:.{digits}f}", "high": f"{high:.{digits}f}", "figure": drawn})
    return parts


def hint(material: Material, asked: bool) -> str:
    """In the place of pictures: why there are none. Nothing where there is nothing to draw them with."""
    if not asked and any(material.records.values()):
        return "Left out, since they would show patients. To put them in, with the scans the runs were made from:"
    return "The weights of these runs' rounds are not beside their results." if asked and material.runs else ""


def buffer(material: Material, figures: Figures) -> list[Part]:
    """7: what each method kept, for its first seed on each stream; and what each model keeps."""
    parts = []
    sources: list[tuple[str, str, Any, Sequence[Record]]] = []
    for stream in material.streams:
        for name in material.methods:
            for run in material.of(stream, name)[:1]:
                label = f"{name}, {told_stream(run.results['stream'])}, seed {run.seed}"
                sources.append((label, _slug(f"{stream}-{name}"), run.folder / "model", material.records[run.folder]))
    for name, model in _named(material.models):
        sources.append((f"model {name}", _slug(f"model-{name}"), model.folder, model.rounds))
    for (label, _, folder, rounds), slug in zip(sources, _apart([slug for _, slug, _, _ in sources]), strict=True):
        kept, spread = exemplars(rounds), feature_map(rounds)
        if spread is None:
            continue
        alt = f"Features of {sum(map(len, spread.points.values()))} subjects by site, those kept ringed: {label}"
        draw = partial(draw_features, points=spread.points, chosen=spread.chosen)
        drawn = figures.draw(f"features-{slug}", alt, draw, height=340)
        parts.append({"label": label, "slug": slug, "figure": drawn, "kept": kept, "told": f"{100 * spread.told:.0f}",
                      "policy": _each(r["selection"]["policy"] for r in rounds), "folder": folder,
                      "rounds": rounds})  # fmt: skip
    return parts


def _each(names: Iterable[str]) -> str:
    """Of a model's rounds, which need not be alike: `comprehensive, then representative`."""
    return ", then ".join(dict.fromkeys(names))


def objective(material: Material, figures: Figures) -> list[Part]:
    """8: cosines, losses and the time of a step."""
    parts: list[Part] = []
    groups: list[tuple[str, str, dict[str, list[Sequence[Record]]]]] = []
    for number, stream in enumerate(material.streams, start=1):
        here = {n: [material.records[run.folder] for run in material.of(stream, n)] for n in material.methods}
        groups.append((str(number), _title(material, stream), {n: [r for r in runs if r] for n, runs in here.items()}))
    for name, model in _named(material.models):
        method = _each(record["config"]["method"] for record in model.rounds)
        groups.append((_slug(name), f"model {name}", {method: [model.rounds]}))
    for (_, title, rounds), slug in zip(groups, _apart([slug for slug, _, _ in groups]), strict=True):
        lines = logged(rounds)
        style = looks(list(rounds))
        begun = next((rounds_begin(runs[0]) for runs in rounds.values() if runs), [])
        for key, made in lines.items():
            label, meaning = (COSINES | LOSSES)[key]
            ends = "; ".join(f"{n} {float(np.nanmean(y[-10:])):.2f}" for n, (_, y) in made.items())
            draw = partial(draw_series, series=made, style=style, rounds=begun, label=label)
            drawn = figures.draw(f"{_slug(key)}-{slug}", f"{label} over iterations, {title}. At the end: {ends}", draw)
            parts.append({"title": label, "meaning": meaning, "stream": title, "figure": drawn})
    return parts + _times(material, figures)


def _times(material: Material, figures: Figures) -> list[Part]:
    paces = {name: [ms for run in material.runs if run.name == name for ms in milliseconds_a_step(run).values()]
             for name in material.methods}  # fmt: skip
    paces = {name: values for name, values in paces.items() if values}
    if not paces:
        return []
    style = looks(material.methods)
    alt = "Milliseconds a step, median: " + "; ".join(f"{n} {statistics.median(v):.0f}" for n, v in paces.items())
    drawn = figures.draw("time-a-step", alt, partial(draw_times, times=paces, style=style), 120 + 24 * len(paces))
    meaning = "a dot for each round of each run; the bar ends at the median"
    return [{"title": "time a step", "meaning": meaning, "stream": "", "figure": drawn}]


def _title(material: Material, stream: str) -> str:
    return told_stream(next(run for run in material.runs if run.stream == stream).results["stream"])


def _named(models: Sequence[Model]) -> list[tuple[str, Model]]:
    """Models by their folders' names, with as much of the path as tells two of them apart."""
    paths = [model.folder.resolve() for model in models]
    depth = next(n for n in range(1, 100) if n == 99 or len({path.parts[-n:] for path in paths}) == len(set(paths)))
    return [("/".join(path.parts[-depth:]), model) for path, model in zip(paths, models, strict=True)]


def _apart(slugs: Sequence[str]) -> list[str]:
    """Each once: a second of one name has a number."""
    made: list[str] = []
    for slug in slugs:
        tries = (slug or "one", *(f"{slug or 'one'}-{n}" for n in range(2, len(slugs) + 2)))
        made.append(next(name for name in tries if name not in made))
    return made


def _slug(text: str) -> str:
    """A file's name of a method's, which may hold anything: `sga+c` is `sga-plus-c`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("+", " plus ")).strip("-")
