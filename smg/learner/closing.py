"""Close a round: choose exemplars, measure the effect on earlier sites, and enter the round as a version."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import smg
from smg.evaluation.subjects import PreparedScore, evaluate_subjects, prepared_dice, prepared_score
from smg.evaluation.whole_scan import class_logits
from smg.json_records import Settings
from smg.learner.config import LearnerConfig
from smg.learner.elsewhere import Elsewhere, Scores
from smg.learner.exemplars import alias, choose, count_of, pack, size_of
from smg.learner.familiarity import Familiar
from smg.learner.guard import best_so_far, judge, reasons_to_hold
from smg.learner.merging import OF_PATIENTS
from smg.learner.processes import first_process
from smg.learner.pseudonyms import own_pseudonyms
from smg.learner.records import (
    BeforeAfter,
    FamiliarRecord,
    GuardRecord,
    Kept,
    ModelRecord,
    PackageVersions,
    PartAliases,
    PartCounts,
    RoundEntry,
    RoundRecord,
    Selection,
    SubjectRow,
)
from smg.learner.round import Training
from smg.learner.shared_tensors import copied
from smg.learner.spectra import spectra_of
from smg.learner.store import Store
from smg.learner.versions import Versions
from smg.networks.features import means_of
from smg.prepare.cache import Prepared
from smg.prepare.slices import drawable
from smg.replay.subject_features import foreground_features, subject_moments

Parts = dict[str, list[Prepared]]


@dataclass(frozen=True)
class Guarding:
    """Settings by which the guard judges a round."""

    tolerance: float | None  # points of DSC that an earlier site may lose; None to hold no round
    held_out: Mapping[str, Sequence[Prepared]] = field(default_factory=dict)  # scans that stay at the hospital, by site


def close(
    versions: Versions, training: Training, parts: Parts, guarding: Guarding, elsewhere: Elsewhere | None = None
) -> None:
    """Enter a trained round as a version.

    The version becomes current unless the round harmed an earlier site or the effect on a site cannot be measured.
    Hospitals `elsewhere` answer for the exemplars and sentinels that they keep.
    """
    history, config, site = versions.history, versions.config, training.site
    chosen, selection, familiar = _looked_through(versions, training, parts, elsewhere)
    sentinels, spectra = _sentinels(training, parts, config), _spectra(training, config)
    kept = Kept(
        subjects=count_of(chosen),
        spectra=sum(map(len, spectra.values())),
        bytes=size_of(chosen) + size_of(spectra),
    )
    far = elsewhere.scores(versions.network(), training.network) if elsewhere else {}
    earlier = _earlier(versions.replay(), versions.network(), training.network, config)
    for name, score in far.items():
        if score.exemplars:
            earlier[name] = BeforeAfter(before=_finite(score.exemplars[0]), after=_finite(score.exemplars[1]))
    guard, scores = _judged(versions, training, sentinels, earlier, guarding, far)
    names = own_pseudonyms()
    record = RoundRecord(
        round=training.number,
        parent=history.current,
        site=site,
        subjects=PartCounts(**{part: len(subjects) for part, subjects in parts.items()}),
        parts=PartAliases(
            **{part: tuple(alias(config.seed, site, p.subject.case) for p in ps) for part, ps in parts.items()}
        ),
        scans=tuple(sorted({one for subjects in parts.values() for p in subjects for one in names.scans(p)})),
        pseudonyms=names.identity,
        config=Settings.model_validate(config.model_dump(mode="json")),
        versions=versions_of_packages(),
        keeps_of_patients=_of_patients(training),
        seconds=training.progress.seconds,
        curve=tuple(training.progress.curve),
        log=tuple(training.progress.log),
        test=_tested(training, parts, config),
        selection=selection,
        familiar=familiar,
        kept=history.kept_by_site() | {site: kept},
        earlier=earlier,
        guard=guard,
        sentinels=scores,
        held=bool(guard.reasons),
        federation=elsewhere.about() if elsewhere else None,
        files={},
    )
    tensors = {"weights": copied(training.network.state_dict()), "exemplars": chosen}
    if sentinels:
        tensors["sentinels"] = pack(sentinels, [alias(config.seed, site, p.subject.case) for p in sentinels])
    if spectra:
        tensors["spectra"] = spectra
    if config.keep_optimiser:
        tensors["optimiser"] = copied(training.opt.state())
    if training.method.state:
        tensors["state"] = copied(training.method.state)
    if training.progress.merged:
        tensors["merging"] = copied(training.progress.merged)
    if first_process():
        history.store.check_current(history.model)
        history.store.write_round(training.number, tensors, record)
        history.store.check_current(history.model)
        history.store.write(_entered(history.model, record))
        _note(history.store, record)
        history.store.forget_progress()  # last: while it exists, the next process checks what is left to do


def close_again(store: Store, number: int) -> None:
    """Finish closing a round whose process died after entering it: write its journal line once and clean up."""
    if not any(line.round == number and line.event in ("learned", "held") for line in store.journal()):
        _note(store, store.read_round(number))
    store.forget_progress()


def _note(store: Store, record: RoundRecord) -> None:
    store.note("held" if record.held else "learned", round=record.round, site=record.site)


def _entered(model: ModelRecord, record: RoundRecord) -> ModelRecord:
    """Return model.json with the round in it."""
    entry = RoundEntry(round=record.round, parent=record.parent, site=record.site)
    current = model.current if record.held else record.round
    return model.model_copy(update={"current": current, "rounds": (*model.rounds, entry)})


def _tested(training: Training, parts: Parts, config: LearnerConfig) -> tuple[SubjectRow, ...]:
    """Return the metrics of the test part, with pseudonyms as subject names."""
    rows = evaluate_subjects(
        training.network, parts["test"], config.preparation, config.largest_component, config.mirror
    )
    return tuple(SubjectRow(subject=alias(config.seed, training.site, row.case), classes=row.metrics()) for row in rows)


def _of_patients(training: Training) -> str:
    """Return a description of the patient data in the method's state and the merging's importances."""
    of_merging = OF_PATIENTS if training.progress.merged else ""
    return "; ".join(said for said in (training.method.keeps_of_patients, of_merging) if said)


def _looked_through(
    versions: Versions, training: Training, parts: Parts, elsewhere: Elsewhere | None
) -> tuple[dict[str, Tensor], Selection, FamiliarRecord]:
    """Return the packed exemplars and two records: how they were chosen, and the network's features of every site."""
    network, site, config = training.network, training.site, versions.config
    kept, train = versions.replay(), parts["train"]
    previous = {name: subject_moments(network, es, config.preparation) for name, es in kept.items()}
    moments = subject_moments(network, train, config.preparation)
    places = [place for place, p in enumerate(train) if drawable(p, config.preparation)]  # others cannot be replayed
    candidates = [train[place] for place in places]
    features = _features(network, candidates, moments[places], config)
    of_kept = [_features(network, kept[name], of, config) for name, of in previous.items()]
    outputs_of = partial(_outputs, network, config)
    nearest = list(elsewhere.nearest(network, normalize(features.double(), dim=1)).values()) if elsewhere else []
    chosen, selection = choose(config, training.number, site, candidates, features, of_kept, outputs_of, nearest)
    known = Familiar.of(previous | {site: moments}, elsewhere.summaries(network) if elsewhere else None)
    familiar = _familiar(known, network, site, parts["validation"], config)
    return chosen, selection, familiar


def _features(network: nn.Module, subjects: Sequence[Prepared], moments: Tensor, config: LearnerConfig) -> Tensor:
    """Return f(s), the features by which exemplars are chosen."""
    if config.replay.features == "foreground":
        return foreground_features(network, subjects, config.preparation)
    return means_of(moments)


def _outputs(network: nn.Module, config: LearnerConfig, subject: Prepared) -> Tensor:
    return class_logits(network, subject.images, config.preparation)


def _familiar(
    known: Familiar, network: nn.Module, site: str, validation: list[Prepared], config: LearnerConfig
) -> FamiliarRecord:
    """Return the site statistics that later predictions with this network are compared with."""
    rows: Iterable[Tensor] = subject_moments(network, validation, config.preparation) if validation else ()
    apart = [known.distance(row, site) for row in rows]
    return known.as_record([d for d in apart if d is not None])


def _earlier(
    kept: dict[str, list[Prepared]], before: nn.Module, after: nn.Module, config: LearnerConfig
) -> dict[str, BeforeAfter]:
    """Return the mean DSC of each earlier site's exemplars before and after the round."""
    found, options = {}, (config.preparation, config.largest_component)
    for site, exemplars in kept.items():
        rows = [[prepared_dice(n, e, *options) for e in exemplars] for n in (before, after)]
        found[site] = BeforeAfter(before=_mean(rows[0]), after=_mean(rows[1]))
    return found


def _sentinels(training: Training, parts: Parts, config: LearnerConfig) -> list[Prepared]:
    """Return the validation subjects that are most typical of the site; training has not used them."""
    candidates, count = parts["validation"], min(config.guard.subjects, len(parts["validation"]))
    if not count:
        return []
    network, options = training.network, config.preparation
    site = means_of(subject_moments(network, parts["train"], options)).double().mean(dim=0)
    features = means_of(subject_moments(network, candidates, options)).double()
    typical = torch.cosine_similarity(features, site[None], dim=1)
    return [candidates[int(i)] for i in torch.sort(typical, descending=True, stable=True).indices[:count]]


def _spectra(training: Training, config: LearnerConfig) -> dict[str, Tensor]:
    """Return the spectra kept for the style memory; none if every site has its own network."""
    if config.memory != "style" or training.method.one_network_a_site:
        return {}
    return spectra_of(training.plain_batches(config.iterations), config.style)


def _judged(
    versions: Versions,
    training: Training,
    own: Sequence[Prepared],
    exemplars: Mapping[str, BeforeAfter],
    guarding: Guarding,
    far: Mapping[str, Scores],
) -> tuple[GuardRecord, dict[str, dict[str, float | None]]]:
    """Return the guard's verdict on every earlier site, and the DSC of every sentinel after the round."""
    history, config, site = versions.history, versions.config, training.site
    options = config.preparation, config.largest_component
    kept, before = versions.sentinels(), versions.network()
    best = best_so_far([record.sentinels for record in history.records()])
    own_names = {alias(config.seed, site, p.subject.case): p for p in own}
    scores: dict[str, dict[str, float | None]] = {
        site: {name: _finite(prepared_dice(training.network, p, *options)) for name, p in own_names.items()}
    }
    judged = {}
    earlier = [] if training.method.one_network_a_site else [name for name in history.sites if name != site]
    for name in dict.fromkeys(earlier):
        ran = exemplars.get(name)
        seen = None if ran is None or ran.before is None or ran.after is None else (ran.before, ran.after)
        now = {p.subject.case: prepared_score(training.network, p, *options) for p in kept.get(name, [])}
        after = {case: score.dsc for case, score in now.items()}
        if held_out := guarding.held_out.get(name):
            pairs = [[prepared_score(n, p, *options) for p in held_out] for n in (before, training.network)]
            then, since = ([score.dsc for score in scored] for scored in pairs)
            judged[name] = judge("held-out scans", then, since, exemplars=seen, slices=_slices(*pairs))
        elif name in far:
            answered = far[name].sentinels
            then, after = [b for b, _ in answered.values()], {case: a for case, (_, a) in answered.items()}
            highest = [best.get(name, {}).get(case, b) for case, b in zip(after, then, strict=True)]
            judged[name] = judge("sentinels", then, list(after.values()), highest, seen)
        else:
            past = [prepared_score(before, p, *options) for p in kept.get(name, [])]
            then = [score.dsc for score in past]
            highest = [best.get(name, {}).get(case, b) for case, b in zip(after, then, strict=True)]
            slices = _slices(past, list(now.values()))
            judged[name] = judge("sentinels", then, list(after.values()), highest, seen, slices)
        scores[name] = {case: _finite(dsc) for case, dsc in after.items()}
    reasons = [] if guarding.tolerance is None else reasons_to_hold(judged, guarding.tolerance)
    return GuardRecord(tolerance=guarding.tolerance, sites=judged, reasons=tuple(reasons)), scores


def _slices(before: Sequence[PreparedScore], after: Sequence[PreparedScore]) -> list[tuple[float, float]]:
    """Return the DSC of every slice of some subjects before and after a round."""
    both = zip(before, after, strict=True)
    return [pair for one, other in both for pair in zip(one.slices, other.slices, strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return _finite(sum(values) / len(values))


def _finite(value: float) -> float | None:
    """Return a number for a JSON record, with None in place of NaN."""
    return value if math.isfinite(value) else None


def versions_of_packages() -> PackageVersions:
    """Return the package versions, and the threads and vector instructions, which change rounding."""
    made = {"smg": smg.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return {**made, "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}
