"""A fair baseline: GEM's margin and ISGM's inner rate, chosen on validation parts, and what the choice changed.

The settings of a method that have the highest mean of BM and FM over both streams and all seeds are chosen. The choice
is made before a test part is looked at, and by the mean alone: with two seeds an interval seldom excludes zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.bench_pages import wrapped
from experiments.claims import over_streams, stream_of
from experiments.decide import Found
from smg.report.runs import Run, find_runs

BENCH = "baselines"
MEASURES = ("BM", "FM")
DEFAULTS = {"gem": "margin 0.5", "isgm": "epsilon 0.5, the optimiser's own rate"}


ABOUT = """**A fair baseline**: GEM's margin, and ISGM's inner rate and epsilon. Both streams, on validation parts; bold
is the best mean of BM and FM."""


def page(results: Path) -> str:
    """Return a table of the settings tried, with the chosen one of each method in bold; empty if none was."""
    folder = results / BENCH
    runs = find_runs([folder]) if folder.is_dir() else []
    heads = (
        "| on validation parts | seeds | BM | FM | BM over the default | FM over the default |",
        "|---|---|" + "---:|" * 4,
    )
    lines = [*heads]
    for method, default in DEFAULTS.items():
        here = [run for run in runs if run.results.method == method]
        chosen = best(here)
        for name in dict.fromkeys(run.name for run in here):
            what = f"{name} ({default})" if name == method else name
            ours = [run for run in here if run.name == name]
            seeds = ", ".join(map(str, sorted({run.seed for run in ours})))
            means = [f"{level(ours, which):.1f}" for which in MEASURES]
            apart = ["" if name == method else one.text() if one else "-" for one in over_default(name, here)]
            lines.append(f"| {f'**{what}**' if name == chosen else what} | {seeds} | {' | '.join([*means, *apart])} |")
    return f"{ABOUT}\n\n" + "\n".join(lines) if runs else ""


def in_short(results: Path) -> str:
    """Return a sentence for each method: its best settings on validation parts, and their lead over the default."""
    folder = results / BENCH
    runs = find_runs([folder]) if folder.is_dir() else []
    said, unlike = [], []
    for method, default in DEFAULTS.items():
        here = [run for run in runs if run.results.method == method]
        if (chosen := best(here)) is None:
            continue
        if chosen == method:
            said.append(f"`{method}` is best as it is ({default})")
            continue
        unlike.append(method)
        leads = [
            f"{which} {one.text()}" for which, one in zip(MEASURES, over_default(chosen, here), strict=True) if one
        ]
        said.append(f"`{chosen}` is best, over its default ({default}) by {' and '.join(leads)}")
    link = f"([all that was tried](results/{BENCH}/README.md))"
    judged = f" The claims are judged with the default of {' and '.join(unlike)}." if unlike else ""
    return wrapped(f"On validation parts, {'; '.join(said)} {link}.{judged}") if said else ""


def over_default(name: str, here: Sequence[Run]) -> list[Found | None]:
    """Return BM and FM of settings minus those of the method's default, over both streams."""
    return [over_streams(name, here[0].results.method, which, here) for which in MEASURES]


def best(runs: Sequence[Run]) -> str | None:
    """Return the name with the highest mean of BM and FM, if all names have the same runs."""
    names = list(dict.fromkeys(run.name for run in runs))
    made = {name: {(stream_of(run), run.seed) for run in runs if run.name == name} for name in names}
    if not names or any(of != made[names[0]] for of in made.values()):
        return None
    score = {name: np.mean([level([r for r in runs if r.name == name], which) for which in MEASURES]) for name in names}
    return max(names, key=lambda name: score[name])


def level(runs: Sequence[Run], which: str) -> float:
    """Return a measure in % of DSC, the mean over runs."""
    values = [value for run in runs if (value := run.measure("dsc", which)) is not None]
    return 100 * float(np.mean(values)) if values else float("nan")
