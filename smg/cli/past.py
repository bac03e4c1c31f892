"""The commands that show a model's history, and undo what it has learned or kept."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.options import Json, Model, with_loudness
from smg.errors import Misuse, SmgError
from smg.report.text import print_json, print_table

if TYPE_CHECKING:
    from smg.learner.history import History, Round, Stored
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
        origin = past.origin.model_dump(mode="json") if past.origin else None
        begun = asdict(under_way) if under_way else None
        journal = [line.model_dump(mode="json", exclude_none=True) for line in past.journal()]
        print_json(
            {"current": past.current, "origin": origin, "rounds": records, "under_way": begun, "journal": journal}
        )
        return
    print_table(
        ("round", "site", "from", "when (UTC)", "method", "iterations", "trained on", "test DSC", "kept", ""),
        [_history_row(one, past) for one in rounds],
    )
    if past.origin:
        print(f"round 0: started from {described(past.origin)}{', current' if not past.current else ''}")
    for one in rounds:
        if one.fault:
            print(f"round {one.entry.round} is damaged: {one.fault}")
    for line in past.journal():
        if line.event in ("rolled back", "accepted", "dropped exemplars", "forgot a subject", "abandoned", "exported"):
            details = ", ".join(f"{key} {value}" for key, value in line.details().items())
            print(f"{line.when[:16]}  {line.event}: {details}")
    if under_way:
        state = "under way" if under_way.at_work else "stopped; `smg learn` with the same site resumes it"
        of = f" of {under_way.iterations}" if under_way.iterations else ""
        at = f"iteration {under_way.iteration}{of} at its last checkpoint"
        print(f"round {under_way.round}, {under_way.site}: {at}, {state}")


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
        facts = {name: getattr(what, name, None) for name in ("round", "site", "iteration", "iterations")}
        print_json(facts)
    elif what is None:
        print("a damaged checkpoint was removed; no round is under way")
    else:
        print(f"round {what.round}, {what.site}, was given up at iteration {what.iteration}")


def _print_needed(learner: Learner) -> None:
    """Say which round an unfinished one goes on from, if it is not the current one."""
    under_way = learner.history.under_way()
    if under_way and under_way.parent not in (None, learner.current):
        folder, needed = learner.store.folder, under_way.parent
        print(
            f"round {under_way.round}, {under_way.site}, is under way and goes on from round {needed}: "
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
    lost = learner.history.lost()
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
        print_json([_stored_as_json(one) for one in stored])
    else:
        rows = [
            (o.site, str(o.round), str(o.kept.subjects), f"{o.kept.bytes / 1e6:.2f}", "yes" if o.in_use else "no")
            for o in stored
        ]
        print_table(("site", "round", "subjects", "MB", "in use"), rows)
        for o in stored:
            if o.kept.spectra:
                what = "amplitudes of their low frequencies, no phase and no image"
                print(f"round {o.round}: spectra of {o.kept.spectra} slices: {what}")
            if o.state.bytes:
                size = f"{o.state.bytes / 1e6:.1f} MB"
                print(f"round {o.round}: its method remembers {size}: {o.state.of_patients}")


@replay.command("drop", epilog="Example: `smg replay drop model RUNMC --yes`")
@with_loudness
def replay_drop(
    model: Model,
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a site's exemplars, sentinels and spectra, and note it in the history. This cannot be undone."""
    from smg.learner.history import History
    from smg.learner.undo import drop
    from smg.prepare.cache import cache_folder

    history = History(model)
    if site in history.sites and not yes:
        ask(f"Delete what {model} keeps of {site}? It cannot be undone.")
    dropped = drop(history, site)
    print(
        f"{dropped.exemplars} exemplars of {site}, its sentinels and its spectra removed; "
        "forgetting of this site can no longer be measured"
    )
    for name in dropped.leftovers:
        print(f"also removed, left by a process that was killed: {name}")
    if any(cache_folder().iterdir()):
        print(f"prepared scans may still be in the cache: delete {cache_folder()} to remove them")


def ask(question: str) -> None:
    """Ask on the terminal; without one, or after any answer but yes, nothing is done."""
    if not sys.stdin.isatty():
        raise Misuse(f"{question} There is no terminal to ask on; give --yes")
    if not typer.confirm(question, err=True):
        raise SmgError("nothing was deleted")


# --- rows -------------------------------------------------------------------------------------------------------------


def _stored_as_json(one: Stored) -> dict[str, object]:
    state = {"state_bytes": one.state.bytes, "state_of_patients": one.state.of_patients}
    return {"site": one.site, "round": one.round, **one.kept.model_dump(), "in_use": one.in_use, **state}


def _round_as_json(one: Round, past: History) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(("subjects", "kept", "earlier", "guard", "seconds", "versions"))
    held = None
    if one.record:
        row |= one.record.model_dump(mode="json", include=set(row))
        row |= {"method": one.record.config.method, "iterations": one.record.config.iterations}
        held = past.held(one.entry.round)
        if one.kept:  # some may have been dropped since
            row["kept"] = {s: kept.model_dump() for s, kept in (one.record.kept | {one.entry.site: one.kept}).items()}
    return {**one.entry.model_dump(), **row, "held": held, "damaged": one.fault}


def _history_row(one: Round, past: History) -> tuple[str, ...]:
    number = one.entry.round
    at = (line.when[:16] for line in past.journal() if line.round == number and line.event in ("learned", "held"))
    state = [word for word, so in (("current", number == past.current), ("damaged", one.fault)) if so]
    cells = (str(number), one.entry.site, str(one.entry.parent or "-"), next(at, "-"))
    if one.record is None:
        return (*cells, *"-----", ", ".join(state))
    if past.held(number) and number != past.current:
        state.insert(0, "held")
    return (
        *cells,
        one.record.config.method,
        str(one.record.config.iterations),
        str(one.record.subjects.train),
        mean_dsc([row.classes for row in one.record.test]),
        str(one.kept.subjects) if one.kept else "-",
        ", ".join(state),
    )


def mean_dsc(classes: list[dict[str, dict[str, float | None]]]) -> str:
    """Format the mean DSC over subjects and classes, in per cent."""
    values = [dsc for subject in classes for c in subject.values() if (dsc := c["dsc"]) is not None]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"
