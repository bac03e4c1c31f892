"""The two aims of a memory that keeps little or nothing, with their intervals.

    no image kept:  BM and FM of `image-free` within 2 points of `jm`, which keeps two subjects a site, on both streams
    two subjects:   `recommended` within 1 point of `pooled`, which keeps every scan, on every site and the unseen one

With the interval of the difference (smg.report.paired), an aim at -d is reached if low > -d, missed if high < -d, and
undecided otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.claims import STREAMS, Comparison, Level, find, measure, over_streams, stream_of
from experiments.decide import SEEDS, Found
from smg.report.paired import Values, by_round
from smg.report.runs import Run, find_runs

BENCH = "prostate-recommended"


@dataclass(frozen=True)
class Aim:
    """A method that is to be no more than `within` points below a rival, by the given levels."""

    method: str
    rival: str
    within: float

    def judged(self, found: Found) -> str:
        """Return whether the aim is reached."""
        if found.seeds < SEEDS:
            return f"{found.seeds} seed{'s' * (found.seeds > 1)} only"
        if found.low > -self.within:
            return "**reached**"
        return "**missed**" if found.high < -self.within else "undecided"


NO_IMAGE = Aim("image-free", "jm", 2.0)
TWO_SUBJECTS = Aim("recommended", "pooled", 1.0)


def at_site(site: str) -> Level:
    """Return the DSC at a site after the stream's last round."""

    def values(run: Run, metric: str) -> Values:
        return {site: by_round(run, metric).get((run.order[-1], site), {})}

    return Level(site, values)


def page(results: Path) -> str:
    """Return the page with a line for each difference that an aim is about; empty if none has been run."""
    lines = ["| aim | stream | where | difference | detectable | seeds | |", "|---|---|---|---:|---:|---|---|"]
    for stream, aim, where, found in differences(results):
        what, least = f"{aim.method} within {aim.within:g} of {aim.rival}", f"{found.detectable:.1f}"
        cells = [what, stream, where, found.text(more=1), least, str(found.seeds), aim.judged(found)]
        lines.append(f"| {' | '.join(cells)} |")
    return f"{ABOUT}\n\n" + "\n".join(lines) + "\n" if len(lines) > 2 else ""


ABOUT = """# The two aims

An aim is reached at a place if the interval of the difference lies above the margin, missed if it lies below, and
undecided otherwise; it is met if it is reached at all its places. `detectable` is the smallest difference that these
seeds would have found with a probability of 80 %. Points of DSC, [95 % intervals] over seeds and patients."""


def in_short(results: Path) -> str:
    """Return a line for each aim: at how many places it is reached, and where it is farthest; empty if none was run."""
    every = list(differences(results))
    lines = []
    everywhere = {NO_IMAGE: "on both streams, by BM and FM", TWO_SUBJECTS: "at every site, on both streams"}
    for aim, where in everywhere.items():
        here = [(stream, place, found) for stream, of, place, found in every if of is aim]
        if not here:
            continue
        count = Counter(aim.judged(found).strip("*") for *_, found in here)
        said = ", ".join(f"{word} at {number}" for word, number in count.items())
        stream, place, worst = min(here, key=lambda one: one[2].mean)
        margin = f"{aim.within:g} point{'s' * (aim.within != 1)}"
        farthest = f"farthest at {place} of {stream}, {worst.text()}"
        lines.append(
            f"- `{aim.method}` within {margin} of `{aim.rival}` {where}: {said} of {len(here)} places; {farthest}."
        )
    return "\n".join(lines)


def differences(results: Path) -> Iterator[tuple[str, Aim, str, Found]]:
    """Yield (stream, aim, where, difference) of every place that an aim is about and that has been run."""
    folder = results / BENCH
    runs = find_runs([folder]) if folder.is_dir() else []
    for stream in STREAMS:
        here = [run for run in runs if stream_of(run) == stream]
        for aim, level, where in _levels(here):
            found = find([(stream, Comparison(aim.method, level, aim.rival))], here, "dsc", {})
            if found:
                yield stream, aim, where, found


PAIRS = (
    ("recommended", "jm"),
    ("recommended", "sga+c"),
    ("recommended", "finetune"),
    ("recommended", "pooled"),
    ("image-free", "jm"),
    ("image-free", "finetune"),
)


def pairs(results: Path) -> str:
    """Return a table of what sets the recommended settings apart, over both streams; empty if nothing has been run."""
    folder = results / BENCH
    runs = find_runs([folder]) if folder.is_dir() else []
    lines = ["| over both streams | seeds | BM | FM |", "|---|---|---:|---:|"]
    for method, rival in PAIRS:
        both = [over_streams(method, rival, name, runs) for name in ("BM", "FM")]
        if all(both):
            seeds = " or ".join(dict.fromkeys(str(one.seeds) for one in both if one))
            lines.append(f"| `{method}` minus `{rival}` | {seeds} | {' | '.join(one.text() for one in both if one)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _levels(runs: Sequence[Run]) -> Iterator[tuple[Aim, Level, str]]:
    for name, where in (("BM", "the learned sites (BM)"), ("FM", "the held-out site (FM)")):
        yield NO_IMAGE, measure(name), where
    for site in runs[0].sites if runs else ():
        yield TWO_SUBJECTS, at_site(site), site + (", held out" if site == runs[0].unseen else "")
