"""Open a round: refuse what cannot be learned, prepare and split the site, and make the round's training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import nn

from smg.errors import SmgError
from smg.gradients.oracle import GradientSource
from smg.learner.admission import check_trained, split_as_before, surely_untrained, without_known_scans
from smg.learner.checkpoints import refuse_others
from smg.learner.closing import Parts
from smg.learner.config import LearnerConfig
from smg.learner.elsewhere import Elsewhere, Rows
from smg.learner.history import History
from smg.learner.pseudonyms import own_pseudonyms
from smg.learner.round import Answering, Training
from smg.learner.round_checks import check_drawable, check_foreground, check_outputs, check_selection
from smg.learner.spectra import styles_of
from smg.learner.versions import Versions
from smg.networks import check_network
from smg.networks.features import bottleneck_map
from smg.prepare.cache import Prepared
from smg.prepare.prepared_site import PreparedSite, check_field, plane_note, scale_note
from smg.replay.selection import known
from smg.sites.site import Site
from smg.sites.split import Split


def refuse_learned(history: History, site: str, again: bool) -> None:
    """Raise an error if the site was learned before, unless it is to be learned again."""
    if site in history.sites and not again:
        number = next(entry.round for entry in history.line() if entry.site == site)
        raise SmgError(
            f"site {site} was learned before (round {number}); --again learns it again, "
            "--as NAME learns another hospital's scans under another name"
        )


def refuse_to_learn(history: History, site: str, again: bool) -> None:
    """Raise an error if the model has learned the site, or has begun another round."""
    history.reload()
    about = history.store.under_way()
    if about is None:
        refuse_learned(history, site, again)
        return
    if about.round not in history.model.numbers:
        refuse_learned(history, site, again)
        refuse_others(history, site, about)
    elif about.site != site:  # the round was trained and only has to be closed: `learn` returns it
        refuse_learned(history, site, again)


def parts_of_round(
    versions: Versions,
    site: Site,
    split: Split | None,
    leave_out: bool,
    say: Callable[[str], None] | None,
    ready: PreparedSite | None = None,
) -> Parts:
    """Return the site's prepared subjects by part; the split is drawn by the seed if none is given."""
    history, config = versions.history, versions.config
    prepared = versions.prepare(site, config, leave_out, ready=ready)
    prepared = without_known_scans(history, site.name, prepared, leave_out)
    if split:
        check_trained(history, site, split, say)
    else:
        split = split_as_before(history, site.keep({p.subject.case for p in prepared}), config)
    parts = {part: [p for p in prepared if p.subject.case in cases] for part, cases in split.items()}
    check_field(parts["train"], config.preparation)
    check_foreground(site.name, parts["train"], config.preparation, history.has_learned, say)
    for line in (plane_note(prepared), scale_note(parts["train"], config.preparation)):
        if say and line:
            say(f"site {site.name}: {line}")
    return parts


def never_trained_on(
    versions: Versions, sites: Mapping[str, Site], say: Callable[[str], None] | None = None
) -> dict[str, list[Prepared]]:
    """Return held-out scans of learned sites, prepared, without those that a round may have trained on."""
    history = versions.history
    if sites and history.has_learned and not set(sites) & set(history.sites):
        raise SmgError(
            f"held-out scans of {', '.join(sites)}: no such site was learned; name their folders "
            f"as the model names its sites: {', '.join(history.sites)}"
        )
    found = {}
    for name, site in sites.items():
        prepared = versions.prepare(site, versions.config)
        found[name] = surely_untrained(history, site.called(name), prepared) if name in history.sites else prepared
        if say and (count := len(prepared) - len(found[name])):
            say(f"site {name}: {count} of {len(prepared)} held-out scans may have been trained on, and do not judge")
    return found


def make_training(
    versions: Versions, site: str, parts: Parts, answering: Answering, elsewhere: Elsewhere | None
) -> Training:
    """Return the training of the next round, with all that earlier rounds left for it."""
    history, config = versions.history, versions.config
    if not parts["train"]:
        raise SmgError(f"site {site}: no subject to train with; give more subjects, or another split")
    check_selection(config, [site] if not parts["validation"] else [])
    own_pseudonyms()  # the round's record needs the secret: a folder that cannot be written is found before training
    recipe = config.recipe()
    known(recipe.policy)  # report a missing file before the round, not after it
    fresh = recipe.method.one_network_a_site
    moments = versions.moments() if config.keep_optimiser and not fresh else None
    memory = None if fresh else versions.memory()
    replay = versions.replay()
    _check_rows(versions, replay)
    check_drawable(versions.store.folder, recipe.method, config.preparation, replay)
    check_outputs(history, recipe.method, replay)
    everywhere = _everywhere(history, replay, elsewhere)
    sites = list(everywhere)
    return Training(
        network=versions.network(0 if fresh else None),
        config=config,
        number=1 + max(history.model.numbers, default=0),
        site=site,
        train=parts["train"],
        validation=parts["validation"],
        replay=list(everywhere.values()),
        moments=moments,
        memory=memory,
        earlier=len(history.line()),
        answering=partial(_by_all, elsewhere, answering, sites) if elsewhere else answering,
        styles=None if fresh else styles_of(versions.spectra(), config),
        merging=None if fresh or config.merge is None else versions.merging(config.merge),
    )


def check_training(training: Training, say: Callable[[str], None] | None) -> None:
    """Raise an error, before the first iteration, if the network does not fit the slices or the configuration."""
    config = training.config
    slice_ = training.incoming.gather([0]).images.to(training.oracle.theta.device)
    bottleneck = check_network(training.network, slice_)
    if config.replay.features == "foreground":
        bottleneck_map(training.network, slice_, bottleneck)
    if say and config.memory == "style" and training.earlier and training.styles is None:
        say("style memory: no spectra of an earlier site are kept, so slices stay in their own style")


def _check_rows(versions: Versions, replay: Mapping[str, Sequence[Prepared]]) -> None:
    """Raise an error if exemplars have another number of rows than the slices that are resized beside them."""
    folder, preparation = versions.store.folder, versions.config.preparation
    if preparation.spacing is not None:
        return
    for name, exemplars in replay.items():
        if tuple(exemplars[0].images.shape[-2:]) != preparation.shape:
            raise SmgError(
                f"{folder}: exemplars of {name} have {exemplars[0].images.shape[-2]} rows, so slices of "
                f"{preparation.size} cannot be learned beside them; keep preparation.size, or give them up: "
                f"`smg replay drop {folder} {name}`"
            )


def _everywhere(
    history: History, replay: dict[str, list[Prepared]], elsewhere: Elsewhere | None
) -> dict[str, list[Prepared] | Rows]:
    """Return each site's exemplars, or its rows at another hospital, in the order of learning."""
    rows = {site: one for site, one in elsewhere.rows.items() if one.count} if elsewhere else {}
    kept: dict[str, list[Prepared] | Rows] = {**rows, **replay}
    return {site: kept[site] for site in dict.fromkeys(history.sites) if site in kept}


def _by_all(
    elsewhere: Elsewhere, answering: Answering, sites: Sequence[str], network: nn.Module, config: LearnerConfig
) -> GradientSource:
    """Return the source of gradients when other hospitals hold some of the sites."""
    return elsewhere.source(answering(network, config), sites)
