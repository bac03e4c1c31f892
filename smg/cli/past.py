"""The commands that show a model's history, and undo what it has learned or kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import Json, Model, with_loudness
from smg.report.text import print_json, print_table

if TYPE_CHECKING:
    from smg.learner.history import History, Round
    from smg.learner.learner import Learner

replay = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Show or remove the subjects kept of each site."
)


def history(model: Model, as_json: Json = False) -> None:
    """List every round of the model with its results, which round is current, and the one under way.

    Example: `smg history model`
    """
    from smg.learner.history import History, described

    past = History(model)
    rounds, under_way = past.rounds(), past.under_way()
    if as_json:
        records = [_round_as_json(one, past) for one in rounds]
        whole = {"current": past.current, "origin": past.origin, "rounds": records, "under_way": under_way}
        print_json(whole | {"journal": past.journal})
        return
    print_table(
        ("round", "site", "from", "when (UTC)", "method", "iterations", "trained on", "test DSC", "kept", ""),
        [_history_row(one, past) for one in rounds],
    )
    if past.origin:
        print(f"round 0: started from {described(past.origin)}{', current' if not past.current else ''}")
    for one in rounds:
        if one.fault:
            print(f"round {one.number} is damaged: {one.fault}")
    for event in past.journal:
        if event["event"] in ("rolled back", "accepted", "dropped exemplars", "abandoned"):
            details = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("when", "event"))
            print(f"{event['when'][:16]}  {event['event']}: {details}")
    if under_way:
        state = "under way" if under_way["at_work"] else "stopped; `smg learn` with the same site resumes it"
        of = f" of {under_way['iterations']}" if under_way["iterations"] else ""
        at = f"iteration {under_way['iteration']}{of} at its last checkpoint"
        print(f"round {under_way['round']}, {under_way['site']}: {at}, {state}")


def rollback(
    model: Model,
    number: Annotated[
        int,
        typer.Argument(metavar="ROUND", help="Number of the round to go back to; 0 for the untrained model.", min=0),
    ],
) -> None:
    """Make an earlier round current. Nothing is deleted: the later rounds are kept and can be made current again.

    Example: `smg rollback model 2`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.rollback(number)
    _print_known(learner, number)
    _print_needed(learner)


def abandon(model: Model, as_json: Json = False) -> None:
    """Give up the round that is under way: its checkpoint is deleted, and the history notes it.

    Example: `smg abandon model`
    """
    from smg.learner.learner import Learner

    what = Learner(model).abandon()
    if as_json:
        print_json(what)
    elif what["round"] is None:
        print("a damaged checkpoint was removed; no round is under way")
    else:
        print(f"round {what['round']}, {what['site']}, was given up at iteration {what['iteration']}")


def _print_needed(learner: Learner) -> None:
    """Say which round an unfinished one goes on from, if it is not the current one."""
    from smg.learner.history import History

    under_way = History(learner.store.folder).under_way()
    if under_way and under_way["parent"] not in (None, learner.current):
        folder, needed = learner.store.folder, under_way["parent"]
        print(
            f"round {under_way['round']}, {under_way['site']}, is under way and goes on from round {needed}: "
            f"`smg rollback {folder} {needed}` before it is resumed, or `smg abandon {folder}`"
        )


def accept(
    model: Model, number: Annotated[int, typer.Argument(metavar="ROUND", help="Number of the held round.", min=1)]
) -> None:
    """Make a round current that `learn` has held back because an earlier site got worse.

    Example: `smg accept model 3`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.accept(number)
    _print_known(learner, number)


def _print_known(learner: Learner, number: int) -> None:
    """Say which sites the current version knows, and which it has lost."""
    from smg.learner.history import History

    lost = History(learner.store.folder).lost()
    known = [site for site in learner.sites if site not in lost]
    print(f"round {number} is current; the model knows {', '.join(known) or 'no site yet'}")
    for site, (best, after) in lost.items():
        print(f"it has lost {site}: DSC {100 * best:.1f} % at its best, {100 * after:.1f} % when it was last measured")


@replay.command("show", epilog="Example: `smg replay show model`")
@with_loudness
def replay_show(model: Model, as_json: Json = False) -> None:
    """List how many subjects and megabytes of each site are kept, for each round, and what its method remembers."""
    from smg.learner.history import History

    stored = History(model).stored()
    if as_json:
        print_json(stored)
    else:
        rows = [
            (o["site"], str(o["round"]), str(o["subjects"]), f"{o['bytes'] / 1e6:.2f}", "yes" if o["in_use"] else "no")
            for o in stored
        ]
        print_table(("site", "round", "subjects", "MB", "in use"), rows)
        for o in stored:
            if o["spectra"]:
                what = "amplitudes of their low frequencies, no phase and no image"
                print(f"round {o['round']}: spectra of {o['spectra']} slices: {what}")
            if o["state_bytes"]:
                size = f"{o['state_bytes'] / 1e6:.1f} MB"
                print(f"round {o['round']}: its method remembers {size}: {o['state_of_patients']}")


@replay.command("drop", epilog="Example: `smg replay drop model RUNMC`")
@with_loudness
def replay_drop(model: Model, site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]) -> None:
    """Delete a site's exemplars, sentinels and spectra, and note it in the history. This cannot be undone."""
    from smg.learner.learner import Learner

    count = Learner(model).drop(site)
    print(
        f"{count} exemplars of {site}, its sentinels and its spectra removed; "
        "forgetting of this site can no longer be measured"
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _round_as_json(one: Round, past: History) -> dict[str, Any]:
    keys = ("subjects", "kept", "earlier", "guard", "seconds", "versions")
    row = {key: one.record.get(key) if one.record else None for key in keys}
    if one.record:
        row |= {key: one.record["config"][key] for key in ("method", "iterations")}
    if one.kept and row["kept"]:
        row["kept"] = row["kept"] | {one.site: one.kept}  # some may have been dropped since
    held = past.held(one.record) if one.record else None
    return {"round": one.number, "parent": one.parent, "site": one.site, **row, "held": held, "damaged": one.fault}


def _history_row(one: Round, past: History) -> tuple[str, ...]:
    at = (e["when"][:16] for e in past.journal if e.get("round") == one.number and e["event"] in ("learned", "held"))
    state = [word for word, so in (("current", one.number == past.current), ("damaged", one.fault)) if so]
    cells = (str(one.number), one.site, str(one.parent or "-"), next(at, "-"))
    if one.record is None:
        return (*cells, *"-----", ", ".join(state))
    if past.held(one.record) and one.number != past.current:
        state.insert(0, "held")
    config = one.record["config"]
    return (
        *cells,
        config["method"],
        str(config["iterations"]),
        str(one.record["subjects"]["train"]),
        mean_dsc([row["classes"] for row in one.record["test"]]),
        str(one.kept["subjects"]) if one.kept else "-",
        ", ".join(state),
    )


def mean_dsc(classes: list[dict[str, dict[str, float]]]) -> str:
    """Format the mean DSC over subjects and classes, in per cent."""
    values = [c["dsc"] for subject in classes for c in subject.values()]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"
