"""Differences between methods, pair by pair over subjects and seeds, with bootstrap intervals.

Methods of one stream and seed share their split, first weights and batches, so the same subject can be compared under
both. Every measure is linear in the subjects' values,

    BM  mean over learned sites s, over subjects of s, of  a[T]        FM  mean over the unseen site's subjects of  a[T]
    BT  mean over s < T, over subjects of s, of  a[T] - a[s]           FT  the same of  a[T] - a[T+1]

so a difference of measures is the mean of differences, over the subjects that have a value under both. Its 95 %
interval is that of

    mean  +  patients' deviation  +  t(n - 1) s / √n

over draws. Patients are weighted at random (a Bayesian bootstrap), each alike in all seeds whose split has it. Seeds
are too few to be drawn from: their n means have the standard deviation s, and t is Student's. So chance among the
patients of one seed is in both terms, and the interval errs on the wide side. One seed has no second term: its interval
speaks of other patients only, and is too narrow where they are few; nothing is certain by it. Where nothing varies,
as with one seed and one subject, or with runs that are the same, there is no interval.

A number over several streams has s in two ways: of the n means over all streams, and of each stream's own means as if
streams had nothing to do with one another, s² = Σ (share of the stream)² s²(stream). A few seeds in which one stream
happens to make up for another make the first small, so the wider of the two terms is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from smg.report.runs import Run
from smg.report.table import DIGITS, MEASURES, METRICS, in_markdown
from smg.sites.labels import first_class

Values = dict[str, dict[str, float]]  # site -> subject -> what a measure averages
DRAWS = 10_000
PRIOR = 4  # degrees of freedom that a variance known from elsewhere is worth


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
    def varies(self) -> bool:
        """Whether there is an interval at all, rounding aside."""
        return self.high - self.low > 1e-9

    @property
    def certain(self) -> bool:
        """Whether the interval leaves zero out, and is of more than one seed."""
        return self.varies and self.seeds > 1 and (self.low > 0 or self.high < 0)


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
                    pairs = [[values_of(here[name, s], metric, measure) for name in (method, reference)] for s in seeds]
                    strata = [apart(*pair) for pair in pairs]
                    if one := interval([[values] for values in strata], scale, draws, seed):
                        subjects = sum(len(site) for stratum in strata for site in stratum.values())
                        told = sum(any(stratum.values()) for stratum in strata)  # seeds that have a value
                        found.append(Difference(stream, method, metric, measure, *one, told, subjects))
    return found


def apart(ours: Values, theirs: Values) -> Values:
    """The differences of the subjects that both have a value for."""
    both = {site: [case for case in of if case in theirs.get(site, {})] for site, of in ours.items()}
    return {site: {case: ours[site][case] - theirs[site][case] for case in cases} for site, cases in both.items()}


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
    name = first_class(run.results)
    for row in run.results["subjects"]:
        value = row["classes"][name][metric]
        if value is not None:
            table.setdefault((row["round"], row["site"]), {})[row["subject"]] = value
    return table


def interval(
    seeds: Sequence[Sequence[Values]],
    scale: float = 1.0,
    draws: int = DRAWS,
    seed: int = 0,
    noise: float | None = None,
    streams: Sequence[str] = (),
) -> tuple[float, float, float] | None:
    """The mean over seeds, over what each has of numbers, over their sites and subjects, and its 95 % interval.

    noise: what the numbers' mean varies by from seed to seed, as a variance, where more is known of it than by s.
    streams: of each of a seed's numbers, if they are not all of one.
    """
    there = [[values for values in told if any(values.values())] for told in seeds]
    there = [told for told in there if told]
    if not there:
        return None
    rng = np.random.default_rng(seed)
    patients = sorted({(site, case) for told in there for values in told for site, of in values.items() for case in of})
    weight = {patient: rng.exponential(size=draws) for patient in patients}
    means = np.array([np.mean([mean_of(values) for values in told]) for told in there])
    total = np.mean([np.mean([_weighted(values, weight) for values in told], axis=0) for told in there], axis=0)
    if len(means) > 1:
        ways = [_moderated(len(means) - 1, float(means.var(ddof=1)), noise)]
        if len(set(streams)) > 1 and all(len(told) == len(streams) for told in there):
            ways.append(_moderated(*_streams_apart(there, streams), noise))
        freedom, variance = max(ways, key=lambda way: student.ppf(0.975, way[0]) * np.sqrt(way[1]))
        total += rng.standard_t(freedom, size=draws) * np.sqrt(variance / len(means))
    low, high = np.percentile(total, (2.5, 97.5))
    return scale * float(means.mean()), scale * float(low), scale * float(high)


def _moderated(freedom: float, variance: float, noise: float | None) -> tuple[float, float]:
    """Degrees of freedom and variance, with what is known of it from elsewhere."""
    if noise is None:
        return freedom, variance
    return freedom + PRIOR, (freedom * variance + PRIOR * noise) / (freedom + PRIOR)


def _streams_apart(there: Sequence[Sequence[Values]], streams: Sequence[str]) -> tuple[float, float]:
    """Degrees of freedom (Welch's) and variance of a seed's mean, by the variance of each stream's share of it."""
    numbers = np.array([[mean_of(values) for values in told] for told in there])  # [seeds, numbers]
    shares = np.array([numbers[:, [s == one for s in streams]].sum(axis=1) for one in dict.fromkeys(streams)])
    each = (shares / len(streams)).var(axis=1, ddof=1)
    variance = float(each.sum())
    return (len(there) - 1) * (variance**2 / float((each**2).sum()) if variance else 1.0), variance


def mean_of(values: Values) -> float:
    """Over sites, of the mean over the subjects of each."""
    means = [np.mean(list(of.values())) for of in values.values() if of]
    return float(np.mean(means)) if means else float("nan")


def _weighted(values: Values, weight: dict[tuple[str, str], np.ndarray]) -> np.ndarray:
    """The mean over sites of the weighted mean over subjects, for every draw."""
    sites = []
    for site, of in values.items():
        if not of:
            continue
        w = np.stack([weight[site, case] for case in of])
        sites.append((w * np.array(list(of.values()))[:, None]).sum(axis=0) / w.sum(axis=0))
    return np.asarray(np.mean(sites, axis=0))


def to_markdown(differences: Sequence[Difference], reference: str) -> str:
    """A table a stream: each method minus the reference, with its interval; in bold where that leaves zero out."""
    parts = []
    heads = [f"{measure} {METRICS[metric][0]}" for metric in METRICS for measure in MEASURES]
    for stream in dict.fromkeys(d.stream for d in differences):
        here = {(d.method, d.metric, d.measure): d for d in differences if d.stream == stream}
        lines = [
            f"**{stream.replace('|', 'unseen')}**: minus {reference}, with 95 % intervals, {_seeds(here.values())}",
            "",
        ]
        lines += ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        for method in dict.fromkeys(name for name, _, _ in here):
            cells = [_cell(here.get((method, metric, measure))) for metric in METRICS for measure in MEASURES]
            lines.append(f"| {in_markdown(method)} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _seeds(here: Iterable[Difference]) -> str:
    """Over how many seeds; a single one has no word for what another run would have given."""
    counts = sorted({d.seeds for d in here})
    if counts == [1]:
        return "1 seed: of chance among patients, not of chance among runs"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _cell(one: Difference | None) -> str:
    if one is None:
        return "-"
    digits = DIGITS[one.metric]
    text = f"{one.mean:+.{digits}f}" + (f" [{one.low:+.{digits}f}, {one.high:+.{digits}f}]" if one.varies else "")
    return f"**{text}**" if one.certain else text
