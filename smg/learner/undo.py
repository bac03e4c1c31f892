"""Undo what a model has learned or kept: make another round current, and remove what is kept of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smg.errors import SmgError
from smg.learner.history import STATE, History
from smg.learner.records import JournalLine
from smg.learner.sealing import facts_in
from smg.learner.store import EMPTY, Store

DROPPING, DROPPED = "dropping exemplars", "dropped exemplars"  # events before and after


def roll_back(history: History, number: int) -> None:
    """Make an earlier round current; nothing is deleted."""
    if number in history.model.numbers and history.held(number):
        raise SmgError(f"{history.store.folder}: round {number} is held; `smg accept` takes it")
    _make_current(history, number, "rolled back")


def accept(history: History, number: int) -> None:
    """Make a held round current; nothing where it was accepted before and is current."""
    if number == 0 or (number in history.model.numbers and not history.held(number)):
        if number == history.current and number and history.record(number).held:
            return
        then = "it is current" if number == history.current else "`smg rollback` goes back to it"
        raise SmgError(f"{history.store.folder}: round {number} is not held; {then}")
    _make_current(history, number, "accepted")


def _make_current(history: History, number: int, event: str) -> None:
    store = history.store
    with store.locked():
        history.reload()
        known = history.model.numbers
        if number not in (0, *known):
            raise SmgError(f"{store.folder}: no round {number}; it has {', '.join(map(str, known)) or 'none yet'}")
        last = store.journal()[-1:]
        if history.current == number and [(line.event, line.round) for line in last] == [(event, number)]:
            return  # done and noted: the process was killed before it could say so
        store.write(history.model.model_copy(update={"current": number}))
        store.note(event, round=number)
        history.reload()


@dataclass(frozen=True)
class Dropped:
    """What `drop` removed."""

    exemplars: int  # subjects; those of a damaged file are not counted
    leftovers: tuple[str, ...]  # files and folders that killed processes had left


def drop(history: History, site: str) -> Dropped:
    """Remove what every round holds of a site's patients, damaged or not, and what killed processes left lying about.

    It is exemplars, sentinels, spectra, and what a method's state says is of that site. The journal notes it before and
    after: a process that died between is finished by the next.
    """
    store = history.store
    with store.locked():
        history.reload()
        left = store.remove_leftovers()
        rounds = [entry.round for entry in history.model.rounds if entry.site == site]
        if not rounds:
            raise SmgError(
                f"{store.folder}: site {site} was never learned; it has {', '.join(history.sites) or 'none'}"
            )
        arrays, exemplars = _arrays_of(history, rounds)
        states = _states_of(history, site)
        begun = unfinished(store.journal(), DROPPING, DROPPED, site=site)
        if not arrays and not states and not left and begun is None:
            raise SmgError(f"{store.folder}: nothing of site {site} is kept any more; there is nothing to drop")
        if begun is None:
            store.note(DROPPING, site=site, subjects=exemplars)
        for number, name in arrays:
            store.replace_tensors(number, name, {})
        for number in states:
            state = store.read_tensors(number, "state")
            store.replace_tensors(number, "state", {name: t for name, t in state.items() if not _is_of(name, site)})
        store.note(DROPPED, site=site, subjects=begun.details().get("subjects", exemplars) if begun else exemplars)
        return Dropped(exemplars, tuple(left))


def unfinished(journal: Sequence[JournalLine], begin: str, end: str, **details: str) -> JournalLine | None:
    """Return the line of an event that was begun and not ended, as a process died; None if there is none."""
    lines = [line for line in journal if line.event in (begin, end) and details.items() <= line.details().items()]
    return lines[-1] if lines and lines[-1].event == begin else None


def _arrays_of(history: History, rounds: Sequence[int]) -> tuple[list[tuple[int, str]], int]:
    """Return the files of a site's rounds that hold something, or may, and the number of exemplars in them."""
    store, found, exemplars = history.store, [], 0
    for number in rounds:
        files = history.record(number).files
        for name in ("exemplars", "sentinels", "spectra"):
            if f"{name}.safetensors" in files:
                subjects, there = _subjects_in(store, number, name)
                exemplars += subjects if name == "exemplars" else 0
                if there or files[f"{name}.safetensors"] != EMPTY:  # killed half-way before
                    found.append((number, name))
    return found, exemplars


def _states_of(history: History, site: str) -> list[int]:
    """Return the rounds whose state holds something of a site's patients: a later round's may hold it too."""
    found = []
    for number in history.model.numbers:
        record = history.record(number)
        if STATE in record.files:
            state = history.store.read_tensors(number, "state")
            if record.replaced or any(_is_of(name, site) for name in state):  # or a process died while it did so
                found.append(number)
    return found


def _is_of(name: str, site: str) -> bool:
    """Return whether an array of a method's state holds data of a site's patients."""
    return name.startswith(f"{site}/")


def _subjects_in(store: Store, number: int, name: str) -> tuple[int, bool]:
    """Return how many subjects a round's file holds, and whether it holds anything; a damaged one may."""
    try:
        path, is_empty = store.check_file(number, name)
        return facts_in(path).subjects, not is_empty
    except (SmgError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, True
