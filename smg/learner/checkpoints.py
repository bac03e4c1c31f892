"""Checkpoints of the round under way: the inputs each depends on, saving, resuming, and giving up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from smg.errors import SmgError
from smg.learner.closing import Parts, close_again, versions_of_packages
from smg.learner.config import LearnerConfig
from smg.learner.elsewhere import Rows
from smg.learner.history import History, UnderWay
from smg.learner.processes import first_process, meet
from smg.learner.records import CheckpointFacts
from smg.learner.round import Diverged, OnStep, Training
from smg.learner.store import Store
from smg.learner.versions import Versions


def alone(store: Store) -> AbstractContextManager[None]:
    """Return the model's lock; in a job of several processes the first one holds it for all."""
    return store.locked() if first_process() else nullcontext()


# --- saving and resuming ----------------------------------------------------------------------------------------------


def run_with_checkpoints(
    versions: Versions,
    training: Training,
    parts: Parts,
    seconds: float,
    on_step: OnStep | None,
    say: Callable[[str], None] | None,
) -> None:
    """Train a round to its end, from its last checkpoint if there is one; the arguments are those of `learn`."""
    key = _key_of(versions, training, parts)
    _resume(versions.history, training, key, say)
    try:
        training.run(lambda: _save(versions.history, training, key), seconds, on_step)
    except Diverged:
        if first_process():
            versions.store.forget_progress()  # since it would diverge again
        raise


def _key_of(versions: Versions, training: Training, parts: Parts) -> dict[str, str]:
    """Return a hash of each input that a checkpoint depends on, by the name that error messages use for it."""
    history = versions.history
    subjects = [p for part in parts.values() for p in part]
    last = {record.site: record for record in history.records()}
    replayed = [here[0].subject.site for here in training.replay if not isinstance(here, Rows)]
    far = [there.exemplars for there in training.replay if isinstance(there, Rows)]
    made_from = {
        "another configuration": _configuration_key(versions.config),
        "another round before it": [training.number, history.current],
        "another split": {part: sorted(p.subject.case for p in parts[part]) for part in parts},
        "other scans": {p.subject.case: [p.content, p.turned] for p in subjects},
        "other masks": {p.subject.case: hashlib.sha256(p.labels.numpy().data).hexdigest() for p in subjects},
        "another state of its method": versions.state_hash(),
        "other exemplars": {site: last[site].files["exemplars.safetensors"] for site in replayed}
        | ({"elsewhere": far} if far else {}),
    }
    if training.styles is not None:
        spectra = versions.spectra()
        made_from["other spectra"] = {site: last[site].files["spectra.safetensors"] for site in spectra}
    whole = {name: json.dumps(value, sort_keys=True).encode() for name, value in made_from.items()}
    return {name: hashlib.sha256(value).hexdigest() for name, value in whole.items()}


def _configuration_key(config: LearnerConfig) -> dict[str, Any]:
    """Return the configuration without disabled settings: a round begun before a setting existed can resume."""
    whole = config.model_dump(mode="json")
    new = {
        "memory": config.memory == "none",
        "style": config.memory == "none",
        "merge": config.merge is None,
        "merge_by": config.merge is None,
        "share": not config.share,
    }
    whole = {name: value for name, value in whole.items() if not new.get(name)}
    for name in ("nnunet", "even_classes"):
        if not whole["preparation"][name]:
            del whole["preparation"][name]
    return whole


def _save(history: History, training: Training, key: dict[str, str]) -> None:
    """Write a checkpoint of the round."""
    if first_process():
        facts = training.facts(key, history.current, versions_of_packages())
        history.store.checkpoint(training.tensors(), facts)


def _resume(history: History, training: Training, key: dict[str, str], say: Callable[[str], None] | None) -> None:
    """Load the last checkpoint, if there is one; refuse one that was made from other inputs."""
    found = history.store.resume()
    meet()  # so that no process saves before another has read
    if found is None:
        return
    tensors, about = found
    refuse_others(history, training.site, about, key)
    training.load(tensors, about)
    if say and (line := _other_machine(about.versions)):
        say(line)
    if say:
        say(f"going on at iteration {about.iteration} of {training.config.iterations}")


def refuse_others(history: History, site: str, about: CheckpointFacts, key: dict[str, str] | None = None) -> None:
    """Refuse a checkpoint that was made from other inputs; without a key, only the site is compared."""
    then, folder = about.key, history.store.folder
    under_way = f"{folder}: a round on site {about.site} is under way there"
    if then is None:
        raise SmgError(
            f"{under_way}, begun by an older smg that did not say with what; give it up: `smg abandon {folder}`"
        )
    differs = [name for name in key | then if key.get(name) != then.get(name)] if key is not None else []
    if about.site != site or differs:
        what = f", with {' and '.join(differs)}" if about.site == site else ""
        if about.parent not in (None, history.current):
            needed = f"`smg rollback {folder} {about.parent}`"
            what += f"; it goes on from round {about.parent}, which {needed} makes current"
        raise SmgError(f"{under_way}{what}; go on with it as it was begun, or give it up: `smg abandon {folder}`")


def _other_machine(then: Mapping[str, str | int]) -> str | None:
    """Return a warning if a checkpoint was made with a different torch, thread count or processor."""
    now = versions_of_packages()
    words = {"torch": "torch {}", "threads": "{} threads", "cpu": "{} instructions"}
    differs = [key for key in words if key in then and then[key] != now[key]]
    if not differs:
        return None
    was, is_ = (", ".join(words[key].format(at[key]) for key in differs) for at in (then, now))
    return f"the round was begun with {was}, and goes on with {is_}: its weights will differ in their last bits"


# --- a round that was not finished ------------------------------------------------------------------------------------


def settle(versions: Versions) -> int | None:
    """Complete a round whose process died after training, and return its number; None if there was none."""
    history, store = versions.history, versions.store
    history.reload()
    versions.refresh()
    about = store.under_way()
    number = about.round if about else None
    under_way = about is not None and number not in history.model.numbers
    meet()  # so that no process removes what another has not read yet
    if first_process() and not under_way:
        if number is None:
            store.forget_progress()  # possibly an empty folder
        else:
            close_again(store, number)
    meet()
    return None if under_way else number


def abandon(versions: Versions) -> UnderWay | None:
    """Discard the unfinished round, note it in the journal, and return what it was; None if it cannot be read."""
    history, store = versions.history, versions.store
    with alone(store):
        history.reload()
        under_way = history.under_way()
        if under_way is None and not (store.folder / "progress").exists():
            raise SmgError(f"{store.folder}: no round is under way; nothing to abandon")
        if under_way is None and (settled := settle(versions)) is not None:
            raise SmgError(f"{store.folder}: round {settled} is learned; `smg rollback` goes back from it")
        what = {key: getattr(under_way, key, None) for key in ("round", "site", "iteration")}
        known = {key: value for key, value in what.items() if value is not None}
        last = store.journal()[-1:]
        noted = bool(last) and last[0].event == "abandoned" and known in ({}, last[0].details())
        if not noted:  # by a process that died before it had removed everything
            store.note("abandoned", **what)  # first: without a checkpoint nothing would be left to be noted
        store.remove_leftovers()  # a folder of the round, if the process died before model.json named it
        store.forget_progress()
        return under_way
