"""Why a claim may fail here: SGA(+c)'s lead over joint minimisation, measured again with one thing changed.

If the thing were the reason, the lead would change with it. A lead is paired over subjects and seeds, with a 95 %
interval by its own seeds alone (`smg.report.paired`). The interval of a single seed covers other patients only, and not
the variance between runs, which moves BM and FM by several points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.claims import STREAMS, Comparison, Found, find, measure, stream_of
from smg.report.runs import Run, find_runs

MAIN = "prostate-lite"
ABLATIONS = f"{MAIN}-ablations"
AUGMENTED = f"{MAIN}-aug"
HERE = "explanations"  # has its own jm and sga+c, since its runs were made on another kind of processor
OURS, THEIRS = "ours", "theirs"
Method = tuple[str, str]  # a bench, and a method's name there
SGA_C, JM = (MAIN, "sga+c"), (MAIN, "jm")


@dataclass(frozen=True)
class Explanation:
    """What is changed, and which method is then compared with which."""

    change: str
    ours: Method = SGA_C
    theirs: Method = JM
    seeds: tuple[int, ...] | None = None  # only these


EXPLANATIONS = (
    Explanation("as it is"),
    Explanation("as it is, seed 0 alone", seeds=(0,)),
    Explanation("nothing but the processor, seed 0 (`explanations`)", (HERE, "sga+c"), (HERE, "jm")),
    Explanation("inner step: of Adam's size", (ABLATIONS, "adam")),
    Explanation("inner step: both halves (`symmetric`)", (ABLATIONS, "symmetric")),
    Explanation("inner step: second order (`direct`)", (ABLATIONS, "direct")),
    Explanation("chance: the mean of a round's second half", (HERE, "sga+c average"), (HERE, "jm average")),
    Explanation("regime: batch norm", (HERE, "batch norm"), (HERE, "jm batch norm")),
    Explanation("regime: augmented", (AUGMENTED, "sga+c"), (AUGMENTED, "jm")),
    Explanation("buffer: chosen by the foreground's features", (HERE, "foreground features"), (HERE, "jm")),
    Explanation("buffer: chosen by chance", (HERE, "random exemplars"), (HERE, "jm")),
    Explanation("site B: without D, too", ("without-D", "sga+c"), ("without-D", "jm")),
    Explanation("8 bit: 5 bit", ("32-levels", "sga+c"), ("32-levels", "jm")),
)


def leads(results: Path) -> str:
    """Return a table with a line for each explanation that has been run."""
    heads = [(name, stream) for name in ("BM", "FM") for stream in STREAMS]
    lines = [
        "| changed | seeds | " + " | ".join(f"{name}, {stream}" for name, stream in heads) + " |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for one in EXPLANATIONS:
        runs = [*_of(results, one.ours, OURS, one.seeds), *_of(results, one.theirs, THEIRS, one.seeds)]
        found = [find([(stream, Comparison(OURS, measure(name), THEIRS))], runs, "dsc", {}) for name, stream in heads]
        if any(found):
            cells = " | ".join(lead.text("dsc") if lead else "" for lead in found)
            lines.append(f"| {one.change} | {_seeds(found)} | {cells} |")
    return "\n".join(lines)


def _of(results: Path, method: Method, role: str, seeds: tuple[int, ...] | None) -> Iterator[Run]:
    bench, name = method
    for run in find_runs([results / bench]) if (results / bench).is_dir() else []:
        if run.name == name and stream_of(run) in STREAMS and (seeds is None or run.seed in seeds):
            yield run.renamed(role)


def _seeds(found: list[Found | None]) -> str:
    counts = sorted({one.seeds for one in found if one})
    return " or ".join(map(str, counts))
