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

from experiments.bench_pages import wrapped
from experiments.claims import AUGMENTED, STREAMS, Comparison, measure, stream_of
from experiments.decide import SEEDS, Found
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


@dataclass(frozen=True)
class Row:
    """One line of the table: SGA(+c)'s lead by each measure, and how much that is more than with nothing changed."""

    change: str
    leads: list[Found | None]
    changes: list[Found | None]

    @property
    def seeds(self) -> list[int]:
        """The numbers of seeds that the line's differences are of."""
        return sorted({one.seeds for one in (*self.leads, *self.changes) if one})


def page(results: Path) -> str:
    """Return a table with a line for the lead as it is, and one for each explanation that was run; empty without."""
    heads = [*(f"lead, {name}" for name in MEASURES), *(f"its change, {name}" for name in MEASURES)]
    lines = [f"| changed | seeds | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for row in rows(results):
        cells = [one.text() if one else "" for one in (*row.leads, *row.changes)]
        seeds = " or ".join(map(str, row.seeds)) or "none yet"
        lines.append(f"| {row.change} | {seeds} | {' | '.join(cells + [''] * (len(heads) - len(cells)))} |")
    return f"{ABOUT}\n\n" + "\n".join(lines) if len(lines) > 2 else ""


ABOUT = """**The lead of SGA(+c)** over joint minimisation with one thing changed, and its change: how much more that
is than with nothing changed. Both streams, points of DSC, [95 % intervals] over seeds and patients. A lead that the
changed thing had hidden would show as a change above zero."""


def in_short(results: Path) -> str:
    """Return a sentence on the explanations that have enough seeds, and which of them change the lead."""
    judged = [row for row in rows(results) if any(row.changes) and min(row.seeds) >= SEEDS]
    if not judged:
        return ""
    found = []
    for row in judged:
        changes = [
            f"{name} {one.text()}"
            for name, one in zip(MEASURES, row.changes, strict=True)
            if one and (one.low > 0 or one.high < 0)
        ]
        if changes:
            found.append(f"{row.change} ({', '.join(changes)})")
    widest = max(one.detectable for row in judged for one in row.changes if one)
    changed = f"change it: {'; '.join(found)}" if found else "changes it"
    counts = sorted({count for row in judged for count in row.seeds})
    seeds = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
    return wrapped(
        f"Of {len(judged)} things that could hide a lead of SGA(+c) over `jm`, each tried with "
        f"{seeds} seeds on both streams, {len(found) or 'none'} {changed}. The largest change that may "
        f"have been missed (80 %) is {widest:.1f} points ([all of them](results/{HERE}/README.md))."
    )


def rows(results: Path) -> list[Row]:
    """Return the lead as it is, and with each thing changed that has been run; empty if none has."""
    main, here = (find_runs([results / name]) if (results / name).is_dir() else [] for name in (AUGMENTED, HERE))
    if not here:
        return []
    base = [_lead(main, main, "sga+c", "jm", name) for name in MEASURES]
    made = [Row("nothing", [_found(lead) for lead in base], [])]
    for one in EXPLANATIONS:
        rivals, rival = (here, one.theirs) if one.theirs else (main, "jm")
        leads = [_lead(here, rivals, one.ours, rival, name) for name in MEASURES]
        shared = [
            {seed: _minus(lead[seed], before[seed]) for seed in lead.keys() & before.keys()}
            for lead, before in zip(leads, base, strict=True)
        ]
        if any(leads):
            made.append(Row(one.change, [_found(lead) for lead in leads], [_found(change) for change in shared]))
    return made


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
