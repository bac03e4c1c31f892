"""The paper's claims as numbers: each is the mean of comparisons, above zero in the paper, with an interval.

A comparison is a difference of two methods' measures, paired over subjects and seeds, or a change along the sequence.
What becomes of a claim is decided by the rule in `experiments.decide`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from experiments.decide import Found
from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED, METRICS
from smg.report.paired import FEW, Values, apart, by_round, interval, values_of
from smg.report.runs import Run

MAIN = "prostate"  # the bench of the paper's training
AUGMENTED = "catalogue"  # the same methods, trained with augmentation and a falling rate
STREAMS = ("A-first", "F-first")  # the paper's two
Paper = dict[tuple[str, str, str, str], float]  # (stream, method, metric, measure)


def read_paper(path: Path) -> Paper:
    """Read the paper's own numbers from a CSV file."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(r["stream"], r["method"], r["metric"], r["measure"]): float(r["value"]) for r in rows}


def stream_of(run: Run) -> str:
    """Return the name of the stream that a bench's run belongs to."""
    return run.folder.parents[1].name


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A quantity of a run that is a mean over sites and subjects."""

    name: str
    values: Callable[[Run, str], Values]  # by a metric


def measure(name: str) -> Level:
    """Return one of the paper's four measures; FM is over all of the held-out site but its validation part."""
    return Level(name, lambda run, metric: values_of(run, metric, name))


def after(which: int, round: int) -> Level:
    """Return the level at a site (0 the first, -1 the held-out) after a round (from 1, or backwards from -1)."""

    def values(run: Run, metric: str) -> Values:
        order = run.order
        site = str([*order, run.unseen][which])
        return {site: by_round(run, metric).get((order[round - 1 if round > 0 else round], site), {})}

    return Level(f"{'first' if which == 0 else 'unseen'} site after round {round}", values)


def change(which: int, start: int) -> Level:
    """Return the change at a site from a round to the stream's last one."""
    begin, end = after(which, start), after(which, -1)
    return Level(
        f"{begin.name} to the last", lambda run, metric: apart(end.values(run, metric), begin.values(run, metric))
    )


@dataclass(frozen=True)
class Comparison:
    """A method's level, minus that of another if there is one; negated where less is better or a fall is claimed."""

    method: str
    level: Level
    rival: str | None = None
    falls: bool = False

    @property
    def what(self) -> str:
        falls = ", its fall" if self.falls else ""
        return f"{self.method}{f' over {self.rival}' if self.rival else ''}: {self.level.name}{falls}"

    def sign(self, metric: str) -> int:
        return (-1 if self.falls else 1) * (1 if METRICS[metric].better == "higher" else -1)

    def by_seed(self, runs: Sequence[Run], metric: str) -> dict[int, Values]:
        """Return the values of each subject, for the seeds that have both methods; `runs` are those of one stream."""
        ours, theirs = (
            {run.seed: self.level.values(run, metric) for run in runs if run.name == name}
            for name in (self.method, self.rival)
        )
        if self.rival:
            ours = {seed: apart(values, theirs[seed]) for seed, values in ours.items() if seed in theirs}
        return {
            seed: {site: {case: self.sign(metric) * v for case, v in of.items()} for site, of in values.items()}
            for seed, values in ours.items()
            if any(values.values())
        }

    def papers(self, paper: Paper, stream: str, metric: str) -> float | None:
        """Return the value in the paper's table; its curves have no numbers."""
        values = [paper.get((stream, name, metric, self.level.name)) for name in (self.method, self.rival) if name]
        numbers = [value for value in values if value is not None]
        return None if len(numbers) < len(values) else self.sign(metric) * (numbers[0] - sum(numbers[1:]))


def over(methods: Sequence[str], rivals: Sequence[str], *names: str) -> list[Comparison]:
    """Return the comparisons of every method with every rival by every measure."""
    return [Comparison(m, measure(name), r) for m, r, name in product(methods, rivals, names) if m != r]


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in our words, and the comparisons it is about.

    has_its_buffer: False where the claim is about SGA(+c), whose buffer chooses almost at random with the features that
        instance norm gives (experiments.buffer), so that the runs do not test the claim as it was meant.
    """

    group: str
    says: str
    comparisons: list[Comparison]
    streams: tuple[str, ...] = STREAMS
    metrics: tuple[str, ...] = tuple(COMPARED)
    is_papers: bool = True
    has_its_buffer: bool = True


CL, DG = ("gem", "c-meta"), ("isgm", "g-meta")
RIVALS = ("jm", *CL, *DG)
REPLAY = (*RIVALS, "sga", "sga+c")
FORGETTING, BASELINES, OURS, BUFFER, LENGTH, CEILING = GROUPS = (
    "fine-tuning and replay",
    "CL and DG",
    "SGA",
    "SGA(+c)",
    "the length of the sequence",
    "a reference",
)


def claims() -> Iterator[Claim]:
    """Yield the claims, group by group; `implied` are those that the paper's table shows, and not its text."""
    of = partial(Claim, FORGETTING)
    yield of("Fine-tuning forgets the sites before", [Comparison("finetune", measure("BT"), falls=True)])
    yield of("Fine-tuning generalises poorly", [Comparison("finetune", measure("FT"), falls=True)])
    yield of("Replay remembers better than fine-tuning (implied)", over(["jm"], ["finetune"], "BM", "BT"))
    yield of("Replay generalises better than fine-tuning (implied)", over(["jm"], ["finetune"], "FM", "FT"))
    yield of("Joint minimisation still forgets", [Comparison("jm", measure("BT"), falls=True)])
    yield of("Joint minimisation falls short at the unseen site", [Comparison("jm", measure("FT"), falls=True)])
    of = partial(Claim, BASELINES)
    yield of("CL remembers better than joint minimisation", over(CL, ["jm"], "BM", "BT"))
    yield of("CL generalises better than joint minimisation", over(CL, ["jm"], "FM", "FT"))
    yield of("DG remembers better than joint minimisation", over(DG, ["jm"], "BM", "BT"))
    yield of("DG generalises better than joint minimisation", over(DG, ["jm"], "FM", "FT"))
    yield of("CL remembers better than DG (implied)", over(CL, DG, "BM", "BT"))
    yield of("DG generalises better than CL (implied)", over(DG, CL, "FM", "FT"))
    of = partial(Claim, OURS)
    yield of("SGA outperforms all these on almost all metrics", over(["sga"], RIVALS, *MEASURES))
    yield of("Both alignments together beat each alone", over(["sga"], ["c-meta", "g-meta"], *MEASURES))
    of = partial(Claim, BUFFER, has_its_buffer=False)
    yield of("SGA(+c) is the best of all", over(["sga+c"], [*RIVALS, "sga"], *MEASURES))
    yield of("... of all at remembering", over(["sga+c"], [*RIVALS, "sga"], "BM", "BT"))
    yield of("... and of all at generalising", over(["sga+c"], [*RIVALS, "sga"], "FM", "FT"))
    yield of("... with an obvious advantage over C-Meta in BT", over(["sga+c"], ["c-meta"], "BT"), metrics=("dsc",))
    yield of("... and over G-Meta in FT", over(["sga+c"], ["g-meta"], "FT"), metrics=("dsc",))
    yield of("The comprehensive buffer improves SGA", over(["sga+c"], ["sga"], *MEASURES))
    everyone = ("finetune", *REPLAY)
    of = partial(Claim, LENGTH, streams=("A-first",), metrics=("dsc",))  # as curves over the sequence
    forgotten = {start: [Comparison(method, change(0, start), falls=True) for method in everyone] for start in (1, 2)}
    yield of("A longer sequence forgets more of the first site (from the first on)", forgotten[1])
    yield of("... (from the second on)", forgotten[2])
    helped = [Comparison(method, change(-1, 1)) for method in everyone]
    yield of("A longer sequence helps at the unseen site", helped)
    lengths = {"sga": (2, 3, 4), "sga+c": (3, 4)}  # with one site in the buffer, the two are the same
    above = [
        Comparison(method, after(which, round), rival)
        for method, rounds in lengths.items()
        for which, round, rival in product((0, -1), rounds, RIVALS)
    ]
    yield of("SGA and SGA(+c) stay above the others at every length", above)
    ceiling = "Keeping every scan remembers better than joint minimisation (not the paper's)"
    yield Claim(CEILING, ceiling, over(["pooled"], ["jm"], "BM"), is_papers=False)


# --- what is found ----------------------------------------------------------------------------------------------------


Placed = tuple[str, Comparison]  # a comparison on a stream


def placed(claim: Claim, *streams: str) -> list[Placed]:
    return [(stream, one) for stream in streams if stream in claim.streams for one in claim.comparisons]


def find(
    comparisons: Sequence[Placed],
    runs: Sequence[Run],
    metric: str,
    paper: Paper,
    overlap: float = 0.0,
    few: int = FEW,
) -> Found | None:
    """Return the comparisons' mean over the seeds they share, and the paper's value for it.

    overlap, few: as of `smg.report.paired.interval`.
    """
    seeds, numbers = by_seeds(comparisons, runs, metric)
    if not seeds:
        return None
    one = interval(numbers, METRICS[metric].scale, [stream for stream, _ in comparisons], overlap, few)
    papers = [c.papers(paper, stream, metric) for stream, c in comparisons]
    known = [value for value in papers if value is not None]
    theirs = sum(known) / len(known) if len(known) == len(papers) else None
    return Found(one, theirs, len(seeds), metric) if one else None


def over_streams(method: str, rival: str, which: str, runs: Sequence[Run]) -> Found | None:
    """Return a method's measure minus a rival's, by DSC over both streams."""
    return find([(stream, Comparison(method, measure(which), rival)) for stream in STREAMS], runs, "dsc", {})


def by_seeds(comparisons: Sequence[Placed], runs: Sequence[Run], metric: str) -> tuple[list[int], list[list[Values]]]:
    """Return the seeds that the comparisons share, and for each seed the values of every comparison."""
    here = {stream: [run for run in runs if stream_of(run) == stream] for stream in STREAMS}
    found = [one.by_seed(here[stream], metric) for stream, one in comparisons]
    seeds = sorted(set.intersection(*(set(values) for values in found))) if found else []
    return seeds, [[values[seed] for values in found] for seed in seeds]
