"""Differences between methods, pair by pair over subjects and seeds, with bootstrap intervals.

Methods of one stream and seed share their split, first weights and batches, so the same subject can be compared under
both. Every measure is linear in the subjects' values,

    BM  mean over learned sites s, over subjects of s, of  a[T]        FM  mean over the unseen site's subjects of  a[T]
    BT  mean over s < T, over subjects of s, of  a[T] - a[s]           FT  the same of  a[T] - a[T+1]

so a difference of measures is the mean of differences. An interval resamples seeds, and within each seed the subjects
of each site: it speaks of other splits, initialisations and patients of these hospitals, not of other hospitals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smg.report.runs import Run
from smg.report.table import MEASURES, METRICS

Values = dict[str, dict[str, float]]  # site -> subject -> what a measure averages
DRAWS = 10_000


@dataclass(frozen=True)
class Difference:
    """A method's measure minus the reference's, in the unit of the table, with its 95 % interval."""

    stream: str
    method: str
    metric: str
    measure: str
    mean: float
    low: float
    high: float
    seeds: int
    subjects: int

    @property
    def certain(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def paired_differences(runs: Sequence[Run], reference: str, draws: int = DRAWS, seed: int = 0) -> list[Difference]:
    """Of every method to `reference`, on each stream, over the seeds that both have."""
    found = []
    for stream in dict.fromkeys(run.stream for run in runs):
        here = {(run.name, run.seed): run for run in runs if run.stream == stream}
        for method in dict.fromkeys(name for name, _ in here):
            seeds = [s for name, s in here if name == method and (reference, s) in here]
            if method == reference or not seeds:
                continue
            for metric, (_, scale, _) in METRICS.items():
                for measure in MEASURES:
                    strata = [_apart(here[method, s], here[reference, s], metric, measure) for s in seeds]
                    if one := interval([x for x in strata if x], scale, draws, seed):
                        subjects = sum(len(site) for stratum in strata for site in stratum)
                        found.append(Difference(stream, method, metric, measure, *one, len(seeds), subjects))
    return found


def _apart(run: Run, reference: Run, metric: str, measure: str) -> list[np.ndarray]:
    """For each site, the differences of the subjects that both runs have a value for."""
    ours, theirs = values_of(run, metric, measure), values_of(reference, metric, measure)
    sites = [[v - theirs[s][case] for case, v in of.items() if case in theirs.get(s, {})] for s, of in ours.items()]
    return [np.array(site) for site in sites if site]


def values_of(run: Run, metric: str, measure: str) -> Values:
    """What a run's measure is the mean of, over sites and then over the subjects of each."""
    stream = run.results["stream"]
    order, unseen = stream["order"], stream["unseen"]
    last = order[-1]
    learned = {"BM": order, "BT": order[:-1]}.get(measure, [unseen] if unseen else [])
    table = by_round(run, metric)
    values: Values = {}
    for site in learned:
        end = table.get((last, site), {})
        before = {"BT": table.get((site, site), {}), "FT": table.get((unseen, site), {})}.get(measure)
        pairs = {
            case: v if before is None else v - before[case]
            for case, v in end.items()
            if before is None or case in before
        }
        values[site] = pairs
    return values


def by_round(run: Run, metric: str) -> dict[tuple[str, str], dict[str, float]]:
    """(round, site) -> subject -> value, of the first class; where there is no value, no entry."""
    table: dict[tuple[str, str], dict[str, float]] = {}
    for row in run.results["subjects"]:
        value = next(iter(row["classes"].values()))[metric]
        if value is not None:
            table.setdefault((row["round"], row["site"]), {})[row["subject"]] = value
    return table


def interval(
    strata: Sequence[Sequence[np.ndarray]], scale: float, draws: int, seed: int
) -> tuple[float, float, float] | None:
    """Mean, and 2.5th and 97.5th percentile over bootstrap draws: of seeds, and of subjects within site and seed."""
    if not strata:
        return None
    rng = np.random.default_rng(seed)
    mean = float(np.mean([np.mean([site.mean() for site in sites]) for sites in strata]))
    total = np.zeros(draws)
    for _ in strata:  # as many seeds are drawn as there are
        drawn = np.stack([_resampled(sites, rng, draws) for sites in strata])
        total += drawn[rng.integers(len(strata), size=draws), np.arange(draws)]
    low, high = np.percentile(total / len(strata), (2.5, 97.5))
    return scale * mean, scale * float(low), scale * float(high)


def _resampled(sites: Sequence[np.ndarray], rng: np.random.Generator, draws: int) -> np.ndarray:
    means = [site[rng.integers(len(site), size=(draws, len(site)))].mean(axis=1) for site in sites]
    return np.mean(means, axis=0)


def to_markdown(differences: Sequence[Difference], reference: str) -> str:
    """A table a stream: each method minus the reference, with its interval; in bold where that leaves zero out."""
    parts = []
    heads = [f"{measure} {METRICS[metric][0]}" for metric in METRICS for measure in MEASURES]
    for stream in dict.fromkeys(d.stream for d in differences):
        here = {(d.method, d.metric, d.measure): d for d in differences if d.stream == stream}
        lines = [f"**{stream.replace('|', 'unseen')}**: minus {reference}, with 95 % intervals", ""]
        lines += ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        for method in dict.fromkeys(name for name, _, _ in here):
            cells = [_cell(here.get((method, metric, measure))) for metric in METRICS for measure in MEASURES]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cell(one: Difference | None) -> str:
    if one is None:
        return "-"
    digits = 1 if one.metric == "dsc" else 2
    text = f"{one.mean:+.{digits}f} [{one.low:+.{digits}f}, {one.high:+.{digits}f}]"
    return f"**{text}**" if one.certain else text
