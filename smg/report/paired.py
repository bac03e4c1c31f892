"""Paired differences between methods, over subjects and seeds, with 95 % intervals.

Methods of one stream and seed share their split, initial weights and batches, so each subject can be compared under
both methods. Every measure is linear in the values of the subjects:

    BM  mean over learned sites s, over subjects of s, of  a[T]
    BT  mean over s < T, over subjects of s, of  a[T] - a[s]
    FM  mean over subjects of the held-out site of  a[T]
    FT  mean over subjects of the held-out site of  a[T] - a[T+1]

A difference of measures is therefore the mean of differences, over the subjects that have a value under both methods.
It varies for two reasons: another seed trains another network, and other patients may be tested. With m[k] the mean of
seed k, the n seeds' mean has the variance

    V = s² / n  +  c,   s² = Σ (m[k] - m)² / (n - 1),   c = Σ over patients and over pairs of seeds k ≠ l of
                                                           u[k, p] u[l, p] / (n (n - 1))

where u[k, p] is what patient p adds to m[k], apart from the mean of its site. Seeds that test different patients vary
by the patients, too, so s² has both parts and c is zero. Patients that several seeds test do not average out over these
seeds; c is what they have in common (two-way clustering: Cameron, Gelbach and Miller, 2011), and zero if negative.
The interval is  m ± t(f) √V  with Student's t and Satterthwaite's degrees of freedom f, and never narrower than that
of s² / n alone with its n - 1.

It is an interval for other seeds and other patients, not for other training sets: seeds share most of a site's training
subjects, so what these do to a result is only partly in s². With a correction for that (Nadeau and Bengio, 2003)

    V = (1 / n + r) s²  +  c,   r the number of tested subjects divided by that of training subjects

A single seed has no s²: its V is Σ u[p]². Its interval covers other patients but not other runs, so no difference is
called significant by it. Where nothing varies (one seed with one subject, or identical runs) there is no interval.

A number over several streams is the mean of all of a seed's, whatever the streams have in common. With fewer than four
seeds, one stream may balance another by chance and make s too small. So s is then also estimated from each stream as if
streams were independent, s² = Σ (share of the stream)² s²(stream), and the wider interval is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED
from smg.report.runs import Run
from smg.report.table import columns, markdown_head, markdown_row

Values = dict[str, dict[str, float]]  # site -> subject -> the value that a measure averages
LEVEL = 0.05  # 1 - the interval's probability
FEW = 4  # seeds below which streams may balance each other by chance


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % interval, standard error and degrees of freedom."""

    mean: float
    low: float
    high: float
    error: float
    freedom: float


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
    runs: Sequence[Run], reference: str, metrics: Sequence[str] = tuple(COMPARED)
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
                    if one := interval([[values] for values in strata], entry.scale):
                        subjects = sum(len(site) for stratum in strata for site in stratum.values())
                        with_value = sum(any(stratum.values()) for stratum in strata)  # seeds
                        found.append(Difference(stream, method, metric, measure, *one[:3], with_value, subjects))
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
    streams: Sequence[str] = (),
    overlap: float = 0.0,
    few: int = FEW,
) -> Estimate | None:
    """Return the mean over seeds with its 95 % interval; None where no subject has a value.

    seeds: for each seed its numbers, each given by the values of its sites and subjects.
    streams: the stream of each number of a seed, where they belong to several.
    overlap: r, to allow for training subjects that seeds share. Default: no correction.
    few: number of seeds below which streams may balance each other by chance.
    """
    there = [[values for values in numbers if any(values.values())] for numbers in seeds]
    there = [numbers for numbers in there if numbers]
    if not there:
        return None
    means = np.array([np.mean([mean_of(values) for values in numbers]) for numbers in there])
    among_patients, freedom = patients_part(there)
    ways = [(among_patients, freedom)]
    if (count := len(means)) > 1:
        ways = [(count - 1.0, float(means.var(ddof=1)))]
        if count < few and len(set(streams)) > 1 and all(len(numbers) == len(streams) for numbers in there):
            ways.append(_independent_streams(there, streams))
        seeds_alone = [((1 / count + overlap) * v, f) for f, v in ways]
        ways = [*seeds_alone, *(combined(one, (among_patients, freedom)) for one in seeds_alone)]
    widths = [(student.ppf(1 - LEVEL / 2, f) * np.sqrt(v), np.sqrt(v), f) for v, f in ways]
    width, error, freedom = max(widths)
    mean = scale * float(means.mean())
    half = scale * float(width)
    return Estimate(mean, mean - half, mean + half, scale * float(error), float(freedom))


def patients_part(seeds: Sequence[Sequence[Values]]) -> tuple[float, float]:
    """Return the variance that patients add to the mean over seeds beyond s² / n, and its degrees of freedom.

    For a single seed this is the variance due to its patients.
    """
    of_patient: dict[tuple[str, str], list[float]] = {}
    for numbers in seeds:
        parts: dict[tuple[str, str], float] = {}
        for values in numbers:
            sites = {site: of for site, of in values.items() if of}
            for site, of in sites.items():
                n, mean = len(of), np.mean(list(of.values()))
                for case, value in of.items():
                    part = (value - mean) / np.sqrt(n * (n - 1)) if n > 1 else 0.0
                    parts[site, case] = parts.get((site, case), 0.0) + part / (len(numbers) * len(sites))
        for patient, part in parts.items():
            of_patient.setdefault(patient, []).append(part)
    if (count := len(seeds)) == 1:
        return sum(parts[0] ** 2 for parts in of_patient.values()), _freedom(of_patient)
    common = sum(sum(parts) ** 2 - sum(part**2 for part in parts) for parts in of_patient.values())
    again = [patient for patient, parts in of_patient.items() if len(parts) > 1]  # only these tell what seeds share
    return max(0.0, common / (count * (count - 1))), _freedom(again)


def _freedom(patients: Collection[tuple[str, str]]) -> int:
    return max(1, len(patients) - len({site for site, _ in patients}))


def combined(*parts: tuple[float, float]) -> tuple[float, float]:
    """Return the sum of independent (variance, degrees of freedom) with Satterthwaite's degrees of freedom."""
    total = sum(variance for variance, _ in parts)
    return total, total**2 / sum(v**2 / f for v, f in parts) if total else parts[0][1]


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


def to_markdown(differences: Sequence[Difference], reference: str, of: str = "") -> str:
    """Return one table for each stream: each method minus the reference, in bold where the interval excludes zero.

    of: the class that is compared, where there are several.
    """
    parts = []
    for stream in dict.fromkeys(d.stream for d in differences):
        here = {(d.method, d.metric, d.measure): d for d in differences if d.stream == stream}
        name = ", ".join(filter(None, [stream.replace("|", "unseen"), of]))
        title = f"**{name}**: minus {reference}, with 95 % intervals, {_seeds(here.values())}"
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
