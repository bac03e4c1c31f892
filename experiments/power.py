"""Compute from a pilot how many seeds tell two methods apart, and what the pilot itself can detect.

    python -m experiments.power runs/prostate                      # the first four seeds are the pilot
    python -m experiments.power runs/pilot --difference 1.5 --power 0.8 --out results/prostate/power.md

Two methods are compared by the mean over seeds of their difference in one measure, paired by seed: both have the same
split, first weights and batches. With s² the variance of that difference between seeds and c the part that patients
tested by several seeds have in common (smg.report.paired), n seeds have the standard error

    e(n) = √(s² / n + c)

and find a true difference by the rule of `experiments.decide`. A pilot in which each seed tests other patients cannot
know c. More seeds than there are folds test patients again, so a number beyond the folds is a lower bound; what was
detectable in the end is computed from all runs, and stands beside each undecided claim.
"""

from __future__ import annotations

import argparse
import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from experiments.claims import REPLAY, STREAMS, Comparison, by_seeds, measure, stream_of
from experiments.decide import MINIMAL, POWER, noncentrality, power_of
from experiments.mistakes import in_one_line
from smg.errors import SmgError
from smg.files import replacing
from smg.report.paired import combined, mean_of, patients_part
from smg.report.runs import Run, find_runs

PILOT = 4  # seeds; no bench is planned with fewer, with which intervals over both streams are wider
MOST = 200  # seeds
RUN_AT_MOST = 10  # seeds
MEASURES = ("BM", "FM")
REFERENCES = ("jm", "sga+c")
ALSO = ("a-gem", "der++")  # methods with replay beyond the paper's
BOTH = "both"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the pilot: a bench with at least two seeds of each method")
    parser.add_argument(
        "--seeds", type=int, default=PILOT, help=f"seeds of the pilot, the first ones; default: {PILOT}"
    )
    parser.add_argument(
        "--reference", action="append", help="a method that others are compared with; default: jm, sga+c"
    )
    parser.add_argument(
        "--difference", type=float, default=MINIMAL["dsc"], help="points of DSC to be found; default: 1.5"
    )
    parser.add_argument("--power", type=float, default=POWER, help="the probability of finding it; default: 0.8")
    parser.add_argument("--out", type=Path, help="write the page here, too")
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line")
    options = parser.parse_args()
    references = tuple(options.reference or REFERENCES)
    figures = needed(find_runs([options.bench]), options.seeds, references, options.difference, options.power)
    text = page(figures, options.difference, options.power)
    print(text, end="")
    if options.out:
        with replacing(options.out) as temporary:
            temporary.write_text(text)
    if options.json:
        print(json.dumps([figure.as_json() for figure in figures]))


@dataclass(frozen=True)
class Spread:
    """How a difference of two methods varies: between seeds, and by patients that seeds share. Squared points."""

    variance: float
    common: float = 0.0
    patients: float = 1.0  # degrees of freedom of `common`

    def after(self, seeds: int) -> tuple[float, float]:
        """Return the standard error of the mean over so many seeds, and its degrees of freedom."""
        own = (self.variance / seeds, float(seeds - 1))
        variance, freedom = combined(own, (self.common, self.patients))
        return math.sqrt(variance), freedom


@dataclass(frozen=True)
class Figure:
    """What the pilot says of one pair of methods in one measure on one stream, or on both."""

    reference: str
    method: str
    stream: str
    measure: str
    pilot: int  # seeds
    spread: Spread
    seeds: int | None  # needed; None if over MOST
    detectable: float  # with the pilot's seeds

    def as_json(self) -> dict[str, object]:
        keys = ("reference", "method", "stream", "measure", "pilot", "seeds", "detectable")
        return {key: getattr(self, key) for key in keys} | {"sd": math.sqrt(self.spread.variance)}


def needed(
    runs: Sequence[Run],
    pilot: int = PILOT,
    references: Sequence[str] = REFERENCES,
    difference: float = MINIMAL["dsc"],
    power: float = POWER,
) -> list[Figure]:
    """Return the seeds that every pair of a method and a reference needs, on each stream and on both together."""
    kept = sorted({run.seed for run in runs})[:pilot]
    runs = [run for run in runs if run.seed in kept and stream_of(run) in STREAMS]
    names = list(dict.fromkeys(run.name for run in runs))
    for reference in references:
        if reference not in names:
            raise SmgError(f"no run of {reference}; give --reference one of {', '.join(names)}")
    figures = []
    for reference, name, place, which in product(references, names, (*STREAMS, BOTH), MEASURES):
        if name == reference:
            continue
        streams = STREAMS if place == BOTH else (place,)
        if found := spread_of(runs, name, reference, streams, which):
            spread, seeds = found
            error, freedom = spread.after(seeds)
            least = error * noncentrality(freedom, power)
            wanted = seeds_needed(spread, difference, power)
            figures.append(Figure(reference, name, place, which, seeds, spread, wanted, least))
    if not figures:
        raise SmgError(f"no method has two seeds in common with {' or '.join(references)}; run more seeds")
    return figures


def pilot_of(runs: Sequence[Run]) -> list[Figure]:
    """Return what the first seeds of a bench say, of the pairs of methods that have all of them."""
    names = {run.name for run in runs}
    try:
        figures = needed(runs, references=[name for name in REFERENCES if name in names])
    except SmgError:
        return []
    return [figure for figure in figures if figure.pilot == PILOT]


def spread_of(
    runs: Sequence[Run], method: str, reference: str, streams: Sequence[str], which: str
) -> tuple[Spread, int] | None:
    """Return how the difference of two methods varies, and the number of seeds; None with fewer than two."""
    pairs = [(stream, Comparison(method, measure(which), reference)) for stream in streams]
    seeds, numbers = by_seeds(pairs, runs, "dsc")
    if len(seeds) < 2:
        return None
    means = [sum(map(mean_of, of)) / len(of) for of in numbers]
    centre = sum(means) / len(means)
    variance = sum((mean - centre) ** 2 for mean in means) / (len(means) - 1)
    common, patients = patients_part(numbers)
    return Spread(1e4 * variance, 1e4 * common, patients), len(seeds)


def seeds_needed(spread: Spread, difference: float, power: float) -> int | None:
    """Return the fewest seeds, at least PILOT, that find the difference with that probability; None if over MOST."""
    counts = range(PILOT, MOST + 1)
    place = bisect_left(counts, power, key=lambda n: power_of(difference, *spread.after(n)))
    return counts[place] if place < len(counts) else None


# --- as text ----------------------------------------------------------------------------------------------------------


def page(figures: Sequence[Figure], difference: float = MINIMAL["dsc"], power: float = POWER) -> str:
    """Return the page: for each reference a table of seeds needed, and what the pilot can detect."""
    seeds = pilot_seeds(figures)
    heads = list(product(MEASURES, (*STREAMS, BOTH)))
    parts = [
        f"# Seeds that tell {difference:g} points of DSC\n\n"
        f"From a pilot of {seeds} seeds: the seeds with which a true difference of {difference:g} points between two "
        f"methods is found with a probability of {100 * power:.0f} %, the standard deviation of the difference between "
        f"seeds in points, and after the arrow what these seeds detect. `python -m experiments.power BENCH` makes "
        "this page and says how.",
        in_short(figures, difference)
        + " Numbers of BM beyond the folds are lower bounds: the pilot's seeds test different patients, so it does not "
        "show how far patients that are tested again differ. Where FM on one stream needs over "
        f"{MOST} seeds although it scatters little between seeds, the held-out site has too few patients, whom every "
        "seed tests: more seeds do not help.",
    ]
    for reference in dict.fromkeys(figure.reference for figure in figures):
        here = {(f.method, f.measure, f.stream): f for f in figures if f.reference == reference}
        lines = [f"| against {reference} | " + " | ".join(f"{which}, {place}" for which, place in heads) + " |"]
        lines.append("|---|" + "---:|" * len(heads))
        for method in dict.fromkeys(name for name, _, _ in here):
            cells = [_cell(here.get((method, *head))) for head in heads]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def pilot_seeds(figures: Sequence[Figure]) -> str:
    """Return the number of seeds that the pairs of methods share, from the fewest to the most."""
    counts = sorted({figure.pilot for figure in figures})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def in_short(figures: Sequence[Figure], difference: float = MINIMAL["dsc"]) -> str:
    """Return for how many pairs of methods with replay the seeds suffice that we run at most, over both streams."""
    seeds = []
    for figure in figures:
        is_counted = figure.reference == REFERENCES[1] and figure.method == REFERENCES[0]  # the same pair, turned
        if figure.stream == BOTH and figure.method in (*REPLAY, *ALSO) and not is_counted:
            seeds.append(MOST + 1 if figure.seeds is None else figure.seeds)
    if not seeds:
        return ""
    seeds.sort()
    quarter = seeds[math.ceil(0.75 * len(seeds)) - 1]
    return (
        f"By a pilot of {pilot_seeds(figures)} seeds, {RUN_AT_MOST} seeds find a difference of {difference:g} points "
        f"of BM or FM over both streams in {sum(n <= RUN_AT_MOST for n in seeds)} of {len(seeds)} comparisons of two "
        f"methods with replay; {_number(quarter)} seeds would find it in three quarters of them. With four seeds a "
        "spread is itself known only to a factor of two."
    )


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    sd, seeds = math.sqrt(figure.spread.variance), MOST + 1 if figure.seeds is None else figure.seeds
    return f"{_number(seeds)} (sd {sd:.1f} → {figure.detectable:.1f})"


def _number(seeds: int) -> str:
    return f"over {MOST}" if seeds > MOST else str(seeds)


if __name__ == "__main__":
    with in_one_line():
        main()
