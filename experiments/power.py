"""Compute from a pilot how many seeds tell two methods apart, and what a number of seeds can detect.

    python -m experiments.power results/prostate-recommended
    python -m experiments.power runs/pilot --difference 1.5 --power 0.8

Two methods are compared by the mean over seeds of their difference in one measure, paired by seed: both have the same
split, first weights and batches. With σ the standard deviation of that difference between seeds, n seeds find a true
difference δ at the 5 % level (two-sided) with the probability

    P(|T| > t(0.975; n - 1)),   T noncentral t with n - 1 degrees of freedom and noncentrality δ √n / σ

A pilot of few seeds knows σ poorly, so σ² is the mean over all pairs of a method with the reference. The streams are
separate experiments; `both` is the mean of the two, whose σ² is a quarter of their sum.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from experiments.claims import stream_of
from experiments.mistakes import in_one_line
from smg.errors import SmgError
from smg.report.runs import Run, find_runs
from smg.report.text import print_table

LEVEL = 0.05
MOST = 200  # seeds
MEASURES = ("BM", "FM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the pilot: a bench with at least three seeds of each method")
    parser.add_argument("--reference", default="jm", help="the method that all others are compared with; default: jm")
    parser.add_argument("--difference", type=float, default=1.5, help="points of DSC to be found; default: 1.5")
    parser.add_argument("--power", type=float, default=0.8, help="the probability of finding it; default: 0.8")
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line")
    options = parser.parse_args()
    runs = find_runs([options.bench])
    figures = []
    for stream, measure in product([*dict.fromkeys(stream_of(run) for run in runs), "both"], MEASURES):
        spread = spread_of(runs, stream, measure, options.reference)
        needed = seeds_needed(spread, options.difference, options.power)
        here = len({run.seed for run in runs})
        least = detectable(spread, here, options.power)
        figures.append({"stream": stream, "measure": measure, "spread": spread, "seeds": needed, "detectable": least})
    heads = ("stream", "measure", "σ", f"seeds for {options.difference:g}", f"detectable with {here} seeds")
    print_table(heads, [_row(figure) for figure in figures])
    if options.json:
        print(json.dumps(figures))


def _row(figure: dict[str, object]) -> tuple[str, ...]:
    seeds = figure["seeds"]
    numbers = (
        f"{figure['spread']:.2f}",
        f"over {MOST}" if seeds is None else str(seeds),
        f"{figure['detectable']:.1f}",
    )
    return str(figure["stream"]), str(figure["measure"]), *numbers


def spread_of(runs: Sequence[Run], stream: str, measure: str, reference: str) -> float:
    """Return σ in points of DSC, pooled over all methods but the reference."""
    if stream == "both":
        streams = dict.fromkeys(stream_of(run) for run in runs)
        return math.sqrt(sum(spread_of(runs, one, measure, reference) ** 2 for one in streams)) / len(streams)
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if stream_of(run) == stream and (value := run.measure("dsc", measure)) is not None:
            values.setdefault(run.name, {})[run.seed] = 100 * value
    if reference not in values:
        raise SmgError(f"no run of {reference} on stream {stream}; give --reference one of {', '.join(values)}")
    variances = []
    for name, of in values.items():
        shared = sorted(of.keys() & values[reference].keys())
        if name != reference and len(shared) > 1:
            variances.append(np.var([of[seed] - values[reference][seed] for seed in shared], ddof=1))
    if not variances:
        raise SmgError(f"stream {stream}: no method has two seeds in common with {reference}; run more seeds")
    return math.sqrt(float(np.mean(variances)))


def power_of(seeds: int, difference: float, spread: float) -> float:
    """Return the probability that so many seeds find the difference."""
    from scipy.stats import nct, t

    if seeds < 2:
        return 0.0
    bound, centre = t.ppf(1 - LEVEL / 2, seeds - 1), difference * math.sqrt(seeds) / spread
    return float(nct.sf(bound, seeds - 1, centre) + nct.cdf(-bound, seeds - 1, centre))


def seeds_needed(spread: float, difference: float, power: float) -> int | None:
    """Return the fewest seeds that find the difference with the given probability; None if over 200."""
    return next((n for n in range(2, MOST + 1) if power_of(n, difference, spread) >= power), None)


def detectable(spread: float, seeds: int, power: float) -> float:
    """Return the smallest difference that so many seeds find with the given probability."""
    from scipy.optimize import brentq

    high = spread
    while power_of(seeds, high, spread) < power:
        high *= 2
    return float(brentq(lambda difference: power_of(seeds, difference, spread) - power, 0.0, high))


if __name__ == "__main__":
    with in_one_line():
        main()
