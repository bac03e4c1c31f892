"""A model's rounds as they travel: weights and numbers go to every hospital, exemplars and sentinels to none.

What of a round's record leaves its hospital is listed here, key by key. It stays without hashes of scans, features of
single subjects and tensors of patients, and has pseudonyms that only the hospital can resolve.
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
from smg.learner.config import OPENED, LearnerConfig
from smg.learner.history import History
from smg.learner.shared import stored_once, under_all_names
from smg.learner.store import FORMAT, Store
from smg.networks import build_network

PLAIN = (
    "round", "parent", "site", "subjects", "config", "versions", "keeps_of_patients", "seconds", "curve", "log",
    "familiar", "kept", "earlier", "guard", "federation",
)  # fmt: skip
SCORES = ("policy", "R", "V", "H")  # of `selection`, beside pseudonyms
FILES = ("weights", "state", "optimiser")
Rename = Callable[[str], str]


def pseudonyms(secret: bytes) -> Rename:
    """Return how a hospital's aliases are renamed outside: by a key that never leaves it, so that no guess helps."""
    return lambda alias: hmac.new(secret, alias.encode(), hashlib.sha256).hexdigest()[:8]


def listing(folder: Path) -> dict[str, Any]:
    """Return which model and which rounds are in a folder; nothing where there is none."""
    store = Store(folder)
    if not store.exists:
        return {}
    past = History(folder)
    rounds = [{**entry, **_proof(store, entry["round"])} for entry in past.model["rounds"]]
    origin = past.model.get("origin")
    return {"format": FORMAT, "config": past.model["config"], "rounds": rounds, "origin": origin}


def _proof(store: Store, number: int) -> dict[str, Any]:
    record = store.read_round(number)
    return {"held": History(store.folder).held(record), "weights": record["files"]["weights.safetensors"]}


def outgoing(folder: Path, number: int, rename: Rename) -> Message:
    """Return a round as it leaves its hospital."""
    store = Store(folder)
    record = store.read_round(number)
    tensors: dict[str, Tensor] = {}
    shared: dict[str, dict[str, str]] = {}
    for name in FILES:
        if f"{name}.safetensors" in record["files"]:
            stored = store.read_tensors(number, name)
            own = {key: t for key, t in stored.items() if name != "state" or not _of_patients(key, record)}
            once, shared[name] = stored_once(own)
            tensors |= {f"{name}/{key}": tensor for key, tensor in once.items()}
    if number == 0:
        return Message("version", {"record": {"config": record["config"], "round": 0}, "shared": shared}, tensors)
    facts = {"record": public(record, folder, rename), "shared": shared}
    return Message("version", facts, tensors)


def public(record: Mapping[str, Any], folder: Path, rename: Rename) -> dict[str, Any]:
    """Return what others may know of a round. Aliases of a site that is not at home here are pseudonyms already."""
    made = {key: record[key] for key in PLAIN if key in record}
    made["held"] = History(folder).held(dict(record))
    home = is_at_home(folder, record["round"])
    if not home:
        rename = str
    names = [*record.get("selection", {}).get("candidates", [])]
    made["parts"] = {part: [rename(name) for name in own] for part, own in record.get("parts", {}).items()}
    made["test"] = [row | {"subject": rename(row["subject"])} for row in record.get("test", [])]
    selection = record.get("selection", {})
    made["selection"] = {key: selection[key] for key in SCORES if key in selection}
    made["selection"] |= {
        "chosen": [rename(name) for name in selection.get("chosen", [])],
        "candidates": [rename(name) for name in names],
        "features": [],
    }
    made["sentinels"] = {
        site: {rename(name) if site == record["site"] else name: dsc for name, dsc in scores.items()}
        for site, scores in record.get("sentinels", {}).items()
    }
    return made


def is_at_home(folder: Path, number: int) -> bool:
    """Whether a round was learned in this folder, and not received from another hospital."""
    return not Store(folder).read_round(number).get("received", False)


def receive(folder: Path, model: Mapping[str, Any], message: Message | None) -> None:
    """Enter a round of another hospital, or a model that has no rounds yet; exemplars and sentinels stay there."""
    _refuse_code(model["config"])
    config = LearnerConfig.model_validate(model["config"], context=OPENED)
    store = Store(folder)
    with store.locked():
        if not store.exists:
            about = {"origin": model["origin"]} if model.get("origin") else {}
            if about and message is None:
                raise Refused("a model that began with given weights comes with them; update smg there")
            if message is not None and message.facts["record"]["round"] == 0:
                tensors = _tensors(message, "weights")
                _check(tensors, config)
                store.write_round(0, {"weights": tensors}, {"config": message.facts["record"]["config"], **about})
            fresh = {"format": FORMAT, "config": model["config"], "current": 0, "rounds": [], **about}
            store.write(fresh)
            store.note("received from a federation")
        if message is None or message.facts["record"]["round"] == 0:
            return
        _enter(store, config, message)


def _enter(store: Store, config: LearnerConfig, message: Message) -> None:
    own, record = store.read(), dict(message.facts["record"])
    number = int(record["round"])
    known = [entry["round"] for entry in own["rounds"]]
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
    made = {key: record[key] for key in keys if key in record} | {"scans": [], "received": True}
    store.write_round(number, tensors | {"exemplars": {}}, made)
    entry = {key: made[key] for key in ("round", "parent", "site")}
    follows = own["current"] == made["parent"] and not made["held"]
    store.write(own | {"current": number if follows else own["current"], "rounds": [*own["rounds"], entry]})
    store.note("received", round=number, site=made["site"])


def same_model(mine: Mapping[str, Any], theirs: Mapping[str, Any], hospital: str) -> None:
    """Raise an error where two folders hold different models."""
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


def _of_patients(key: str, record: Mapping[str, Any]) -> bool:
    """Whether a tensor of a method's state says something of patients: such are named after their site."""
    return bool(record.get("keeps_of_patients")) and "/" in key
