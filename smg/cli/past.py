"""The commands that show a model's history, and undo what it has learned or kept."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.effect_tables import print_effects, print_standings, standings_as_json
from smg.cli.encryption import with_key
from smg.cli.options import Json, Model, with_loudness
from smg.errors import Misuse, SmgError
from smg.report.text import duration, print_json, print_line, print_table

if TYPE_CHECKING:
    from smg.learner.history import History, Round, Stored
    from smg.learner.learner import Learner
    from smg.learner.site_effects import Standing

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
    standings = _standings(past)
    if as_json:
        records = [_round_as_json(one, past) for one in rounds]
        origin = past.origin.model_dump(mode="json") if past.origin else None
        begun = asdict(under_way) if under_way else None
        journal = [line.model_dump(mode="json", exclude_none=True) for line in past.journal()]
        now = {"current": past.current, "origin": origin, **standings_as_json(standings)}
        print_json({**now, "rounds": records, "under_way": begun, "journal": journal})
        return
    print_table(
        ("round", "site", "from", "when (UTC)", "method", "iterations", "time", "trained", "kept", ""),
        [_history_row(one, past) for one in rounds],
    )
    if effects := [effect for one in rounds if one.record for effect in past.effects(one.entry.round)]:
        print_effects(effects, by_round=True)
    if past.origin:
        print_line(f"round 0: started from {described(past.origin)}{', current' if not past.current else ''}")
    for one in rounds:
        if one.fault:
            print_line(f"round {one.entry.round} is damaged: {one.fault}")
    for line in past.journal():
        if line.event in (
            "rolled back",
            "accepted",
            "dropped exemplars",
            "forgot a subject",
            "abandoned",
            "exported",
            "changed the key",
        ):
            details = ", ".join(f"{key} {value}" for key, value in line.details().items())
            print_line(f"{line.when[:16]}  {line.event}: {details}")
    if rounds:
        print_standings(standings)
    if under_way:
        state = "under way" if under_way.at_work else "stopped; `smg learn` with the same site resumes it"
        of = f" of {under_way.iterations}" if under_way.iterations else ""
        at = f"iteration {under_way.iteration}{of} at its last checkpoint"
        print_line(f"round {under_way.round}, {under_way.site}: {at}, {state}")


def _standings(past: History) -> list[Standing]:
    """Return the standing of every learned site; none where a round that led to the version is damaged."""
    try:
        return past.standings()
    except SmgError:
        return []


def rollback(
    model: Model,
    number: Annotated[
        int,
        typer.Argument(metavar="ROUND", help="Number of the round to go back to; 0 for the untrained model.", min=0),
    ],
    as_json: Json = False,
) -> None:
    """Make an earlier round current. Nothing is deleted: the later rounds are kept and can be made current again.

    Example: `smg rollback model 2`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.rollback(number)
    _print_current(learner.history, as_json)
    if not as_json:
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
        print_line("a damaged checkpoint was removed; no round is under way")
    else:
        print_line(f"round {what.round}, {what.site}, was given up at iteration {what.iteration}")


def _print_needed(learner: Learner) -> None:
    """Say which round an unfinished one goes on from, if it is not the current one."""
    under_way = learner.history.under_way()
    if under_way and under_way.parent not in (None, learner.current):
        folder, needed = learner.store.folder, under_way.parent
        print_line(
            f"round {under_way.round}, {under_way.site}, is under way and goes on from round {needed}: "
            f"`smg rollback {folder} {needed}` before it is resumed, or `smg abandon {folder}`"
        )


def accept(
    model: Model,
    number: Annotated[int, typer.Argument(metavar="ROUND", help="Number of the held round.", min=1)],
    as_json: Json = False,
) -> None:
    """Make a round current that `learn` has held back because an earlier site got worse, and say what it did.

    Example: `smg accept model 3`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.accept(number)
    _print_current(learner.history, as_json)


def _print_current(past: History, as_json: bool) -> None:
    """Print what the round that is now current did to every site, and which sites the model knows."""
    number, standings = past.current, past.standings()
    effects = past.effects(number) if number else []
    if as_json:
        did = [effect.as_json() for effect in effects]
        print_json({"current": number, "sites": did, **standings_as_json(standings)})
        return
    print_line(f"round {number} is current")
    if effects:
        print_effects(effects)
    print_standings(standings)


@replay.command("show", epilog="Example: `smg replay show model`")
@with_loudness
def replay_show(model: Model, as_json: Json = False) -> None:
    """List what the model holds of patients: by kind, and for each site and round what is kept for replay."""
    from smg.learner.history import History
    from smg.learner.holdings import holdings

    past = History(model)
    stored, encryption = past.stored(), past.model.encryption
    if as_json:
        print_json([_stored_as_json(one) | {"encrypted": encryption is not None} for one in stored])
    else:
        held = [one for one in holdings(past) if one.count]
        sizes = ["" if one.bytes is None else f"{one.bytes / 1e6:.2f}" for one in held]
        print_table(
            ("held of patients", "", "MB", "removed by"),
            [(o.kind.what, f"{o.count} {o.unit}", size, o.kind.removal) for o, size in zip(held, sizes, strict=True)],
        )
        rows = [
            (o.site, str(o.round), str(o.kept.subjects), f"{o.kept.bytes / 1e6:.2f}", "yes" if o.in_use else "no")
            for o in stored
        ]
        print_table(("site", "round", "subjects", "MB", "in use"), rows)
        for o in stored:
            if o.kept.spectra:
                what = "amplitudes of their low frequencies, no phase and no image"
                print_line(f"round {o.round}: spectra of {o.kept.spectra} slices: {what}")
            if o.state.bytes:
                size = f"{o.state.bytes / 1e6:.1f} MB"
                print_line(f"round {o.round}: its method remembers {size}: {o.state.of_patients}")
        if encryption:
            keys = " or ".join(encryption.users)
            print_line(f"encrypted, by key {keys}: slices, masks, spectra, a method's state, and checkpoints")
        else:
            print_line("not encrypted: who reads the folder sees the slices that are kept")
        print_line("in the clear: weights; in the rounds' records aliases, features and metrics")


@replay.command("drop", epilog="Example: `smg replay drop model RUNMC --yes`")
@with_loudness
@with_key
def replay_drop(
    model: Model,
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a site's exemplars, sentinels and spectra, and note it in the history. This cannot be undone."""
    from smg.learner.history import History
    from smg.learner.undo import drop
    from smg.prepare.cache import cache_path, is_cache_empty

    history = History(model)
    if site in history.sites and not yes:
        ask(f"Delete what {model} keeps of {site}? It cannot be undone.")
    dropped = drop(history, site)
    print_line(
        f"{dropped.exemplars} exemplars of {site}, its sentinels and its spectra removed; "
        "forgetting of this site can no longer be measured"
    )
    for name in dropped.leftovers:
        print_line(f"also removed, left by a process that was killed: {name}")
    if not is_cache_empty():
        print_line(f"prepared scans may still be in the cache: delete {cache_path()} to remove them")


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
    row: dict[str, object] = dict.fromkeys(("subjects", "kept", "earlier", "guard", "seconds", "versions", "sites"))
    held = None
    if one.record:
        row |= one.record.model_dump(mode="json", include=set(row) - {"sites"})
        row |= {"method": one.record.config.method, "iterations": one.record.config.iterations}
        held = past.held(one.entry.round)
        row["sites"] = [effect.as_json() for effect in past.effects(one.entry.round)]
        if one.kept:  # some may have been dropped since
            row["kept"] = {s: kept.model_dump() for s, kept in (one.record.kept | {one.entry.site: one.kept}).items()}
    return {**one.entry.model_dump(), **row, "held": held, "damaged": one.fault}


def _history_row(one: Round, past: History) -> tuple[str, ...]:
    number = one.entry.round
    at = (
        line.when[:16].replace("T", " ")
        for line in past.journal()
        if line.round == number and line.event in ("learned", "held")
    )
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
        duration(one.record.seconds),
        str(one.record.subjects.train),
        str(one.kept.subjects) if one.kept else "-",
        ", ".join(state),
    )
