"""Why a claim may fail here: SGA(+c)'s lead over joint minimisation, measured again with one thing changed.

If the thing were the reason, the lead would change with it. So beside the lead stands its change: the lead with the
thing changed minus the lead as it is, paired over subjects and seeds, over both streams. Intervals are those of
`smg.report.paired`. With one seed an interval covers other patients alone.

All of it is trained with augmentation and a falling rate, since a lead scatters too much without them: by the pilot of
`prostate`, a change of 1.5 points would need more than 20 seeds (results/prostate/power.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.claims import AUGMENTED, STREAMS, Comparison, measure, stream_of
from experiments.decide import Found
from smg.evaluation.metrics import METRICS
from smg.report.paired import Values, apart, interval
from smg.report.runs import Run, find_runs

HERE = "explanations"
MEASURES = ("BM", "FM")


@dataclass(frozen=True)
class Explanation:
    """What is changed, and which methods of the bench `explanations` have it; without `theirs` only SGA(+c) changes."""

    change: str
    ours: str
    theirs: str | None = None


EXPLANATIONS = (
    Explanation("inner step of Adam's size (`inner: adam`)", "adam"),
    Explanation("inner step on both halves (`symmetric`)", "symmetric"),
    Explanation("second order (`direct`)", "direct"),
    Explanation("1 exemplar a site", "1 exemplar", "jm 1 exemplar"),
    Explanation("4 exemplars a site", "4 exemplars", "jm 4 exemplars"),
    Explanation("λ 0.5, the weight of diversity", "lambda 0.5"),
    Explanation("λ 2, the weight of diversity", "lambda 2"),
    Explanation("exemplars chosen by the foreground's features", "foreground features"),
    Explanation("batch norm", "batch norm", "jm batch norm"),
)


def leads(results: Path) -> str:
    """Return a table with a line for the lead as it is, and one for each explanation that has been run, if any has."""
    main, here = (find_runs([results / name]) if (results / name).is_dir() else [] for name in (AUGMENTED, HERE))
    if not here:
        return ""
    heads = [*(f"lead, {name}" for name in MEASURES), *(f"its change, {name}" for name in MEASURES)]
    lines = ["| changed | seeds | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    base = [_lead(main, main, "sga+c", "jm", name) for name in MEASURES]
    lines.append(_line("nothing", [_found(lead) for lead in base]))
    for one in EXPLANATIONS:
        rivals, rival = (here, one.theirs) if one.theirs else (main, "jm")
        cells: list[Found | None] = []
        changes: list[Found | None] = []
        for name, before in zip(MEASURES, base, strict=True):
            lead = _lead(here, rivals, one.ours, rival, name)
            shared = {seed: _minus(lead[seed], before[seed]) for seed in lead.keys() & before.keys()}
            cells.append(_found(lead))
            changes.append(_found(shared))
        if any(cells):
            lines.append(_line(one.change, [*cells, *changes]))
    return "\n".join(lines)


Lead = dict[int, list[Values]]  # by seed, one entry a stream


def _lead(ours: Sequence[Run], theirs: Sequence[Run], method: str, rival: str, name: str) -> Lead:
    """Return SGA(+c)'s lead in a measure for every seed that both methods have on both streams."""
    runs = [run.renamed("ours") for run in ours if run.name == method]
    runs += [run.renamed("theirs") for run in theirs if run.name == rival]
    pair = Comparison("ours", measure(name), "theirs")
    found = [pair.by_seed([run for run in runs if stream_of(run) == stream], "dsc") for stream in STREAMS]
    return {seed: [of[seed] for of in found] for seed in sorted(set.intersection(*map(set, found)))}


def _minus(lead: list[Values], before: list[Values]) -> list[Values]:
    return [apart(*pair) for pair in zip(lead, before, strict=True)]


def _found(lead: Lead) -> Found | None:
    """Return the mean over seeds with its interval."""
    one = interval([lead[seed] for seed in sorted(lead)], METRICS["dsc"].scale, STREAMS)
    return Found(one, None, len(lead)) if one else None


def _line(what: str, found: Sequence[Found | None]) -> str:
    counts = sorted({one.seeds for one in found if one})
    cells = [one.text() if one else "" for one in found] + [""] * (2 * len(MEASURES) - len(found))
    return f"| {what} | {' or '.join(map(str, counts)) or 'none yet'} | {' | '.join(cells)} |"
