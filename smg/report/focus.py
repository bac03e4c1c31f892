"""The two methods that a report is about: one, and the baseline it is compared with. By name, never by who leads.

A method that is named because it leads a stream may lead by chance. So the headline is about a fixed method, the first
of `HEADLINES` that has runs, under its own name or as a variant. The differences are to a fixed baseline: the one that
is asked for, or the first of `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg.errors import Misuse
from smg.report.paired import Difference, paired_differences
from smg.report.runs import Run
from smg.report.table import REFERENCE_METHODS

HEADLINES = ("recommended", "image-free", "sga+c", "sga")
BASELINES = ("jm", "finetune", "sga+c")


@dataclass(frozen=True)
class Focus:
    """The method of the headline, its baseline, and what every method differs from the baseline by, in DSC."""

    method: str
    baseline: str | None = None  # None with a single method
    differences: tuple[Difference, ...] = ()

    def difference(self, stream: str, measure: str) -> Difference | None:
        """Return the difference of the headline's method from the baseline; None where subjects cannot be paired."""
        for one in self.differences:
            if (one.stream, one.method, one.measure) == (stream, self.method, measure):
                return one
        return None


def choose_focus(runs: Sequence[Run], baseline: str | None = None) -> Focus:
    """Return the method that the report's headline is about, its baseline, and their differences."""
    names = list(dict.fromkeys(run.name for run in runs))
    references = {run.name for run in runs if run.results.method in REFERENCE_METHODS}
    chosen = choose_baseline(runs, baseline)
    others = [name for name in names if name != chosen]
    if not others or chosen is None:
        return Focus(names[0] if names else "")
    ranked = [name for name in others if name not in references] or others
    methods = {run.name: run.results.method for run in runs}
    named = [name for one in HEADLINES for name in ranked if name == one]
    variants = [name for one in HEADLINES for name in ranked if methods[name] == one]
    others = [name for name in ranked if methods[name] != "finetune"]
    method = [*named, *variants, *others, *ranked][0]
    return Focus(method, chosen, tuple(paired_differences(runs, chosen, metrics=("dsc",))))


def choose_baseline(runs: Sequence[Run], asked: str | None = None) -> str | None:
    """Return the method that the others are compared with; None without runs."""
    names = list(dict.fromkeys(run.name for run in runs))
    if asked is not None and asked not in names:
        raise Misuse(f"--baseline {asked}: no finished run of that method; choose from {', '.join(names) or 'none'}")
    ranked = [run.name for run in runs if run.results.method not in REFERENCE_METHODS] or names
    return asked or next((name for name in BASELINES if name in names), ranked[0] if ranked else None)
