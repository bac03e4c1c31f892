"""A model that learns one site after another, segments scans, and can be rolled back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import Tensor, nn

import smg
from smg import trust
from smg.errors import Misuse, SmgError
from smg.evaluation.subjects import Evaluated, OnSubject, evaluate_subjects
from smg.gradients.oracle import GradientSource
from smg.learner import undo
from smg.learner.admission import (
    learned_elsewhere,
    parts_are_known,
    parts_before,
    split_as_before,
    trained_on,
    without_known_scans,
)
from smg.learner.closing import Guarding, Parts, close, close_again, versions_of_packages
from smg.learner.config import LearnerConfig
from smg.learner.configure import configuration, typed
from smg.learner.elsewhere import Elsewhere, Rows
from smg.learner.familiarity import Familiar
from smg.learner.history import History, Stored, UnderWay
from smg.learner.origin import Origin
from smg.learner.prediction import Answer, Keep, Prediction, Predictor
from smg.learner.processes import first_process, meet
from smg.learner.records import (
    CheckpointFacts,
    FamiliarRecord,
    Kept,
    ModelRecord,
    RoundEntry,
    RoundRecord,
    StartRecord,
)
from smg.learner.round import Answering, Diverged, OnStep, Training, this_process
from smg.learner.shared import copied
from smg.learner.spectra import Spectra, styles_of
from smg.learner.store import Store
from smg.learner.versions import Versions
from smg.networks import build_network, check_network
from smg.networks.features import bottleneck_map
from smg.prepare.cache import Prepared
from smg.prepare.site import check_field, prepare_site, scale_note
from smg.records import Settings
from smg.replay.selection import known
from smg.sites.site import Site
from smg.sites.split import Split
from smg.sites.volume import Volume


class Learner:
    """A model in a folder: it learns one site after another, segments scans, and can be rolled back.

        learner = Learner.create("model", method="sga+c", iterations=2000)
        learner.learn(Site.find("data/RUNMC"))
        learner.evaluate(Site.find("data/HK"))

    If a process is killed during a round, call `learn` again with the same site: the round resumes at its last
    checkpoint and ends with the same weights.
    """

    def __init__(
        self,
        folder: str | Path,
        config: LearnerConfig | None = None,
        other_preparation: bool = False,
        trust_code: bool = False,
    ) -> None:
        """Open the model in a folder.

        Args:
            folder: Folder of the model, as made by `create`.
            config: Settings of the next rounds. Default: the model's own. The network cannot differ from the model's.
            other_preparation: Accept a `config` that prepares scans in another way than the model's rounds did.
            trust_code: Run code of your own that the folder names (a method, loss, replay policy or network). Without
                it, such code runs only if its file was trusted before.
        """
        self.history = History(Path(folder))
        self.versions = Versions(self.history, config, other_preparation)
        if trust_code:
            trust.allow(*self.config.code().values())
        self._keeps_config = config is not None
        self._predictor: tuple[int, Predictor] | None = None  # with the round it is of

    @classmethod
    def create(
        cls, folder: str | Path, config: LearnerConfig | None = None, origin: Origin | None = None, **options: Any
    ) -> Learner:
        """Make a model that has learned nothing yet, and return it.

        Args:
            folder: Folder to make. It must not hold a model.
            config: Settings of the model. Default: those of the paper.
            origin: Weights to begin with, read by `smg.learner.origin.read_origin`. Default: random weights.
            **options: Settings of `LearnerConfig` that replace those of `config`, such as `iterations=2000`. A
                mapping replaces only the keys that it has: `network={"width": 8}`.
        """
        store = Store(Path(folder))
        there = store.exists
        meet()  # before any process writes what the others look for
        made = _with_options(config, options)
        if origin:
            weights = copied(origin.fitted(build_network(made.network, made.seed)))
        with store.locked() if first_process() and not there else nullcontext():
            if there or (first_process() and store.exists):  # since another may have made it in the meantime
                raise SmgError(f"{folder}: a model is there already; give another folder, or learn with that one")
            if first_process():
                settings = Settings.model_validate(made.model_dump(mode="json"))
                about = origin.about if origin else None
                details: dict[str, object] = {"version": smg.__version__}
                if about:
                    store.write_round(0, {"weights": weights}, StartRecord(origin=about, config=settings, files={}))
                    details["origin"] = about.model_dump(mode="json")
                store.write(ModelRecord(config=settings, current=0, rounds=(), origin=about))
                store.note("created", **details)
        meet()
        return cls(folder)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Return the store of the model's files."""
        return self.history.store

    @property
    def model(self) -> ModelRecord:
        """Return the content of model.json."""
        return self.history.model

    @property
    def config(self) -> LearnerConfig:
        """Return the configuration of the next round."""
        return self.versions.config

    @property
    def current(self) -> int:
        """The number of the round whose weights are in use; 0 before the first."""
        return self.history.current

    @property
    def sites(self) -> list[str]:
        """The names of the learned sites, in the order of learning."""
        return self.history.sites

    def rounds(self, upto: int | None = None) -> list[RoundEntry]:
        """Return the rounds that led to a version, the current one by default, first to last."""
        return self.history.line(upto)

    def held(self, number: int) -> bool:
        """Return whether the guard has held a round that was not accepted since."""
        return self.history.held(number)

    def stored(self) -> list[Stored]:
        """Return how many exemplars of its site each round stores, and whether the next round would replay them."""
        return self.history.stored()

    def kept(self) -> dict[str, Kept]:
        """Return how many exemplars of each learned site are in the buffer, and their size."""
        return self.history.kept_by_site()

    def as_prepared(self, number: int) -> LearnerConfig:
        """Return the model's configuration, with scans prepared and masks cleaned as for a round's network."""
        return self.versions.as_prepared(number)

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        site: Site,
        split: Split | None = None,
        again: bool = False,
        leave_out: bool = False,
        tolerance: float | None = None,
        unguarded: bool = False,
        held_out: Mapping[str, Site] | None = None,
        checkpoint_seconds: float = 60.0,
        on_step: OnStep | None = None,
        say: Callable[[str], None] | None = None,
        answering: Answering = this_process,
        elsewhere: Elsewhere | None = None,
    ) -> RoundRecord:
        """Learn a site in one round, and return the round's record. The site's data may be deleted afterwards.

        At the end of the round, the guard evaluates the new network at every earlier site. If the Dice score of a site
        falls too far, or cannot be measured, the round is stored but held: it becomes current only by `accept`.

        Args:
            site: Site to learn.
            split: Cases of its training, validation and test part. Default: drawn by the seed, except that a case
                learned before stays in its part.
            again: Learn a site that was learned before. Without it, such a site is an error.
            leave_out: Go on without subjects that have faults. Without it, a fault is an error.
            tolerance: Loss that is allowed at each earlier site, in points of Dice (percent): this much in the round,
                and twice as much below the site's best. Default: the setting `guard.tolerance`.
            unguarded: Hold no round.
            held_out: Scans to guard earlier sites with, by site name. Scans that were trained on are left out. Default:
                the sentinels that the model stores of each site.
            checkpoint_seconds: Least time between two checkpoints, in seconds.
            on_step: Callback after each iteration, with its number and its `Step`.
            say: Callback for notes to the user, one line each.
            answering: Factory of the object that computes gradients. Default: this process.
            elsewhere: Other hospitals that compute gradients of exemplars which they keep.
        """
        tolerance = self.config.guard.tolerance if tolerance is None else tolerance
        if math.isnan(tolerance):
            raise Misuse("a tolerance that is not a number would hold no round; give points of DSC that may be lost")
        with self._alone():
            settled = self._settle()
            if settled is not None and (record := self.history.record(settled)).site == site.name:
                return record
            self._refuse_learned(site.name, again)
            prepared = prepare_site(site, self.config.preparation, leave_out)
            prepared = without_known_scans(self.history, site.name, prepared, leave_out)
            split = split or self._split(site.keep({p.subject.case for p in prepared}))
            parts = {part: [p for p in prepared if p.subject.case in cases] for part, cases in split.items()}
            check_field(parts["train"], self.config.preparation)
            if say and (line := scale_note(parts["train"], self.config.preparation)):
                say(f"site {site.name}: {line}")
            number = 1 + max(self.model.numbers, default=0)
            training = self._training(number, site.name, parts, answering, elsewhere)
            slice_ = training.incoming.gather([0]).images.to(training.oracle.theta.device)
            bottleneck = check_network(training.network, slice_)
            if self.config.replay.features == "foreground":
                bottleneck_map(training.network, slice_, bottleneck)
            guarding = Guarding(None if unguarded else tolerance, self.never_trained_on(held_out or {}))
            if say and self.config.memory == "style" and training.earlier and training.styles is None:
                say("style memory: no spectra of an earlier site are kept, so slices stay in their own style")
            key = self._key(training, parts)
            self._resume(training, key, say)
            try:
                training.run(lambda: self._save(training, key), checkpoint_seconds, on_step)
            except Diverged:
                self._give_up()
                raise
            close(self.versions, training, parts, guarding, elsewhere)
            meet()
            self.history.reload()
            return self.history.record(number)

    def refuse_to_learn(self, site: str, again: bool = False) -> None:
        """Raise, before any scan is read, if the model is in use, has learned the site, or has begun another round."""
        with self._alone():
            self.history.reload()
            found = self.store.resume()
            if found is None:
                self._refuse_learned(site, again)
                return
            about = found[1]
            if about.round not in self.model.numbers:
                self._refuse_learned(site, again)
                self._refuse_others(site, about)
            elif about.site != site:  # the round was trained and only has to be closed: `learn` returns it
                self._refuse_learned(site, again)

    def _refuse_learned(self, site: str, again: bool) -> None:
        if site in self.sites and not again:
            number = next(entry.round for entry in self.rounds() if entry.site == site)
            raise SmgError(
                f"site {site} was learned before (round {number}); --again learns it again, "
                "--as NAME learns another hospital's scans under another name"
            )

    def never_trained_on(self, sites: Mapping[str, Site]) -> dict[str, list[Prepared]]:
        """Return held-out scans of learned sites, prepared; scans that a round trained on are left out."""
        found = {}
        for name, site in sites.items():
            trained = trained_on(self.history, site.called(name))
            found[name] = [p for p in prepare_site(site, self.config.preparation) if p.subject.case not in trained]
        return found

    def parts_of(self, site: Site, upto: int | None = None) -> dict[str, str]:
        """Return the part of each case that a version learned from a site; other cases are left out."""
        if not parts_are_known(self.history, site, upto):
            return {subject.case: "not known" for subject in site.subjects}
        return parts_before(self.history, site, upto)

    def learned_elsewhere(self, site: str, prepared: Sequence[Prepared], upto: int | None = None) -> dict[str, str]:
        """Return the cases whose scans a version learned at another site, with the name of that site."""
        return learned_elsewhere(self.history, site, prepared, upto)

    def check_round(self, number: int) -> None:
        """Raise an error that lists the rounds if this one does not exist; round 0 is first weights that were given."""
        known = self.model.numbers
        if number not in known and (number or not self.model.origin):
            there = ", ".join(map(str, known)) or "none yet"
            raise SmgError(f"{self.store.folder}: no round {number} to answer with; it has {there}")

    def _split(self, site: Site, upto: int | None = None) -> Split:
        return split_as_before(self.history, site, self.config, upto)

    def _alone(self) -> AbstractContextManager[None]:
        """Return the model's lock; in a job of several processes the first one holds it for all."""
        return self.store.locked() if first_process() else nullcontext()

    def settle(self) -> None:
        """Complete a round whose process died after training and before everything was written."""
        with self._alone():
            self._settle()

    def _settle(self) -> int | None:
        """Complete an unfinished round and return it, or None."""
        self.history.reload()
        self.versions.refresh()
        found = self.store.resume()
        number = found[1].round if found else None
        under_way = found is not None and number not in self.model.numbers
        meet()  # so that no process removes what another has not read yet
        if first_process() and not under_way:
            if number is None:
                self.store.forget_progress()  # possibly an empty folder
            else:
                close_again(self.store, number)
        meet()
        return None if under_way else number

    def _training(
        self, number: int, site: str, parts: Parts, answering: Answering, elsewhere: Elsewhere | None
    ) -> Training:
        if not parts["train"]:
            raise SmgError(f"site {site}: no subject to train with")
        recipe = self.config.recipe()
        known(recipe.policy)  # report a missing file before the round, not after it
        fresh = recipe.method.one_network_a_site
        moments = self.versions.moments() if self.config.keep_optimiser and not fresh else None
        memory = None if fresh else self.versions.memory()
        replay = self.versions.replay()
        for name, exemplars in replay.items():
            resized = self.config.preparation.spacing is None
            if resized and tuple(exemplars[0].images.shape[-2:]) != self.config.preparation.shape:
                raise SmgError(
                    f"{self.store.folder}: exemplars of {name} have {exemplars[0].images.shape[-2]} rows, so slices of "
                    f"{self.config.preparation.size} cannot be learned beside them; keep preparation.size, or give "
                    f"them up: `smg replay drop {self.store.folder} {name}`"
                )
        everywhere = self._everywhere(replay, elsewhere)
        sites = list(everywhere)
        return Training(
            network=self.network(0 if fresh else None),
            config=self.config,
            number=number,
            site=site,
            train=parts["train"],
            validation=parts["validation"],
            replay=list(everywhere.values()),
            moments=moments,
            memory=memory,
            earlier=len(self.rounds()),
            answering=partial(_by_all, elsewhere, answering, sites) if elsewhere else answering,
            styles=None if fresh else styles_of(self.versions.spectra(), self.config),
            merging=None if fresh or self.config.merge is None else self.versions.merging(self.config.merge),
        )

    def _everywhere(
        self, replay: dict[str, list[Prepared]], elsewhere: Elsewhere | None
    ) -> dict[str, list[Prepared] | Rows]:
        """Return each site's exemplars, or its rows at another hospital, in the order of learning."""
        rows = {site: one for site, one in elsewhere.rows.items() if one.count} if elsewhere else {}
        kept: dict[str, list[Prepared] | Rows] = {**rows, **replay}
        return {site: kept[site] for site in dict.fromkeys(self.sites) if site in kept}

    def _key(self, training: Training, parts: Parts) -> dict[str, str]:
        """Return a hash of each input that a checkpoint depends on, by the name that error messages use for it."""
        subjects = [p for part in parts.values() for p in part]
        last = {record.site: record for record in self.history.records()}
        replayed = [here[0].subject.site for here in training.replay if not isinstance(here, Rows)]
        far = [there.exemplars for there in training.replay if isinstance(there, Rows)]
        made_from = {
            "another configuration": self._configuration_key(),
            "another round before it": [training.number, self.current],
            "another split": {part: sorted(p.subject.case for p in parts[part]) for part in parts},
            "other scans": {p.subject.case: [p.content, p.turned] for p in subjects},
            "other masks": {p.subject.case: hashlib.sha256(p.labels.numpy().data).hexdigest() for p in subjects},
            "another state of its method": self.versions.state_hash(),
            "other exemplars": {site: last[site].files["exemplars.safetensors"] for site in replayed}
            | ({"elsewhere": far} if far else {}),
        }
        if training.styles is not None:
            spectra = self.versions.spectra()
            made_from["other spectra"] = {site: last[site].files["spectra.safetensors"] for site in spectra}
        whole = {name: json.dumps(value, sort_keys=True).encode() for name, value in made_from.items()}
        return {name: hashlib.sha256(value).hexdigest() for name, value in whole.items()}

    def _configuration_key(self) -> dict[str, Any]:
        """Return the configuration without disabled settings: a round begun before a setting existed can resume."""
        config = self.config
        whole = config.model_dump(mode="json")
        new = {
            "memory": config.memory == "none",
            "style": config.memory == "none",
            "merge": config.merge is None,
            "merge_by": config.merge is None,
            "share": not config.share,
        }
        whole = {name: value for name, value in whole.items() if not new.get(name)}
        if config.preparation.nnunet is None:
            del whole["preparation"]["nnunet"]
        return whole

    def _resume(self, training: Training, key: dict[str, str], say: Callable[[str], None] | None) -> None:
        found = self.store.resume()
        meet()  # so that no process saves before another has read
        if found is None:
            return
        tensors, about = found
        self._refuse_others(training.site, about, key)
        training.load(tensors, about)
        if say and (line := _made_otherwise(about.versions)):
            say(line)
        if say:
            say(f"going on at iteration {about.iteration} of {self.config.iterations}")

    def _refuse_others(self, site: str, about: CheckpointFacts, key: dict[str, str] | None = None) -> None:
        """Refuse a checkpoint that was made from other inputs; without a key, only the site is compared."""
        then = about.key
        under_way = f"{self.store.folder}: a round on site {about.site} is under way there"
        if then is None:
            raise SmgError(
                f"{under_way}, begun by an older smg that did not say with what; "
                f"give it up: `smg abandon {self.store.folder}`"
            )
        differs = [name for name in key | then if key.get(name) != then.get(name)] if key is not None else []
        if about.site != site or differs:
            what = f", with {' and '.join(differs)}" if about.site == site else ""
            if about.parent not in (None, self.current):
                needed = f"`smg rollback {self.store.folder} {about.parent}`"
                what += f"; it goes on from round {about.parent}, which {needed} makes current"
            raise SmgError(
                f"{under_way}{what}; go on with it as it was begun, or give it up: `smg abandon {self.store.folder}`"
            )

    def _save(self, training: Training, key: dict[str, str]) -> None:
        if first_process():
            facts = training.facts(key, self.current, versions_of_packages())
            self.store.checkpoint(training.tensors(), facts)

    def abandon(self) -> UnderWay | None:
        """Discard the unfinished round, note it in the journal, and return what it was; None if it cannot be read."""
        with self._alone():
            self.history.reload()
            under_way = self.history.under_way()
            if under_way is None and not (self.store.folder / "progress").exists():
                raise SmgError(f"{self.store.folder}: no round is under way; nothing to abandon")
            if under_way is None and (settled := self._settle()) is not None:
                raise SmgError(f"{self.store.folder}: round {settled} is learned; `smg rollback` goes back from it")
            self.store.forget_progress()
            what = {key: getattr(under_way, key, None) for key in ("round", "site", "iteration")}
            self.store.note("abandoned", **what)
            return under_way

    def _give_up(self) -> None:
        """Remove the checkpoint of a round that diverged, since it would diverge again."""
        if first_process():
            self.store.forget_progress()

    # --- asking -------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        site: Site,
        part: str | None = None,
        split: Split | None = None,
        leave_out: bool = False,
        number: int | None = None,
        on_subject: OnSubject | None = None,
    ) -> list[Evaluated]:
        """Segment the subjects of a site, compare them with their masks, and return the metrics of each subject.

        Metrics are computed on each scan's own grid.

        Args:
            site: Site to evaluate. It may be one that the model has not learned.
            part: `train`, `validation`, `test` or `all`. Default: `test` if the site was learned or a split is given,
                and `all` if not.
            split: Cases of each part. Default: the parts that the site was learned with, or would be.
            leave_out: Go on without subjects that have faults. Without it, a fault is an error.
            number: Round whose network is evaluated. Default: the current one.
            on_subject: Callback with (subject, index, total), before each subject is evaluated.
        """
        asked = part
        if part is None:
            learned = site.name in [entry.site for entry in self.rounds(number)]
            part = "test" if learned or split is not None else "all"
        if number is None:
            self._refuse_unlearned()
        answering = self.versions.round_for(site.name, number)
        config = self.as_prepared(answering)
        prepared = prepare_site(site, config.preparation, leave_out)
        if split is None and asked != "all":
            # The parts of scans that were learned at another site belong to that site.
            prepared = without_known_scans(self.history, site.name, prepared, leave_out)
        if part != "all":
            if split is None:
                split = self._split(site.keep({p.subject.case for p in prepared}), number)
            prepared = [p for p in prepared if p.subject.case in split[part]]
        return evaluate_subjects(
            self.network(answering), prepared, config.preparation, config.largest_component, config.mirror, on_subject
        )

    def predict(self, *channels: Volume) -> Prediction:
        """Segment a scan; return its mask on the scan's own grid, and how far the scan is from each learned site.

        Args:
            *channels: The scan, one volume for each channel (`smg.sites.volume.read_volume`).
        """
        return self.predictor().predict(*channels)

    def predict_all(self, scans: Iterable[Path | Sequence[Path]], keep: Keep | None = None) -> Iterator[Answer]:
        """Segment scans, several at a time, and yield (file, prediction) or (file, error) of each, in order.

        Args:
            scans: File of each scan, or the files of its channels.
            keep: Callback with (file, prediction), called in a thread; the place to write a mask.
        """
        return self.predictor().predict_all(scans, keep)

    def predictor(self, number: int | None = None) -> Predictor:
        """Return the predictor of a round, by default the current one; it is read once and reused."""
        if number is None:
            self._refuse_unlearned()
            number = self.current
        else:
            self.check_round(number)
        if self._predictor is None or self._predictor[0] != number:
            familiar = Familiar.read([(entry.site, self._familiar(entry.round)) for entry in self.rounds(number)])
            self._predictor = number, Predictor(self.network(number), self.as_prepared(number), familiar)
        return self._predictor[1]

    def _familiar(self, number: int) -> FamiliarRecord | None:
        """Return a round's site statistics; None if an earlier round is damaged: prediction works without them."""
        try:
            return self.history.record(number).familiar
        except SmgError:
            return None

    def _refuse_unlearned(self) -> None:
        """Raise an error if the weights are still random."""
        if not self.history.has_learned:
            folder = self.store.folder
            raise SmgError(f"{folder}: has learned nothing yet; `smg learn {folder} SITE` teaches it a site")

    def network(self, number: int | None = None) -> nn.Module:
        """Return the network of a round, by default the current one; round 0 has the initial weights."""
        return self.versions.network(number)

    def network_for(self, site: str, number: int | None = None) -> nn.Module:
        """Return the network for a site: the round's, or the site's own if the method trains one for each site."""
        return self.versions.network_for(site, number)

    def replay(self) -> dict[str, list[Prepared]]:
        """Return the exemplars of every learned site that has any."""
        return self.versions.replay()

    def sentinels(self) -> dict[str, list[Prepared]]:
        """Return the sentinels of every learned site that has any."""
        return self.versions.sentinels()

    def spectra(self) -> dict[str, Spectra]:
        """Return the spectra of every learned site that has any."""
        return self.versions.spectra()

    def memory(self) -> dict[str, Tensor]:
        """Return the method's state at the end of the current round; empty if that round had another method."""
        return self.versions.memory()

    # --- taking back --------------------------------------------------------------------------------------------------

    def rollback(self, number: int) -> None:
        """Make an earlier round current. Later rounds are not deleted."""
        undo.roll_back(self.history, number)
        self._follow()

    def accept(self, number: int) -> None:
        """Make a round current that the guard has held."""
        undo.accept(self.history, number)
        self._follow()

    def drop(self, site: str) -> int:
        """Delete what every round stores of a site's patients, and return how many exemplars were deleted.

        These are exemplars, sentinels, spectra and the tensors of a method's state that belong to the site. The journal
        notes it.
        """
        return undo.drop(self.history, site).exemplars

    def _follow(self) -> None:
        """Use the configuration of the current round, unless one was given."""
        if not self._keeps_config:
            self.versions.refresh()


def _with_options(config: LearnerConfig | None, options: Mapping[str, Any]) -> LearnerConfig:
    """Return a configuration with options laid over it, checked; over the defaults where there is none."""
    if config and not options:
        return config
    below = config.model_dump() if config else {}
    plain = {key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in options.items()}
    return configuration(below, typed(plain))


def _by_all(
    elsewhere: Elsewhere, answering: Answering, sites: Sequence[str], network: nn.Module, config: LearnerConfig
) -> GradientSource:
    """Return the source of gradients when other hospitals hold some of the sites."""
    return elsewhere.source(answering(network, config), sites)


def _made_otherwise(then: Mapping[str, str | int]) -> str | None:
    """Return a warning if a checkpoint was made with a different torch, thread count or processor."""
    now = versions_of_packages()
    words = {"torch": "torch {}", "threads": "{} threads", "cpu": "{} instructions"}
    differs = [key for key in words if key in then and then[key] != now[key]]
    if not differs:
        return None
    was, is_ = (", ".join(words[key].format(at[key]) for key in differs) for at in (then, now))
    return f"the round was begun with {was}, and goes on with {is_}: its weights will differ in their last bits"
