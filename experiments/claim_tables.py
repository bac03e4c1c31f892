"""The paper's claims as text: a table with verdicts, a sentence that counts them, and every comparison behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.claims import STREAMS, Paper, claims, find, placed
from experiments.decide import HOLDS, MINIMAL, REFUTED, SEEDS, SMALL, SMALLER, UNDECIDED, Found
from smg.evaluation.metrics import COMPARED
from smg.report.runs import Run


def summary(runs: Sequence[Run], paper: Paper, metric: str) -> str:
    """Return a table with one line for each claim."""
    lines = ["| the paper says | A-first | F-first | both | the paper's | here it |", "|---|---:|---:|---:|---:|---|"]
    for claim in claims():
        if metric in claim.metrics:
            each = [find(placed(claim, stream), runs, metric, paper) for stream in STREAMS]
            both = find(placed(claim, *STREAMS), runs, metric, paper)
            numbers = [one.text() if one else "" for one in (*each, both if len(claim.streams) > 1 else None)]
            judged = both.verdict if both else "not run yet"
            lines.append(f"| {claim.says} | {' | '.join(numbers)} | {_papers(both)} | {judged} |")
    return "\n".join(lines)


def verdicts(runs: Sequence[Run], paper: Paper) -> str:
    """Return a table of what is found over both streams, for the claims with enough seeds; empty if none has them."""
    lines = ["| the paper says | found | the paper's | here it |", "|---|---:|---:|---|"]
    for claim in claims():
        one = find(placed(claim, *STREAMS), runs, "dsc", paper)
        if one and one.seeds >= SEEDS:
            lines.append(f"| {claim.says} | {one.text()} | {_papers(one)} | {one.verdict} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def in_short(runs: Sequence[Run], paper: Paper) -> str:
    """Return how many of the paper's claims came out which way, by DSC."""
    judged = [find(placed(claim, *STREAMS), runs, "dsc", paper) for claim in claims() if claim.is_papers]
    enough = [one for one in judged if one and one.seeds >= SEEDS]
    count = Counter(one.outcome for one in enough)
    least = f"{MINIMAL['dsc']:g} points"
    words = {
        HOLDS: "hold",
        REFUTED: "do not hold",
        SMALL: f"are smaller than {least}, if true at all",
        SMALLER: "are smaller than in the paper, if true at all",
        UNDECIDED: "are undecided",
    }
    parts = [f"**{count[key]}** {text}" for key, text in words.items()]
    waiting = (
        f" The other {len(judged) - len(enough)} do not have {SEEDS} seeds yet." if len(enough) < len(judged) else ""
    )
    return f"Of the paper's {len(judged)} claims, by DSC, {', '.join(parts[:-1])}, and {parts[-1]}.{waiting}"


def _papers(found: Found | None) -> str:
    return "" if found is None or found.papers is None else f"{found.papers:+.{COMPARED[found.metric].digits}f}"


def details(runs: Sequence[Run], paper: Paper) -> str:
    """Return the page of every comparison, each listed once."""
    parts = [
        "# Every comparison behind the claims",
        "Mean [95 % interval] and the paper's value. Distances are negated, so that above zero is better. Bold: the "
        "interval excludes zero, and there are three seeds or more. If nothing differed, up to one in forty would be "
        "bold by chance on either side.",
    ]
    for metric, entry in COMPARED.items():
        lines = [
            f"## {entry.head}",
            "",
            "| | A-first | the paper's | F-first | the paper's | seeds |",
            "|---|---:|---:|---:|---:|---|",
        ]
        every = {one.what: (claim, one) for claim in claims() if metric in claim.metrics for one in claim.comparisons}
        for what, (claim, one) in every.items():
            found = [find([(s, one)] if s in claim.streams else [], runs, metric, paper) for s in STREAMS]
            cells = [f"{_bold(f)} | {_papers(f)}" for f in found]
            lines.append(f"| {what} | {' | '.join(cells)} | {min(f.seeds for f in found if f) if any(found) else 0} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _bold(found: Found | None) -> str:
    if found is None:
        return ""
    return f"**{found.text()}**" if found.outcome in (HOLDS, REFUTED) else found.text()
