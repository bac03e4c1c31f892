"""The answer in words: did the method forget, and does it work at a new site, beside the baseline?

Every sentence is read off the table in the paper's form and the paired differences, and claims no more than these
support. The method and the baseline are fixed (smg.report.focus): no sentence names a method because it leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg.evaluation.metrics import METRICS, decimal
from smg.report.focus import Focus
from smg.report.paired import Difference
from smg.report.runs import Run
from smg.report.table import Cell, StreamTable

DIGITS = METRICS["dsc"].digits


@dataclass(frozen=True)
class Verdict:
    """The answers for one stream."""

    summary: str  # the sentences above the table
    forgot: str
    new_site: str
    forgot_figure: str = ""  # the number in large type
    new_site_figure: str = ""


def verdict(table: StreamTable, runs: Sequence[Run], focus: Focus) -> Verdict:
    """Return what the table of a stream shows of the focus's method, beside its baseline."""
    if focus.method not in table.rows:
        reason = f"{focus.method} has no run on this stream."
        return Verdict(reason, reason, reason)
    pair = _Pair(table, focus)
    order, held_out = runs[0].order, runs[0].unseen
    change, new = pair.cell("BT"), pair.cell("FM")
    sentences = [_summary(pair, held_out), _caution(pair), _references(table)]
    return Verdict(
        summary=" ".join(filter(None, sentences)),
        forgot=_forgot(pair, order),
        new_site=_new_site(pair, held_out),
        forgot_figure="" if change is None else _signed_points(change.mean or 0.0),
        new_site_figure="" if new is None else f"{_percent(new)} DSC",
    )


@dataclass(frozen=True)
class _Pair:
    """The method and the baseline in one table."""

    table: StreamTable
    focus: Focus

    @property
    def method(self) -> str:
        return self.focus.method

    @property
    def baseline(self) -> str | None:
        return self.focus.baseline if self.focus.baseline in self.table.rows else None

    def cell(self, measure: str, of_baseline: bool = False) -> Cell | None:
        """Return a measure of DSC; None where it has no value."""
        name = self.baseline if of_baseline else self.method
        cell = None if name is None else self.table.rows[name]["dsc", measure]
        return cell if cell is not None and cell.mean is not None else None

    def difference(self, measure: str) -> Difference | None:
        return self.focus.difference(self.table.stream, measure)

    def apart(self, measure: str) -> str:
        """Return `+1.8 points [+0.3, +3.3]`, the interval where subjects can be paired and anything varies."""
        ours, theirs, paired = self.cell(measure), self.cell(measure, of_baseline=True), self.difference(measure)
        if paired is None:
            assert ours is not None
            assert theirs is not None
            return _signed_points((ours.mean or 0.0) - (theirs.mean or 0.0))
        return _signed_points(paired.mean) + (
            f" [{_signed(paired.low)}, {_signed(paired.high)}]" if paired.varies else ""
        )


def _summary(pair: _Pair, held_out: str | None) -> str:
    """Return the accuracy on the learned sites and on the held-out one, and how far the baseline is from it."""
    ours, theirs = pair.cell("BM"), pair.cell("BM", of_baseline=True)
    if ours is None:
        return "Memory is unknown: not every learned site has a test subject."
    new, new_there = pair.cell("FM"), pair.cell("FM", of_baseline=True)
    if pair.baseline is None or theirs is None:
        there = "" if new is None else f", and of {_percent(new)} on the held-out site {held_out}"
        return f"{pair.method} ends with a mean DSC of {_percent(ours)} over the learned sites{there}."
    sentence = (
        f"{pair.method} ends with a mean DSC of {_percent(ours)} over the learned sites, {pair.baseline} with "
        f"{_percent(theirs)}: {pair.apart('BM')}."
    )
    if new is None or new_there is None:
        return sentence
    return (
        f"{sentence} On the held-out site {held_out} it reaches {_percent(new)}, {pair.baseline} "
        f"{_percent(new_there)}: {pair.apart('FM')}."
    )


def _caution(pair: _Pair) -> str:
    """Return what the intervals are, and which differences may be due to chance."""
    if pair.baseline is None or pair.cell("BM") is None:
        return ""
    found = {place: pair.difference(m) for place, m in (("the learned sites", "BM"), ("the held-out site", "FM"))}
    known = {place: one for place, one in found.items() if one is not None}
    if not known or max(one.seeds for one in known.values()) < 2:
        covered = "; the intervals cover chance among patients only" if known else ""
        return f"There is one seed only, so differences may be due to chance among runs{covered}."
    open_ = [place for place, one in known.items() if not one.certain]
    if len(open_) == len(known):
        verdict = "No difference is certain"
    elif open_:
        verdict = f"The difference on {open_[0]} is not certain"
    else:
        verdict = "The differences are certain" if len(known) > 1 else "The difference is certain"
    return f"{verdict} (95 % intervals, paired over subjects and seeds)."


def _references(table: StreamTable) -> str:
    """Return the reference methods with their mean DSC over the learned sites."""
    if not table.references:
        return ""
    cells = {name: table.rows[name]["dsc", "BM"] for name in table.references}
    numbers = {name: "" if cell.mean is None else f" {_percent(cell)}" for name, cell in cells.items()}
    methods = ", ".join(f"{name} ({why}){numbers[name]}" for name, why in table.references.items())
    return f"For reference, not ranked: {methods}."


def _forgot(pair: _Pair, order: Sequence[str]) -> str:
    """Return what the method lost on earlier sites, beside the baseline."""
    if len(order) < 2:
        return "Only one site was learned, so there was nothing to forget."
    ours, theirs = pair.cell("BT"), pair.cell("BT", of_baseline=True)
    if ours is None:
        return "Unknown: not every earlier site has a test subject."
    sites = "the earlier sites" if len(order) > 2 else f"site {order[0]}"
    sentence = f"{pair.method} {_moved(ours)} of DSC on {sites}"
    if theirs is None:
        return f"{sentence}."
    return f"{sentence}; {pair.baseline} {_moved(theirs)}. Difference: {pair.apart('BT')}."


def _new_site(pair: _Pair, held_out: str | None) -> str:
    """Return the method's DSC on the held-out site, beside the baseline's."""
    if held_out is None:
        return "Unknown: no site was held out; name one with `--unseen`."
    ours, theirs = pair.cell("FM"), pair.cell("FM", of_baseline=True)
    if ours is None:
        return f"Unknown: the held-out site {held_out} has no test subject."
    sentence = f"{pair.method} reaches a DSC of {_percent(ours)} on site {held_out}, which it has not learned"
    if theirs is None:
        return f"{sentence}."
    return f"{sentence}; {pair.baseline} {_percent(theirs)}. Difference: {pair.apart('FM')}."


def _moved(cell: Cell) -> str:
    return f"{'gained' if (cell.mean or 0.0) > 0 else 'lost'} {_points(cell.mean)}"


def _percent(cell: Cell) -> str:
    return f"{decimal(cell.mean or 0.0, DIGITS)} %"


def _signed(value: float) -> str:
    sign = "" if float(decimal(value, DIGITS)) == 0 else "+" if value > 0 else "−"
    return f"{sign}{abs(value):.{DIGITS}f}"


def _signed_points(mean: float) -> str:
    value = _signed(mean)
    return f"{value} point{'' if value[1:] == '1.0' else 's'}"


def _points(mean: float | None) -> str:
    value = f"{abs(mean or 0.0):.{DIGITS}f}"
    return f"{value} point{'' if value == '1.0' else 's'}"
