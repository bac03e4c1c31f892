"""The answer in words: did the methods forget, and do they work at a new site?

Every sentence is read off the table in the paper's form, and claims no more than the table supports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg.evaluation.metrics import METRICS, decimal
from smg.report.runs import Run
from smg.report.table import Cell, StreamTable, enumerated, leaders

Cells = dict[str, Cell]  # method -> one measure of DSC, for the methods that have a value
DIGITS = METRICS["dsc"].digits


@dataclass(frozen=True)
class Verdict:
    """The answers for one stream."""

    summary: str  # the sentences above the table
    forgot: str
    new_site: str
    forgot_figure: str = ""  # the number in large type
    new_site_figure: str = ""


def verdict(table: StreamTable, runs: Sequence[Run]) -> Verdict:
    """Return what the table of a stream shows; the figures are of the method that remembers best."""
    ranked = {name: table.rows[name] for name in table.ranked}
    kept, change, new = (
        {name: row["dsc", m] for name, row in ranked.items() if row["dsc", m].mean is not None}
        for m in ("BM", "BT", "FM")
    )
    order, held_out = runs[0].order, runs[0].unseen
    best = next(iter(_best(kept) or _best(new)), "")
    sentences = [_summary(kept, change, new, held_out), _caution(kept, new, table), _references(table)]
    return Verdict(
        summary=" ".join(filter(None, sentences)),
        forgot=_forgot(change, best, order),
        new_site=_new_site(new, best, held_out),
        forgot_figure=_signed(change[best].mean or 0.0) if best in change else "",
        new_site_figure=f"{_percent(new[best])} DSC" if best in new else "",
    )


def _best(cells: Cells) -> list[str]:
    return leaders({name: cell.mean for name, cell in cells.items() if cell.mean is not None}, "dsc")


def _summary(kept: Cells, change: Cells, new: Cells, held_out: str | None) -> str:
    """Return who is best on the learned sites, who is best on the held-out site, and who forgets most."""
    if not kept:
        return "Memory is unknown: not every learned site has a test subject."
    best, best_new = _best(kept), _best(new)
    several = len(best) > 1
    if len(kept) == 1:
        there = f", and of {_percent(new[best[0]])} on the held-out site {held_out}" if best[0] in new else ""
        return f"{best[0]} ends with a mean DSC of {_percent(kept[best[0]])} over the learned sites{there}."
    remember = "remember" if several else "remembers"
    sentences = [f"{enumerated(best)} {remember} the learned sites best: mean DSC {_percent(kept[best[0]])}."]
    if new:
        number = f"{_percent(new[best_new[0]])} on the held-out site {held_out}"
        if best == best_new:
            sentences.append(f"{'They are' if several else 'It is'} also best at a new site: {number}.")
        else:
            are = "are" if len(best_new) > 1 else "is"
            sentences.append(f"At a new site, {enumerated(best_new)} {are} best: {number}.")
        worst = min(change, key=lambda name: change[name].mean or 0.0) if change else ""
        if worst not in ("", *best) and (change[worst].mean or 0.0) < 0:
            sentences.append(f"{worst} forgets most: {_points(change[worst].mean)} of DSC.")
    return " ".join(sentences)


def _caution(kept: Cells, new: Cells, table: StreamTable) -> str:
    """Return a warning where a lead may be due to chance."""
    if max(len(seeds) for seeds in table.seeds.values()) < 2:
        return "Each method ran with one seed only, so the differences may be due to chance." if len(kept) > 1 else ""
    leads = [_narrow_lead("on the learned sites", kept), _narrow_lead("at the new site", new)]
    narrow = "; ".join(filter(None, leads))
    return f"The lead is smaller than the standard deviation over seeds: {narrow}." if narrow else ""


def _narrow_lead(place: str, cells: Cells) -> str:
    """Return the lead of the first over the second, where it is less than the standard deviation of either."""
    ranked = sorted(cells, key=lambda name: -(cells[name].mean or 0.0))
    if len(ranked) < 2 or len(_best(cells)) > 1:
        return ""
    one, two = cells[ranked[0]], cells[ranked[1]]
    lead, spread = (one.mean or 0.0) - (two.mean or 0.0), max(one.spread or 0.0, two.spread or 0.0)
    return f"{ranked[0]} leads {ranked[1]} by {_points(lead)} {place}" if lead < spread else ""


def _references(table: StreamTable) -> str:
    """Return the reference methods with their mean DSC over the learned sites."""
    if not table.references:
        return ""
    cells = {name: table.rows[name]["dsc", "BM"] for name in table.references}
    numbers = {name: "" if cell.mean is None else f" {_percent(cell)}" for name, cell in cells.items()}
    methods = ", ".join(f"{name} ({why}){numbers[name]}" for name, why in table.references.items())
    return f"For reference, not ranked: {methods}."


def _forgot(change: Cells, best: str, order: Sequence[str]) -> str:
    """Return what the best method forgot, beside the method that differs most from it."""
    if len(order) < 2:
        return "Only one site was learned, so there was nothing to forget."
    if best not in change:
        return "Unknown: not every earlier site has a test subject."
    sites = "the earlier sites" if len(order) > 2 else f"site {order[0]}"
    sentence = f"{best} {_moved(change[best])} of DSC on {sites}"
    ranked = sorted(change, key=lambda name: change[name].mean or 0.0)
    if len(ranked) == 1:
        return f"{sentence}."
    if ranked[0] != best:
        return f"{sentence}; {ranked[0]} {_moved(change[ranked[0]])}."
    more = ", more than any other method" if (change[best].mean or 0.0) < 0 else ""
    return f"{sentence}{more}; {ranked[-1]} {_moved(change[ranked[-1]])}."


def _new_site(new: Cells, best: str, held_out: str | None) -> str:
    """Return the DSC of the best method on the held-out site, beside another method's."""
    if held_out is None:
        return "Unknown: no site was held out; name one with `--unseen`."
    if best not in new:
        return f"Unknown: the held-out site {held_out} has no test subject."
    sentence = f"{best} reaches a DSC of {_percent(new[best])} on site {held_out}, which it has not learned"
    best_there = _best(new)
    if best not in best_there:
        return f"{sentence}; {best_there[0]} is better there: {_percent(new[best_there[0]])}."
    worst = min(new, key=lambda name: new[name].mean or 0.0)
    return f"{sentence}; {worst} reaches {_percent(new[worst])}." if worst != best else f"{sentence}."


def _moved(cell: Cell) -> str:
    return f"{'gained' if (cell.mean or 0.0) > 0 else 'lost'} {_points(cell.mean)}"


def _percent(cell: Cell) -> str:
    return f"{decimal(cell.mean or 0.0, DIGITS)} %"


def _signed(mean: float) -> str:
    sign = "" if float(decimal(mean, DIGITS)) == 0 else "+" if mean > 0 else "−"
    return f"{sign}{_points(mean)}"


def _points(mean: float | None) -> str:
    value = f"{abs(mean or 0.0):.{DIGITS}f}"
    return f"{value} point{'' if value == '1.0' else 's'}"
