"""Paired differences between methods, over subjects and seeds, with bootstrap intervals.

Methods of one stream and seed share their split, initial weights and batches, so each subject can be compared under
both methods. Every measure is linear in the values of the subjects:

    BM  mean over learned sites s, over subjects of s, of  a[T]
    BT  mean over s < T, over subjects of s, of  a[T] - a[s]
    FM  mean over subjects of the held-out site of  a[T]
    FT  mean over subjects of the held-out site of  a[T] - a[T+1]

A difference of measures is therefore the mean of differences, over the subjects that have a value under both methods.
The 95 % interval is taken from draws of

    mean  +  deviation due to patients  +  t(n - 1) s / √n

The patients are weighted at random (a Bayesian bootstrap); a patient has the same weight in every seed that has it in
its test part. There are too few seeds to draw from. Their n means have the standard deviation s, and t is Student's.
Chance among the patients of one seed is in both terms, so the interval tends to be too wide.

A single seed has no second term. Its interval covers other patients but not other runs, and it is too narrow where
patients are few, so no difference is called significant by it. Where nothing varies (one seed with one subject, or
identical runs) there is no interval.

A number over several streams has two estimates of s: from the n means over all streams, and from the means of each
stream as if streams were independent, s² = Σ (share of the stream)² s²(stream). With few seeds, one stream may balance
another by chance and make the first estimate too small, so the larger of the two terms is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED
from smg.report.runs import Run
from smg.report.table import columns, markdown_head, markdown_row

Values = dict[str, dict[str, float]]  # site -> subject -> the value that a measure averages
DRAWS = 10_000
PRIOR = 4  # degrees of freedom given to a variance that is known from other runs


@dataclass(frozen=True)
class Difference:
    """A method's measure minus that of the reference method, in the unit of the table, with its 95 % interval."""

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
    def varies(self) -> bool:
        """Return whether there is an interval, apart from rounding."""
        return self.high - self.low > 1e-9

    @property
    def certain(self) -> bool:
        """Return whether the interval excludes zero and comes from more than one seed."""
        return self.varies and self.seeds > 1 and (self.low > 0 or self.high < 0)


def paired_differences(
    runs: Sequence[Run], reference: str, draws: int = DRAWS, seed: int = 0, metrics: Sequence[str] = tuple(COMPARED)
) -> list[Difference]:
    """Return the differences of every method to `reference`, on each stream, over the seeds that both have."""
    found = []
    for stream in dict.fromkeys(run.stream for run in runs):
        here = {(run.name, run.seed): run for run in runs if run.stream == stream}
        for method in dict.fromkeys(name for name, _ in here):
            seeds = [s for name, s in here if name == method and (reference, s) in here]
            if method == reference or not seeds:
                continue
            for metric, entry in ((name, COMPARED[name]) for name in metrics):
                for measure in MEASURES:
                    pairs = [[values_of(here[name, s], metric, measure) for name in (method, reference)] for s in seeds]
                    strata = [apart(*pair) for pair in pairs]
                    if one := interval([[values] for values in strata], entry.scale, draws, seed):
                        subjects = sum(len(site) for stratum in strata for site in stratum.values())
                        with_value = sum(any(stratum.values()) for stratum in strata)  # seeds
                        found.append(Difference(stream, method, metric, measure, *one, with_value, subjects))
    return found


def apart(ours: Values, theirs: Values) -> Values:
    """Return the differences of the subjects that have a value in both."""
    both = {site: [case for case in of if case in theirs.get(site, {})] for site, of in ours.items()}
    return {site: {case: ours[site][case] - theirs[site][case] for case in cases} for site, cases in both.items()}


def values_of(run: Run, metric: str, measure: str) -> Values:
    """Return the values whose mean over sites, and over the subjects of each site, is a run's measure."""
    stream, entry, table = run.results.stream, MEASURES[measure], by_round(run, metric)
    values: Values = {}
    for site in entry.sites(stream.order, stream.unseen):
        values[site] = table.get((stream.order[-1], site), {})
        if entry.is_transfer:
            before = table.get((site, site), {})
            values[site] = {case: value - before[case] for case, value in values[site].items() if case in before}
    return values


def by_round(run: Run, metric: str) -> dict[tuple[str, str], dict[str, float]]:
    """Return (round, site) -> subject -> value of the first class; a subject without a value has no entry."""
    table: dict[tuple[str, str], dict[str, float]] = {}
    name = run.first_class
    for row in run.results.subjects:
        value = row.classes[name].get(metric)
        if value is not None:
            table.setdefault((row.round, row.site), {})[row.subject] = value
    return table


def interval(
    seeds: Sequence[Sequence[Values]],
    scale: float = 1.0,
    draws: int = DRAWS,
    seed: int = 0,
    noise: float | None = None,
    streams: Sequence[str] = (),
) -> tuple[float, float, float] | None:
    """Return the mean over seeds and its 95 % interval (mean, low, high); None where no subject has a value.

    seeds: for each seed its numbers, each given by the values of its sites and subjects.
    noise: variance of a seed's mean from seed to seed, where it is known from more runs than these.
    streams: the stream of each number of a seed, where they belong to several.
    """
    there = [[values for values in numbers if any(values.values())] for numbers in seeds]
    there = [numbers for numbers in there if numbers]
    if not there:
        return None
    rng = np.random.default_rng(seed)
    patients = sorted({(site, case) for numbers in there for of in numbers for site in of for case in of[site]})
    weight = {patient: rng.exponential(size=draws) for patient in patients}
    means = np.array([np.mean([mean_of(values) for values in numbers]) for numbers in there])
    total = np.mean([np.mean([_weighted(values, weight) for values in numbers], axis=0) for numbers in there], axis=0)
    if len(means) > 1:
        estimates = [_moderated(len(means) - 1, float(means.var(ddof=1)), noise)]
        if len(set(streams)) > 1 and all(len(numbers) == len(streams) for numbers in there):
            estimates.append(_moderated(*_independent_streams(there, streams), noise))
        freedom, variance = max(estimates, key=lambda one: student.ppf(0.975, one[0]) * np.sqrt(one[1]))
        total += rng.standard_t(freedom, size=draws) * np.sqrt(variance / len(means))
    low, high = np.percentile(total, (2.5, 97.5))
    return scale * float(means.mean()), scale * float(low), scale * float(high)


def _moderated(freedom: float, variance: float, noise: float | None) -> tuple[float, float]:
    """Return degrees of freedom and variance, pooled with a variance known from other runs."""
    if noise is None:
        return freedom, variance
    return freedom + PRIOR, (freedom * variance + PRIOR * noise) / (freedom + PRIOR)


def _independent_streams(there: Sequence[Sequence[Values]], streams: Sequence[str]) -> tuple[float, float]:
    """Return degrees of freedom (Welch's) and variance of a seed's mean, as if its streams were independent."""
    numbers = np.array([[mean_of(values) for values in row] for row in there])  # [seeds, numbers]
    shares = np.array([numbers[:, [s == one for s in streams]].sum(axis=1) for one in dict.fromkeys(streams)])
    each = (shares / len(streams)).var(axis=1, ddof=1)
    variance = float(each.sum())
    return (len(there) - 1) * (variance**2 / float((each**2).sum()) if variance else 1.0), variance


def mean_of(values: Values) -> float:
    """Return the mean over sites of the mean over the subjects of each."""
    means = [np.mean(list(of.values())) for of in values.values() if of]
    return float(np.mean(means)) if means else float("nan")


def _weighted(values: Values, weight: dict[tuple[str, str], np.ndarray]) -> np.ndarray:
    """Return, for every draw, the mean over sites of the weighted mean over subjects."""
    sites = []
    for site, of in values.items():
        if not of:
            continue
        w = np.stack([weight[site, case] for case in of])
        sites.append((w * np.array(list(of.values()))[:, None]).sum(axis=0) / w.sum(axis=0))
    return np.asarray(np.mean(sites, axis=0))


def to_markdown(differences: Sequence[Difference], reference: str) -> str:
    """Return one table for each stream: each method minus the reference, in bold where the interval excludes zero."""
    parts = []
    for stream in dict.fromkeys(d.stream for d in differences):
        here = {(d.method, d.metric, d.measure): d for d in differences if d.stream == stream}
        title = f"**{stream.replace('|', 'unseen')}**: minus {reference}, with 95 % intervals, {_seeds(here.values())}"
        lines = [title, "", *markdown_head(columns())]
        for method in dict.fromkeys(name for name, _, _ in here):
            texts = [_text(here.get((method, metric, measure))) for metric in COMPARED for measure in MEASURES]
            lines.append(markdown_row(method, texts))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _seeds(here: Iterable[Difference]) -> str:
    """Return the number of seeds, with a warning where there is only one."""
    counts = sorted({d.seeds for d in here})
    if counts == [1]:
        return "1 seed: the intervals cover chance among patients, not chance among runs"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _text(one: Difference | None) -> str:
    if one is None:
        return "-"
    digits = COMPARED[one.metric].digits
    text = f"{one.mean:+.{digits}f}" + (f" [{one.low:+.{digits}f}, {one.high:+.{digits}f}]" if one.varies else "")
    return f"**{text}**" if one.certain else text
