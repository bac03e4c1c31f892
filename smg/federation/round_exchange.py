"""Exchange a model's rounds: weights and numbers go to every hospital, exemplars and sentinels to none.

This module lists the keys of a round's record that leave the hospital. Hashes of scans, features of single subjects and
tensors of patients stay. Only the hospital itself can resolve the pseudonyms in what is sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from smg import trust
from smg.errors import SmgError
from smg.federation.messages import Message
from smg.federation.transport import Refused
from smg.json_records import Kind, parse_record
from smg.learner.config import OPENED, LearnerConfig
from smg.learner.history import History
from smg.learner.records import FORMAT, ModelRecord, RoundEntry, RoundRecord, StartRecord
from smg.learner.shared_tensors import stored_once, under_all_names
from smg.learner.store import Store
from smg.networks import build_network

PLAIN = (
    "round", "parent", "site", "subjects", "config", "versions", "keeps_of_patients", "seconds", "curve", "log",
    "familiar", "kept", "earlier", "guard", "federation",
)  # fmt: skip
SCORES = ("policy", "R", "V", "H")  # of `selection`, besides pseudonyms
FILES = ("weights", "state", "merging", "optimiser")  # no exemplars, sentinels or spectra: these stay
Rename = Callable[[str], str]


def pseudonyms(secret: bytes) -> Rename:
    """Return the function that renames aliases for other hospitals, by a key that never leaves this hospital."""
    return lambda alias: hmac.new(secret, alias.encode(), hashlib.sha256).hexdigest()[:8]


def listing(folder: Path) -> dict[str, Any]:
    """Return the model and the rounds in a folder; empty if there is no model."""
    store = Store(folder)
    if not store.exists:
        return {}
    past = History(folder)
    rounds = [{**entry.model_dump(), **_proof(past, entry.round)} for entry in past.model.rounds]
    origin = past.origin.model_dump(mode="json") if past.origin else None
    return {"format": FORMAT, "config": past.model.config.tree(), "rounds": rounds, "origin": origin}


def _proof(past: History, number: int) -> dict[str, Any]:
    return {"held": past.held(number), "weights": past.record(number).files["weights.safetensors"]}


def outgoing(folder: Path, number: int, rename: Rename) -> Message:
    """Return the message that sends a round to another hospital."""
    store = Store(folder)
    files = store.files_of(number)
    keeps_of_patients = store.read_round(number).keeps_of_patients if number else ""
    tensors: dict[str, Tensor] = {}
    shared: dict[str, dict[str, str]] = {}
    for name in FILES:
        if f"{name}.safetensors" in files:
            stored = store.read_tensors(number, name)
            own = {key: t for key, t in stored.items() if name != "state" or not _of_patients(key, keeps_of_patients)}
            once, shared[name] = stored_once(own)
            tensors |= {f"{name}/{key}": tensor for key, tensor in once.items()}
    if number == 0:
        return Message(
            "version", {"record": {"config": store.read_start().config.tree(), "round": 0}, "shared": shared}, tensors
        )
    facts = {"record": public(store.read_round(number), folder, rename), "shared": shared}
    return Message("version", facts, tensors)


def public(round: RoundRecord, folder: Path, rename: Rename) -> dict[str, Any]:
    """Return the public part of a round's record; aliases of another hospital's site are pseudonyms already."""
    record = round.model_dump(mode="json")
    made = {key: record[key] for key in PLAIN}
    made["held"] = History(folder).held(round.round)
    if round.received:
        rename = str
    made["parts"] = {part: [rename(name) for name in own] for part, own in round.parts}
    made["test"] = [row | {"subject": rename(row["subject"])} for row in record["test"]]
    made["selection"] = {key: record["selection"][key] for key in SCORES}
    made["selection"] |= {
        "chosen": [rename(name) for name in round.selection.chosen],
        "candidates": [rename(name) for name in round.selection.candidates],
        "features": [],
    }
    made["sentinels"] = {
        site: {rename(name) if site == round.site else name: dsc for name, dsc in scores.items()}
        for site, scores in round.sentinels.items()
    }
    return made


def is_at_home(folder: Path, number: int) -> bool:
    """Return whether a round was learned in this folder, and not received from another hospital."""
    return not Store(folder).read_round(number).received


def receive(folder: Path, model: Mapping[str, Any], message: Message | None) -> None:
    """Enter a round of another hospital, or a model that has no rounds yet; exemplars and sentinels stay there."""
    _refuse_code(model["config"])
    config = LearnerConfig.model_validate(model["config"], context=OPENED)
    store = Store(folder)
    with store.locked():
        if not store.exists:
            about = model.get("origin")
            if about and message is None:
                raise Refused("a model that began with given weights comes with them; update smg there")
            if message is not None and message.facts["record"]["round"] == 0:
                tensors = _tensors(message, "weights")
                _check(tensors, config)
                start = {"config": message.facts["record"]["config"], "origin": about, "files": {}}
                store.write_round(0, {"weights": tensors}, _record(start, StartRecord))
            fresh = {"config": model["config"], "current": 0, "rounds": [], "origin": about}
            store.write(_record(fresh, ModelRecord))
            store.note("received from a federation")
        if message is None or message.facts["record"]["round"] == 0:
            return
        _enter(store, config, message)


def _enter(store: Store, config: LearnerConfig, message: Message) -> None:
    own, record = store.read(), dict(message.facts["record"])
    number = int(record["round"])
    known = own.numbers
    if number in known:
        raise Refused(f"round {number} is there already; list the versions again")
    if number < 1 or (record["parent"] and record["parent"] not in known):
        raise Refused(f"round {number} follows round {record['parent']}, which is not there; list the versions again")
    _refuse_code(record["config"])
    tensors = {
        name: _tensors(message, name) for name in FILES if any(k.startswith(f"{name}/") for k in message.tensors)
    }
    _check(tensors["weights"], config)
    keys = (*PLAIN, "held", "parts", "test", "selection", "sentinels")
    given = {key: record[key] for key in keys if key in record}
    made = _record(given | {"scans": [], "received": True, "files": {}}, RoundRecord)
    store.write_round(number, tensors | {"exemplars": {}}, made)
    entry = RoundEntry(round=made.round, parent=made.parent, site=made.site)
    follows = own.current == made.parent and not made.held
    entered = {"current": number if follows else own.current, "rounds": (*own.rounds, entry)}
    store.write(own.model_copy(update=entered))
    store.note("received", round=number, site=made.site)


def _record(entries: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Return the validated record that another hospital sent."""
    text = json.dumps({"format": FORMAT, **entries})
    try:
        return parse_record(text, kind, "the other hospital's record", "update smg there")
    except SmgError as error:
        raise Refused(str(error)) from None


def same_model(mine: Mapping[str, Any], theirs: Mapping[str, Any], hospital: str) -> None:
    """Raise an error if two folders hold different models."""
    own = {entry["round"]: entry["weights"] for entry in mine.get("rounds", [])}
    for entry in theirs.get("rounds", []):
        if own.get(entry["round"], entry["weights"]) != entry["weights"]:
            raise SmgError(
                f"hospital {hospital}: has another round {entry['round']} than this model; a federation has one model, "
                "so one side has to begin again with the other's (a new folder receives it)"
            )


def _tensors(message: Message, name: str) -> dict[str, Tensor]:
    own = {key.removeprefix(f"{name}/"): t for key, t in message.tensors.items() if key.startswith(f"{name}/")}
    return under_all_names(own, {"shared": json.dumps(message.facts["shared"].get(name, {}))})


def _check(weights: Mapping[str, Tensor], config: LearnerConfig) -> None:
    wanted = {name: (t.shape, t.dtype) for name, t in build_network(config.network, config.seed).state_dict().items()}
    if {name: (t.shape, t.dtype) for name, t in weights.items()} != wanted:
        raise Refused("weights arrived that do not fit the model's network; all hospitals need the same model")
    if any(t.is_floating_point() and not bool(t.isfinite().all()) for t in weights.values()):
        raise Refused("weights arrived that are not numbers; learn that round again")


def _refuse_code(config: Mapping[str, Any]) -> None:
    """Refuse a configuration that names code: a model from another hospital is data."""
    if found := trust.code_named_in(config):
        raise Refused(f"the model uses code of its own ({', '.join(found.values())}); a federation runs smg's")


def _of_patients(key: str, keeps_of_patients: str) -> bool:
    """Return whether a tensor of a method's state holds patient data: such tensors are named after their site."""
    return bool(keeps_of_patients) and "/" in key
