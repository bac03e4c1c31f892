"""The two aims of a memory that keeps little or nothing, with their intervals.

    no image kept:  BM and FM of `image-free` within 2 points of `jm`, which keeps two subjects a site, on both streams
    two subjects:   `recommended` within 1 point of `pooled`, which keeps every scan, on every site and the unseen one

With the interval of the difference (smg.report.paired), an aim at -d is reached if low > -d, missed if high < -d, and
undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.claims import STREAMS, Comparison, Level, find, measure, stream_of
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


def table(results: Path) -> str:
    """Return a table with a line for each difference that an aim is about; empty if none has been run."""
    folder = results / BENCH
    runs = find_runs([folder]) if folder.is_dir() else []
    lines = ["| aim | stream | where | difference | seeds | |", "|---|---|---|---:|---|---|"]
    for stream in STREAMS:
        here = [run for run in runs if stream_of(run) == stream]
        for aim, level, where in _levels(here):
            found = find([(stream, Comparison(aim.method, level, aim.rival))], here, "dsc", {})
            if found:
                what = f"{aim.method} within {aim.within:g} of {aim.rival}"
                lines.append(f"| {what} | {stream} | {where} | {found.text()} | {found.seeds} | {aim.judged(found)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _levels(runs: Sequence[Run]) -> Iterator[tuple[Aim, Level, str]]:
    for name, where in (("BM", "learned sites (BM)"), ("FM", "held-out site (FM)")):
        yield NO_IMAGE, measure(name), where
    for site in runs[0].sites if runs else ():
        yield TWO_SUBJECTS, at_site(site), site + (", held out" if site == runs[0].unseen else "")
