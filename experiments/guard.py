"""Measure the guard on finished runs: how often it finds a true fall, and how often it holds a harmless round.

    python -m experiments.guard results/prostate-recommended results/prostate-lite

Nothing is trained. A run that `experiments.afterwards` has measured knows the DSC of every test and validation subject
after every round. The truth is the fall of a site's mean over its *test* part in one round. A rule sees *validation*
subjects, which no gradient has seen, as the guard does with its sentinels; rules for one or two sentinels are averaged
over every choice of them. The rule of the first stage saw the exemplars, which the round trains on; `guard.json`, also
of `experiments.afterwards`, has their DSC. Rounds of methods that keep exemplars count, on every stream and seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from experiments.mistakes import in_one_line
from smg.learner.guard import judge
from smg.learner.results import read_results
from smg.methods import find_method
from smg.report.runs import Run, find_runs

TOLERANCE = 5.0  # points of DSC
HARMLESS = 2.0  # a true fall below it
BANDS = (5.0, 10.0, 20.0)  # true falls above each
ENOUGH = 50  # site-rounds of a bench for a table of its own
ABOUT = """A round is held if the guard finds that an earlier site fell by more than 5 points of DSC. The truth here is
the fall of the site's mean over its test part in that round, itself a mean over 3 to 8 patients. The first three
columns are the share of true falls that a rule finds. The last two are the share of harmless rounds that it
holds for nothing. Made by `python -m experiments.evidence results` from every run of a method with replay (see
`experiments/guard.py`)."""
SIGNALS = "guard-signals.json"  # in the folder of results
ABOUT_SIGNALS = """Could something beside the DSC of sentinels tell of a fall, best of all without a label?
`experiments/signals.py` computed candidates from the networks before and after each round, on what
the model keeps. The area is the share of pairs, of a site that fell and one that did not, in which
the signal is larger for the one that fell: 1 is perfect, 0.5 is chance. Over all runs a signal can
seem good because it tells methods apart: fine-tuning changes every mask and also forgets more. A
guard judges rounds of one model, so the area within runs is the one that counts; the last column
leaves out the rounds in which the sentinel itself fell by more than 5 points. Within runs no signal
without labels is above the sentinel, and where the sentinel saw nothing, none is above chance by
more than the few falls that are left allow. So the guard uses none of them. With so few falls, of
which most are of fine-tuning, the areas are rough. (prostate-lite-500 is prostate-lite with 500 iterations a round.)"""
Signals = dict[str, Any]  # a row that `experiments.signals` wrote
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class SiteRound:
    """What one round did to one earlier site."""

    fall: float  # of the test part's mean, in points of DSC
    sentinels: Array  # [rounds since the site was learned, validation subjects], DSC; the last row is after this round
    exemplars: tuple[float, float] | None  # mean DSC before and after


Rule = Callable[[SiteRound], float]  # the share of choices of sentinels for which the round is held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", type=Path, nargs="+", help="published benches, or benches with their models")
    for bench in parser.parse_args().benches:
        print(table(bench.name, list(site_rounds(find_runs([bench])))))


def site_rounds(runs: Sequence[Run]) -> Iterator[SiteRound]:
    """Yield every round of every earlier site, of the runs that have been measured on their validation parts."""
    for run in runs:
        path = run.folder / "validation.json"
        method = find_method(run.results.method.removesuffix("+c"))
        if method.keeps != "exemplars" or not path.exists():
            continue
        tested, validated = (scores(one) for one in (run, Run(run.folder, read_results(run.folder, path.name))))
        for number, name in enumerate(run.sites):
            for site in run.sites[:number]:
                since = run.sites[run.sites.index(site) : number + 1]
                means = [np.mean(list(tested[round_, site].values())) for round_ in since]
                seen = np.array([list(validated[round_, site].values()) for round_ in since])
                if seen.size:
                    yield SiteRound(100 * float(means[-2] - means[-1]), seen, exemplars_of(run, name, site))


def scores(run: Run) -> dict[tuple[str, str], dict[str, float]]:
    """Return the DSC of each subject of the evaluated part, by round and site."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in run.results.subjects:
        if row.part in (None, run.results.part):
            dsc = row.classes[run.first_class]["dsc"]
            if dsc is not None:
                found.setdefault((row.round, row.site), {})[row.subject] = dsc
    return found


def exemplars_of(run: Run, round_: str, site: str) -> tuple[float, float] | None:
    """Return the mean DSC of a site's exemplars before and after a round, where they were measured."""
    path = run.folder / "guard.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    pairs = [row["exemplars"] for row in rows if (row["round"], row["site"]) == (round_, site)]
    return tuple(pairs[0]) if pairs and pairs[0] else None


# --- rules ------------------------------------------------------------------------------------------------------------


def by_exemplars(one: SiteRound) -> float:
    """Return 1 where the exemplars fell by more than the tolerance: the rule of the first stage."""
    before, after = one.exemplars or (0.0, 0.0)
    return float(100 * (before - after) > TOLERANCE)


def by_sentinels(count: int | None, against: str = "both") -> Rule:
    """Return a rule over so many sentinels (None for all): the guard's own, or against one reference only."""

    def rule(one: SiteRound) -> float:
        subjects = range(one.sentinels.shape[1])
        chosen = list(combinations(subjects, min(count or len(subjects), len(subjects))))
        return float(np.mean([held(one.sentinels[:, list(some)]) for some in chosen]))

    def held(seen: Array) -> bool:
        best, before, after = seen[:-1].max(axis=0), seen[-2], seen[-1]
        judged = judge("sentinels", before.tolist(), after.tolist(), best.tolist())
        assert judged.fall is not None
        assert judged.below_best is not None
        alone = {"before": 100 * judged.fall > TOLERANCE, "best": 100 * judged.below_best > TOLERANCE}
        return judged.lost(TOLERANCE) if against == "both" else alone[against]

    return rule


RULES: dict[str, Rule] = {
    "exemplars (first stage)": by_exemplars,
    "one sentinel, against the round before": by_sentinels(1, "before"),
    "one sentinel, against its best, same tolerance": by_sentinels(1, "best"),
    "**one sentinel, the guard's rule**": by_sentinels(1),
    "two sentinels, the guard's rule": by_sentinels(2),
    "all validation subjects, the guard's rule": by_sentinels(None),
}


# --- as text ----------------------------------------------------------------------------------------------------------


def page(results: Path) -> str:
    """Return the page of all benches that were measured on their validation parts."""
    benches = [path.parent for path in sorted(results.glob("*/bench.json"))]
    rounds = {bench.name: list(site_rounds(find_runs([bench]))) for bench in benches}
    tables = [table(name, found) for name, found in rounds.items() if len(found) >= ENOUGH]
    made = "\n".join(["# What the guard finds", "", ABOUT, "", *tables])
    measured = results / SIGNALS
    if not measured.exists():
        return made
    return (
        f"{made}\n## Signals that need no label\n\n{ABOUT_SIGNALS}\n\n{signals_table(json.loads(measured.read_text()))}"
    )


def signals_table(rows: Sequence[Signals]) -> str:
    """Return the table of signals that `experiments.signals` measured: how well each tells a true fall."""
    signals = list(dict.fromkeys(name for row in rows for name in row["signals"]))
    read: dict[str, Callable[[Signals], float | None]] = {"**fall of the sentinel's DSC (labels)**": sentinel_fall}
    read |= {name: partial(signal_of, name) for name in signals}
    fallen = sum(row["fall"] > TOLERANCE for row in rows)
    runs = sorted({row["bench"] for row in rows})
    lines = [
        f"{len(rows)} site-rounds of {len({run_of(row) for row in rows})} runs ({', '.join(runs)}), of which {fallen} "
        f"fell by more than {TOLERANCE:g} points.",
        "",
        "| signal | site-rounds (falls) | area, all | area, within runs | area, within runs, unseen by the sentinel |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, value in read.items():
        known = [row for row in rows if value(row) is not None]
        missed = [row for row in known if 100 * (sentinel_fall(row) or 0.0) <= TOLERANCE]
        count = f"{len(known)} ({sum(row['fall'] > TOLERANCE for row in known)})"
        cells = [area(known, value, False), area(known, value, True), area(missed, value, True)]
        lines.append(f"| {name} | {count} | " + " | ".join("-" if c is None else f"{c:.2f}" for c in cells) + " |")
    return "\n".join(lines) + "\n"


def run_of(row: Signals) -> tuple[str, str]:
    return row["bench"], row["run"]


def sentinel_fall(row: Signals) -> float | None:
    """Return the mean fall of a site's sentinels in a round."""
    before, after = row["sentinels"][-2:]
    return float(np.mean(before) - np.mean(after)) if before else None


def signal_of(name: str, row: Signals) -> float | None:
    found: float | None = row["signals"].get(name)
    return found


def area(rows: Sequence[Signals], value: Callable[[Signals], float | None], within: bool) -> float | None:
    """Return how often a signal is larger where a site fell than where it did not; 0.5 is chance.

    With `within` only site-rounds of the same run are compared. Otherwise a signal that only tells methods apart, of
    which one forgets more, would seem to tell falls.
    """
    pairs = [
        (value(fell) or 0.0, value(stood) or 0.0)
        for fell in rows
        if fell["fall"] > TOLERANCE
        for stood in rows
        if stood["fall"] <= TOLERANCE and (not within or run_of(fell) == run_of(stood))
    ]
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])) if pairs else None


def table(name: str, rounds: Sequence[SiteRound]) -> str:
    """Return the table of one bench: what each rule holds, by the true fall."""
    falls = np.array([one.fall for one in rounds])
    groups = {f"true fall > {band:g}": falls > band for band in BANDS} | {
        f"fall < {HARMLESS:g}": falls < HARMLESS,
        f"fall ≤ {TOLERANCE:g}": falls <= TOLERANCE,
    }
    heads = [f"{head} ({int(some.sum())})" for head, some in groups.items()]
    spread = np.sqrt(
        [np.var(one.sentinels[-2] - one.sentinels[-1], ddof=1) for one in rounds if len(one.sentinels.T) > 1]
    )
    lines = [
        f"**{name}**: {len(rounds)} site-rounds; standard deviation of falls between a site's patients in one round "
        f"{100 * np.median(spread):.1f} points (median), {100 * np.sqrt(np.mean(spread**2)):.1f} (root mean square)",
        "",
        "| held, in % of site-rounds | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(heads),
    ]
    for rule, decide in RULES.items():
        known = np.array([rule != "exemplars (first stage)" or one.exemplars is not None for one in rounds])
        held = np.array([decide(one) for one in rounds])
        cells = [f"{100 * held[some & known].mean():.0f}" if (some & known).any() else "-" for some in groups.values()]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with in_one_line():
        main()
