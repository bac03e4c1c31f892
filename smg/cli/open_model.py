"""Open the model that `learn` trains with the settings given, or create it: planned, configured or from weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.cli.data_sites import prepare_to_learn
from smg.cli.encryption import new_model
from smg.cli.options import worded
from smg.cli.terminal import say
from smg.errors import SmgError
from smg.report.text import print_line

if TYPE_CHECKING:
    from smg.learner.config import LearnerConfig
    from smg.learner.learner import Learner
    from smg.planning.plan import Made
    from smg.prepare.prepared_site import PreparedSite
    from smg.sites.site import Site
    from smg.sites.split import Split
    from smg.vault.vault import NewModel


def given_settings(
    method: str | None,
    iterations: int | None,
    configs: list[str] | None,
    labels: list[str] | None,
    words: list[str] | None,
) -> list[dict[str, Any]]:
    """Return the settings that the command line gives, as layers of which a later one wins."""
    from smg.learner.config_layers import typed
    from smg.settings_file import read_settings
    from smg.sites.labels import Labels

    layers = [read_settings(config).layer() for config in configs or []]
    if method is not None:
        layers.append(typed({"method": method}))
    if labels:
        layers.append({"preparation": {"labels": Labels.parse(labels).model_dump()}})
    return [*layers, worded(iterations, words)]


def learner_for(
    model: Path,
    given: list[dict[str, Any]],
    other: bool,
    site: Site,
    split: Split | None,
    leave_out: bool,
    again: bool,
    few: bool,
    minutes: float | None,
    start: str | None,
    encrypt: bool = False,
) -> tuple[Learner, PreparedSite]:
    """Open the model with the settings given, or create it; return it and the site's prepared scans.

    A model is created only after the scans have been prepared without faults.
    """
    from smg.learner.config_layers import configuration, laid
    from smg.learner.creation import take_plan
    from smg.learner.learner import Learner
    from smg.learner.origin import read_origin
    from smg.learner.store import Store

    origin = read_origin(start) if start else None
    if (model / "model.json").is_file():
        learner = Learner(model)
        if encrypt and not learner.is_encrypted:
            raise SmgError(f"{model}: --encrypt is for a new model, and this one is not encrypted; give another folder")
        if origin and (learner.model.origin and learner.model.origin.sha256) != origin.about.sha256:
            raise SmgError(f"{model}: --from {start} is for a new model, and one is there; give another folder")
        if minutes is not None and awaits_plan(learner):
            before = _given_before(learner)
            if plan := _plan_for(site, minutes, split, leave_out, [before, *given]):
                config = configuration(plan.tree(), before).with_channels(site.channels)
                take_plan(model, config, plan.as_file())
                learner = Learner(model)
        own = learner.config
        learner.configure(configuration(own.model_dump(mode="json"), *given), other)
        if learner.config.method != own.method and own.merge is not None and "merge" not in laid(*given):
            say(f"method {learner.config.method}: with the model's own merge {own.merge:g}; --set merge=null ends it")
        learner.refuse_to_learn(site.name, again)
        return learner, prepare_to_learn(site, learner.config, split, leave_out, few, learner.store.vault)
    if model.exists() and not (model.is_dir() and Store(model).abandoned):
        raise SmgError(f"{model}: exists and is not a model; give a new folder")
    new = new_model(model) if encrypt else None
    configuration(*given)  # a mistake in the settings is reported before the scans are looked at
    plan = None if minutes is None else _plan_for(site, minutes, split, leave_out, given)
    given = [plan.tree(), *given] if plan else given
    config = configuration(*([origin.settings] if origin else []), *given).with_channels(site.channels)
    if origin:
        origin.check(config.network)
    prepared = prepare_to_learn(site, config, split, leave_out, few, new.vault if new else None)
    return Learner.create(model, config, origin, plan.as_file() if plan else None, encrypt=new), prepared


def _plan_for(
    site: Site, minutes: float, split: Split | None, leave_out: bool, given: list[dict[str, Any]]
) -> Made | None:
    """Return a plan from the site's scans, and print it; None if the settings given leave nothing to plan."""
    from smg.cli.plan import planned
    from smg.learner.config_layers import configuration, laid

    if says_what_to_train(given):
        return None
    plan = planned([site], minutes, leave_out, laid(*given), partial(_not_tested_on, split, configuration(*given)))
    print_line("\n".join(plan.in_short()))
    return plan


def _given_before(learner: Learner) -> dict[str, Any]:
    """Return the settings that the user gave when the model was made.

    A model made from Python does not say which they were. Then these are the settings that differ from the defaults,
    without those that follow from others.
    """
    from smg.learner.config_layers import FOLLOWS

    created = next((line for line in learner.store.journal() if line.event == "created"), None)
    if created and isinstance(given := created.details().get("given"), dict):
        return given
    settings = learner.config.model_dump(mode="json", exclude_defaults=True)
    network = {key: value for key, value in settings.pop("network", {}).items() if f"network.{key}" not in FOLLOWS}
    return settings | ({"network": network} if network else {})


def awaits_plan(learner: Learner) -> bool:
    """Return whether a model was made without settings that say what to train, and has not begun to learn."""
    store = learner.store
    return not (learner.model.rounds or learner.model.origin or store.under_way() or store.has_plan)


def start_model(model: Path, given: list[dict[str, Any]], start: str, new: NewModel | None = None) -> None:
    """Make a model of its first weights alone: round 0, which predicts as it is."""
    from smg.learner.config_layers import configuration
    from smg.learner.history import described
    from smg.learner.learner import Learner
    from smg.learner.origin import read_origin
    from smg.learner.store import Store

    if model.exists() and not (model.is_dir() and Store(model).abandoned):
        raise SmgError(f"{model}: exists; give a new folder, or the site that it is to learn")
    origin = read_origin(start)
    config = configuration(origin.settings, *given)
    origin.check(config.network)
    Learner.create(model, config, origin, encrypt=new)
    print_line(f"{model}: round 0, from {described(origin.about)}")
    print_line(f"`smg predict {model} SCAN... --out DIR` predicts with it; `smg learn {model} SITE` teaches it a site")


def _not_tested_on(split: Split | None, config: LearnerConfig, site: Site) -> set[str]:
    """Return the cases for training and validation, by the split given or as the first round will draw it."""
    from smg.sites.split import fold_site, split_site

    if split is None:
        split = fold_site(site, config.seed, config.folds) if config.folds else split_site(site, config.seed)
    return {*split["train"], *split["validation"]}


def says_what_to_train(given: list[dict[str, Any]]) -> bool:
    """Return whether settings name an input, a network or an optimiser, which a plan would choose."""
    from smg.learner.config_layers import laid

    settings = laid(*given)
    preparation = settings.get("preparation") or {}
    if not isinstance(preparation, dict):
        return True  # a mistake, which the configuration will name
    own = set(preparation) - {"labels", "normalise", "adjacent", "empty_slices"}
    return bool(own or settings.get("network") or settings.get("optimiser"))
