"""Create the folder of a model that has learned nothing yet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import smg
from smg.errors import SmgError
from smg.json_records import Settings, Tree
from smg.learner.config import LearnerConfig
from smg.learner.config_layers import configuration, typed
from smg.learner.origin import Origin
from smg.learner.processes import first_process, meet
from smg.learner.records import ModelRecord, StartRecord
from smg.learner.shared_tensors import copied
from smg.learner.store import Store
from smg.networks import build_network
from smg.vault.vault import Vault


def create_model(
    folder: Path,
    config: LearnerConfig | None,
    origin: Origin | None,
    options: Mapping[str, Any],
    plan: str | None = None,
    vault: Vault | None = None,
    given: Tree | None = None,
) -> None:
    """Make the folder of a model; in a job of several processes, the first one writes it and all wait for it.

    With a vault the model is encrypted. `given` is what the user gave of its settings; the journal keeps it.
    """
    store = Store(folder)
    there = store.exists
    meet()  # before any process writes what the others look for
    made = with_options(config, options)
    weights = copied(origin.fitted(build_network(made.network, made.seed))) if origin else {}
    with store.locked() if first_process() and not there else nullcontext():
        if there or (first_process() and store.exists):  # since another may have made it in the meantime
            raise SmgError(f"{folder}: a model is there already; give another folder, or learn with that one")
        if first_process():
            settings = Settings.model_validate(made.model_dump(mode="json"))
            about = origin.about if origin else None
            details: dict[str, object] = {"version": smg.__version__}
            store.clear_abandoned()
            if about:
                store.write_round(0, {"weights": weights}, StartRecord(origin=about, config=settings, files={}))
                details["origin"] = about.model_dump(mode="json")
            encryption = vault.record if vault else None
            if encryption:
                details["key"] = encryption.users[0]
            if given is not None:
                details["given"] = given
            store.note("created", **details)
            if plan is not None:
                store.keep_plan(plan)
            # Last: a process that finds no model.json creates the model again.
            store.write(ModelRecord(config=settings, current=0, rounds=(), origin=about, encryption=encryption))
    meet()


def take_plan(folder: Path, config: LearnerConfig, plan: str) -> None:
    """Give a model that has learned nothing the settings of a plan; in a job, the first process does it."""
    store = Store(folder)
    meet()
    if first_process():
        with store.locked():
            settings = Settings.model_validate(config.model_dump(mode="json"))
            store.write(store.read().model_copy(update={"config": settings}))
            store.keep_plan(plan)
    meet()


def with_options(config: LearnerConfig | None, options: Mapping[str, Any]) -> LearnerConfig:
    """Return a configuration with options laid over it, checked; over the defaults if there is none."""
    if config and not options:
        return config
    below = config.model_dump() if config else {}
    plain = {key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in options.items()}
    return configuration(below, typed(plain))
