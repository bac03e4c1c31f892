"""The paper's claims as text: a table with verdicts, sentences that count them, and every comparison behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.claims import GROUPS, STREAMS, Claim, Paper, claims, find, placed
from experiments.decide import HOLDS, MINIMAL, OUTCOMES, REFUTED, SEEDS, SMALL, SMALLER, UNDECIDED, Found
from smg.evaluation.metrics import COMPARED
from smg.report.paired import FEW
from smg.report.runs import Run

OVERLAP = 1 / 3  # with four folds: a quarter of the patients is tested, three quarters are trained on
MARK = " †"  # beside claims about SGA(+c)


@dataclass(frozen=True)
class Judged:
    """A claim and what is found of it over its streams, if it has been run."""

    claim: Claim
    found: Found | None

    @property
    def has_enough(self) -> bool:
        return self.found is not None and self.found.seeds >= SEEDS

    @property
    def outcome(self) -> str:
        return self.found.outcome if self.found else UNDECIDED


def judged(runs: Sequence[Run], paper: Paper, overlap: float = 0.0, few: int = FEW) -> list[Judged]:
    """Return every claim as it is decided, by DSC; `overlap` and `few` make it stricter."""
    return [Judged(claim, find(placed(claim, *STREAMS), runs, "dsc", paper, overlap, few)) for claim in claims()]


# --- sentences --------------------------------------------------------------------------------------------------------


def in_short(runs: Sequence[Run], paper: Paper) -> str:
    """Return how many of the paper's claims came out which way, and what those that hold are about."""
    every = [one for one in judged(runs, paper) if one.claim.is_papers]
    enough = [one for one in every if one.has_enough]
    few = len(every) - len(enough)
    waiting = f" The other {few} do not have {SEEDS} seeds yet." if few else ""
    return f"Of the paper's {len(every)} claims, by DSC, {_counted(enough)}.{waiting} {_about(enough)}".strip()


def _counted(enough: Sequence[Judged]) -> str:
    count = Counter(one.outcome for one in enough)
    least = f"{MINIMAL['dsc']:g} points"
    words = {
        HOLDS: "hold",
        REFUTED: "do not hold",
        SMALL: f"are smaller than {least}, if there is a difference at all",
        SMALLER: "are smaller than in the paper, if there is one",
        UNDECIDED: "are undecided",
    }
    parts = [f"**{count[key]}** {text}" for key, text in words.items()]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


def _about(enough: Sequence[Judged]) -> str:
    """Return what the claims that hold are about, and of what none does."""
    groups = [group for group in GROUPS if any(one.claim.group == group for one in enough)]
    held = {g: [one.outcome == HOLDS for one in enough if one.claim.group == g] for g in groups}
    some = [f"{group} ({sum(of)} of {len(of)})" for group, of in held.items() if any(of)]
    none = [group for group, of in held.items() if not any(of)]
    said = [f"Those that hold are about {_listed(some, 'and')}."] if some else []
    said += [f"No claim about {_listed(none, 'or')} does."] if some and none else []
    return " ".join(said)


def _listed(names: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def stricter(runs: Sequence[Run], paper: Paper) -> str:
    """Return how the claims would be decided by intervals that are wider for two reasons."""
    ways = {
        "If the errors of both streams are also treated as independent, and the wider interval is used": judged(
            runs, paper, few=10**9
        ),
        "With Nadeau and Bengio's correction for training patients that seeds share, which is too wide for paired "
        "differences": judged(runs, paper, overlap=OVERLAP),
    }
    lines = []
    for what, every in ways.items():
        count = Counter(one.outcome for one in every if one.claim.is_papers and one.has_enough)
        lines.append(f"- {what}: {', '.join(f'{count[key]} {OUTCOMES[key]}' for key in OUTCOMES)}.")
    return "The claims by DSC would be decided so:\n\n" + "\n".join(lines)


# --- tables -----------------------------------------------------------------------------------------------------------


def summary(runs: Sequence[Run], augmented: Sequence[Run], paper: Paper) -> str:
    """Return a table with a line for each claim, group by group; the last column is by another training."""
    others = judged(augmented, paper)
    has_others = any(one.has_enough for one in others)
    heads = ["the paper says", "found", "the paper's", "here it", *(["with augmentation"] if has_others else [])]
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---|" + "---|" * has_others]
    group = ""
    for one, other in zip(judged(runs, paper), others, strict=True):
        claim, found = one.claim, one.found
        if claim.group != group:
            group = claim.group
            lines.append(f"| *{group[:1].upper()}{group[1:]}* |{' |' * (len(heads) - 1)}")
        cells = [claim.says + ("" if claim.has_its_buffer else MARK), found.text() if found else "", _papers(found)]
        cells.append(found.verdict if found else "not run yet")
        if has_others:
            shown = other.found if other.has_enough else None
            cells.append(f"{shown.text()} {shown.short}" if shown else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def by_stream(runs: Sequence[Run], paper: Paper, metric: str) -> str:
    """Return the same with a column for each stream, by a metric."""
    lines = ["| the paper says | A-first | F-first | both | the paper's | here it |", "|---|---:|---:|---:|---:|---|"]
    for claim in claims():
        if metric in claim.metrics:
            each = [find(placed(claim, stream), runs, metric, paper) for stream in STREAMS]
            both = find(placed(claim, *STREAMS), runs, metric, paper)
            numbers = [one.text() if one else "" for one in (*each, both if len(claim.streams) > 1 else None)]
            verdict = both.verdict if both else "not run yet"
            lines.append(f"| {claim.says} | {' | '.join(numbers)} | {_papers(both)} | {verdict} |")
    return "\n".join(lines)


def _papers(found: Found | None) -> str:
    return "" if found is None or found.papers is None else f"{found.papers:+.{COMPARED[found.metric].digits}f}"


def details(runs: Sequence[Run], paper: Paper) -> str:
    """Return the page of all claims by stream and metric, and of every comparison behind them, each listed once."""
    parts = ["# The claims by stream and metric, and every comparison behind them", *_claims_by_metric(runs, paper)]
    parts += [
        "## Stricter rules",
        stricter(runs, paper),
        "## Every comparison",
        "Mean [95 % interval] and the paper's value. Distances are negated, so that above zero is better. Bold: the "
        "interval excludes zero, and there are three seeds or more. If nothing differed, about one in twenty would be "
        "bold by chance, above or below zero.",
    ]
    for metric, entry in COMPARED.items():
        lines = [
            f"### {entry.head}",
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


def _claims_by_metric(runs: Sequence[Run], paper: Paper) -> Iterator[str]:
    for metric, entry in COMPARED.items():
        sign = "" if entry.better == "higher" else ", negated: above zero is better here, too"
        yield f"## The claims by {entry.head}{sign}"
        yield by_stream(runs, paper, metric)


def _bold(found: Found | None) -> str:
    if found is None:
        return ""
    return f"**{found.text()}**" if found.outcome in (HOLDS, REFUTED) else found.text()
