"""Undo what a model has learned or kept: make another round current, and remove what is kept of a site."""

from __future__ import annotations

from dataclasses import dataclass

from smg.errors import SmgError
from smg.learner.history import STATE, History
from smg.learner.store import EMPTY, Store


def roll_back(history: History, number: int) -> None:
    """Make an earlier round current; nothing is deleted."""
    if number in history.model.numbers and history.held(number):
        raise SmgError(f"{history.store.folder}: round {number} is held; `smg accept` takes it")
    _make_current(history, number, "rolled back")


def accept(history: History, number: int) -> None:
    """Make a held round current."""
    if number == 0 or (number in history.model.numbers and not history.held(number)):
        raise SmgError(f"{history.store.folder}: round {number} is not held; `smg rollback` goes back to it")
    _make_current(history, number, "accepted")


def _make_current(history: History, number: int, event: str) -> None:
    store = history.store
    with store.locked():
        history.reload()
        known = history.model.numbers
        if number not in (0, *known):
            raise SmgError(f"{store.folder}: no round {number}; it has {', '.join(map(str, known)) or 'none yet'}")
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

    It is exemplars, sentinels, spectra, and what a method's state says is of that site. The journal notes it.
    """
    store = history.store
    with store.locked():
        history.reload()
        rounds = [entry.round for entry in history.model.rounds if entry.site == site]
        if not rounds:
            raise SmgError(
                f"{store.folder}: site {site} was never learned; it has {', '.join(history.sites) or 'none'}"
            )
        kept, removed = 0, []
        for number in rounds:
            for name in ("exemplars", "sentinels", "spectra"):
                if f"{name}.safetensors" in history.record(number).files:
                    subjects, there = _subjects_in(store, number, name)
                    kept += subjects if name == "exemplars" else 0
                    if there or history.record(number).files[f"{name}.safetensors"] != EMPTY:  # killed half-way before
                        removed.append(f"{name} of round {number}")
                        store.replace_tensors(number, name, {})
        removed += _drop_state(history, site)
        left = store.remove_leftovers()
        if not removed and not left:
            raise SmgError(f"{store.folder}: nothing of site {site} is kept any more; there is nothing to drop")
        store.note("dropped exemplars", site=site, subjects=kept)
        return Dropped(kept, tuple(left))


def _subjects_in(store: Store, number: int, name: str) -> tuple[int, bool]:
    """Return how many subjects a round's file holds, and whether it holds anything; a damaged one may."""
    try:
        tensors = store.read_tensors(number, name)
    except SmgError:
        return 0, True
    return sum(one.endswith(".images") for one in tensors), bool(tensors)


def _drop_state(history: History, site: str) -> list[str]:
    """Remove what the states of all rounds hold of a site's patients: a later round's may hold it too."""
    store, removed = history.store, []
    for number in history.model.numbers:
        record = history.record(number)
        if STATE in record.files:
            state = store.read_tensors(number, "state")
            left = {name: tensor for name, tensor in state.items() if not name.startswith(f"{site}/")}
            if len(left) < len(state) or record.replaced:  # or a process died while it did so
                store.replace_tensors(number, "state", left)
                removed.append(f"state of round {number}")
    return removed
