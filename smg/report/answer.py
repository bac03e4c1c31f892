"""The answer in words: did it forget, and does it work elsewhere? Read off the paper's table, no more than it bears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg.report.runs import Run
from smg.report.table import DIGITS, Cell, StreamTable, leaders, listed, printed


@dataclass(frozen=True)
class Verdict:
    """One stream's answers."""

    sentence: str  # above the table
    forgot: str
    elsewhere: str
    forgot_figure: str = ""  # the number that stands large
    elsewhere_figure: str = ""


def verdict(table: StreamTable, runs: Sequence[Run]) -> Verdict:
    """What a stream's table shows."""
    stream = runs[0].results["stream"]
    rivals = {name: table.rows[name] for name in table.rivals}
    kept, lost, new = ({n: r["dsc", m] for n, r in rivals.items() if r["dsc", m].mean is not None}
                       for m in ("BM", "BT", "FM"))  # fmt: skip
    hero = next(iter(_best(kept) or _best(new)), "")
    return Verdict(
        sentence=" ".join(filter(None, [_summary(kept, lost, new, stream), _caution(kept, new, table), _scale(table)])),
        forgot=_forgot(lost, hero, stream["order"]),
        elsewhere=_elsewhere(new, hero, stream["unseen"]),
        forgot_figure=_signed(lost[hero].mean or 0.0) if hero in lost else "",
        elsewhere_figure=f"{_percent(new[hero])} DSC" if hero in new else "",
    )


def _best(cells: dict[str, Cell]) -> list[str]:
    return leaders({name: cell.mean for name, cell in cells.items() if cell.mean is not None}, "dsc")


def _have(names: Sequence[str]) -> str:
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'}"


def _summary(kept: dict[str, Cell], lost: dict[str, Cell], new: dict[str, Cell], stream: dict[str, object]) -> str:
    if not kept:
        return "Memory cannot be told: not every site that was learned has a test subject."
    heroes, travellers, unseen = _best(kept), _best(new), stream["unseen"]
    hero = heroes[0]
    if len(kept) == 1:
        there = f", and {_percent(new[hero])} on {unseen}, which it never saw" if hero in new else ""
        return f"{hero} ends with a mean DSC of {_percent(kept[hero])} over the sites it learned{there}."
    first = f"In memory {_have(heroes)} the highest mean, a DSC of {_percent(kept[hero])} over the sites learned"
    if not new:
        return f"{first}."
    there = f"{_percent(new[travellers[0]])} on {unseen}, a site never seen"
    second = f", and elsewhere too: {there}" if heroes == travellers else f"; elsewhere {_have(travellers)}: {there}"
    worst = min(lost, key=lambda name: lost[name].mean or 0.0) if lost else ""
    fell = worst not in ("", *heroes) and (lost[worst].mean or 0.0) < 0
    third = f" {worst} forgets most: {_points(lost[worst].mean)} of DSC." if fell else ""
    return f"{first}{second}.{third}"


def _caution(kept: dict[str, Cell], new: dict[str, Cell], table: StreamTable) -> str:
    """What keeps a reader from more than the numbers bear."""
    if max(len(seeds) for seeds in table.seeds.values()) < 2:
        return "One seed each: what is chance and what is merit cannot be told apart yet." if len(kept) > 1 else ""
    leads = [lead for place, cells in (("In memory", kept), ("elsewhere", new)) if (lead := _narrow_lead(place, cells))]
    if not leads:
        return ""
    told = "; ".join(leads)
    return f"{told[0].upper()}{told[1:]}: within the spread over seeds."


def _scale(table: StreamTable) -> str:
    """The bounds, by what they keep."""
    means = {name: table.rows[name]["dsc", "BM"] for name in table.bounds}
    told = [f"{name} {_percent(cell)}" for name, cell in means.items() if cell.mean is not None]
    return f"{table.scale}{': ' * bool(told)}{', '.join(told)}." if table.scale else ""


def _narrow_lead(place: str, cells: dict[str, Cell]) -> str:
    """Of the first over the second, where it is less than either's standard deviation over seeds."""
    ranked = sorted(cells, key=lambda name: -(cells[name].mean or 0.0))
    if len(ranked) < 2 or len(_best(cells)) > 1:
        return ""
    one, two = cells[ranked[0]], cells[ranked[1]]
    lead, spread = (one.mean or 0.0) - (two.mean or 0.0), max(one.spread or 0.0, two.spread or 0.0)
    return f"{place} {ranked[0]} leads {ranked[1]} by {_points(lead)}" if lead < spread else ""


def _forgot(lost: dict[str, Cell], hero: str, order: Sequence[str]) -> str:
    if len(order) < 2:
        return "Only one site was learned, so there was nothing to forget."
    if hero not in lost:
        return "This cannot be told: not every earlier site has a test subject."
    sites = "the earlier sites" if len(order) > 2 else f"site {order[0]}"
    told = f"{hero} {_moved(lost[hero])} of DSC on {sites}"
    ranked = sorted(lost, key=lambda name: lost[name].mean or 0.0)
    if len(ranked) == 1:
        return f"{told}."
    if ranked[0] != hero:
        return f"{told}; {ranked[0]} {_moved(lost[ranked[0]])}."
    more = ", more than any other" if (lost[hero].mean or 0.0) < 0 else ""
    return f"{told}{more}; {ranked[-1]} {_moved(lost[ranked[-1]])}."


def _elsewhere(new: dict[str, Cell], hero: str, unseen: str | None) -> str:
    if unseen is None:
        return "No site was kept unseen, so this cannot be told; name one with `--unseen`."
    if hero not in new:
        return f"This cannot be told: site {unseen} has no test subject."
    told = f"{hero} has a DSC of {_percent(new[hero])} on site {unseen}, which it never saw"
    best = _best(new)
    if hero not in best:
        return f"{told}; {best[0]} does better there: {_percent(new[best[0]])}."
    worst = min(new, key=lambda name: new[name].mean or 0.0)
    return f"{told}; {worst} {_percent(new[worst])}." if worst != hero else f"{told}."


def _moved(cell: Cell) -> str:
    return f"{'gained' if (cell.mean or 0.0) > 0 else 'lost'} {_points(cell.mean)}"


def _percent(cell: Cell) -> str:
    return f"{printed(cell.mean or 0.0, DIGITS['dsc'])} %"


def _signed(mean: float) -> str:
    sign = "" if float(printed(mean, DIGITS["dsc"])) == 0 else "+" if mean > 0 else "−"
    return f"{sign}{_points(mean)}"


def _points(mean: float | None) -> str:
    value = abs(mean or 0.0)
    return f"{value:.1f} point{'' if f'{value:.1f}' == '1.0' else 's'}"
