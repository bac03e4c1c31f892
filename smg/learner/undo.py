"""Undo what a model has learned or kept: make another round current, and remove what is kept of a site."""

from __future__ import annotations

from smg.errors import SmgError
from smg.learner.history import STATE, History


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


def drop(history: History, site: str) -> int:
    """Remove what every round holds of a site's patients, and return how many exemplars there were.

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
        count = 0
        for number in rounds:
            count += sum(name.endswith(".images") for name in store.read_tensors(number, "exemplars"))
            store.replace_tensors(number, "exemplars", {})
            for name in ("sentinels", "spectra"):
                if f"{name}.safetensors" in history.record(number).files:
                    store.replace_tensors(number, name, {})
        _drop_state(history, site)
        store.note("dropped exemplars", site=site, subjects=count)
        return count


def _drop_state(history: History, site: str) -> None:
    """Remove what the states of all rounds hold of a site's patients: a later round's may hold it too."""
    store = history.store
    for number in history.model.numbers:
        record = history.record(number)
        if STATE in record.files:
            state = store.read_tensors(number, "state")
            left = {name: tensor for name, tensor in state.items() if not name.startswith(f"{site}/")}
            if len(left) < len(state) or record.replaced:  # or a process died while it did so
                store.replace_tensors(number, "state", left)
