"""Print what rounds did to every site, and which sites a model still knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smg.report.text import print_table, printable

if TYPE_CHECKING:
    from smg.learner.site_effects import Effect, Standing

HEADS = ("site", "before", "after", "change", "by slices", "evidence", "exemplars", "")

LITTLE = 0.001  # of DSC: a best so far that is not worth a word


def print_effects(effects: Sequence[Effect], by_round: bool = False) -> None:
    """Print a table of effects, DSC in per cent; with `by_round` for several rounds, each named once."""
    from smg.learner.guard import SPREAD

    rows = []
    for place, one in enumerate(effects):
        is_first = place == 0 or effects[place - 1].round != one.round
        rows.append(((str(one.round) if is_first else "",) if by_round else ()) + effect_cells(one))
    heads = ("round", *HEADS) if by_round else HEADS
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]  # a terminal is narrow
    print_table([heads[place] for place in filled], [[row[place] for place in filled] for row in rows])
    notes = ["DSC in %"]
    if any(one.error is not None for one in effects):
        notes.append("± is a standard error")
    if any(one.exemplars for one in effects):
        notes.append("exemplars are trained on: no evidence")
    print("; ".join(notes))
    if any(one.error is not None and one.subjects == 1 for one in effects):
        print(f"the error of a single subject cannot be measured: {100 * SPREAD:g} is assumed")


def effect_cells(one: Effect) -> tuple[str, ...]:
    """Return an effect as the cells of a row."""
    change = "" if one.change is None else f"{100 * one.change:+.1f}"
    if change and one.error is not None:
        change += f" ± {100 * one.error:.1f}"
    slices = f"{0.0 - 100 * one.slices.fall:+.1f} ± {100 * one.slices.error:.1f}" if one.slices else ""
    is_below = one.best is not None and one.before is not None and one.best - one.before > LITTLE
    marks = [f"best {_percent(one.best)}"] * is_below + ["lost"] * one.lost
    exemplars = "→".join(f"{100 * dsc:.1f}" for dsc in one.exemplars) if one.exemplars else ""
    return one.site, _percent(one.before), _percent(one.after), change, slices, one.grounds, exemplars, ", ".join(marks)


def print_standings(standings: Sequence[Standing]) -> None:
    """Print which sites a version knows, which it has lost, and of which it cannot tell."""
    known = [one.site for one in standings if one.state == "known"]
    print(printable(f"the model knows {', '.join(known) or ('none of its sites' if standings else 'no site yet')}"))
    for one in standings:
        if one.state != "known":
            print(printable(str(one)))


def standings_as_json(standings: Sequence[Standing]) -> dict[str, object]:
    """Return the sites that a version knows, has lost and cannot measure, for JSON."""
    of = {state: [one for one in standings if one.state == state] for state in ("known", "lost", "not measured")}
    return {
        "knows": [one.site for one in of["known"]],
        "lost": {one.site: {"best": one.best, "after": one.after, "round": one.round} for one in of["lost"]},
        "not_measured": {one.site: {"since_round": one.round} for one in of["not measured"]},
    }


def _percent(dsc: float | None) -> str:
    return "-" if dsc is None else f"{100 * dsc:.1f}"
