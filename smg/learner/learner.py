"""A model that learns one site after another, segments scans, and can be rolled back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smg import trust
from smg.errors import Misuse
from smg.evaluation.subjects import Evaluated, OnSubject
from smg.json_records import Tree
from smg.learner import undo
from smg.learner.admission import learned_elsewhere, parts_if_known
from smg.learner.asking import evaluate_site, predictor_of
from smg.learner.checkpoints import abandon, alone, run_with_checkpoints, settle
from smg.learner.closing import Guarding, close
from smg.learner.config import LearnerConfig
from smg.learner.creation import create_model
from smg.learner.elsewhere import Elsewhere
from smg.learner.history import History, Stored, UnderWay
from smg.learner.opening import (
    check_training,
    make_training,
    never_trained_on,
    parts_of_round,
    refuse_learned,
    refuse_to_learn,
)
from smg.learner.origin import Origin
from smg.learner.predictor import Answer, Keep, Prediction, Predictor
from smg.learner.processes import meet
from smg.learner.records import Kept, ModelRecord, RoundEntry, RoundRecord
from smg.learner.rekey import change_key
from smg.learner.round import Answering, OnStep, this_process
from smg.learner.spectra import Spectra
from smg.learner.store import Store
from smg.learner.versions import Versions
from smg.prepare.cache import Prepared
from smg.prepare.prepared_site import PreparedSite
from smg.sites.site import Site
from smg.sites.split import Split
from smg.sites.volume import Volume
from smg.vault.key import Key
from smg.vault.vault import NewModel


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
        key: Key | None = None,
    ) -> None:
        """Open the model in a folder.

        Args:
            folder: Folder of the model, as made by `create`.
            config: Settings of the next rounds. Default: the model's own. The network cannot differ from the model's.
            other_preparation: Accept a `config` that prepares scans in another way than the model's rounds did.
            trust_code: Run code of your own that the folder names (a method, loss, replay policy or network). Without
                it, such code runs only if its file was trusted before.
            key: Key of an encrypted model, such as `smg.Key.from_file("model.key")`. It is needed where
                something of a patient is read. Default: by the environment (SMG_KEY_FILE, SMG_KEY or SMG_PASSPHRASE).
        """
        self.history = History(Path(folder), key)
        self.versions = Versions(self.history, config, other_preparation)
        self._keeps_config = config is not None
        if trust_code:
            trust.allow(*self.config.code().values())
        self._predictor: tuple[int, Predictor] | None = None  # with the round it is of

    @classmethod
    def create(
        cls,
        folder: str | Path,
        config: LearnerConfig | None = None,
        origin: Origin | None = None,
        plan: str | None = None,
        encrypt: Key | NewModel | None = None,
        given: Tree | None = None,
        **options: Any,
    ) -> Learner:
        """Make a model that has learned nothing yet, and return it.

        Args:
            folder: Folder to make. It must not hold a model.
            config: Settings of the model. Default: those of the paper.
            origin: Weights to begin with, read by `smg.learner.origin.read_origin`. Default: random weights.
            plan: Text of the plan that the settings came from, to be kept with the model. Default: none.
            encrypt: Key by which everything that the model keeps of patients is encrypted. Default: no encryption.
            given: Settings that the user gave, which a later plan keeps. Default: those that differ from the defaults.
            **options: Settings of `LearnerConfig` that replace those of `config`, such as `iterations=2000`. A
                mapping replaces only the keys that it has: `network={"width": 8}`.
        """
        new = NewModel.under(encrypt) if isinstance(encrypt, Key) else encrypt
        create_model(Path(folder), config, origin, options, plan, new.vault if new else None, given)
        return cls(folder, key=new.key if new else None)

    def configure(self, config: LearnerConfig, other_preparation: bool = False) -> None:
        """Set the settings of the next rounds; the arguments are those of `Learner`."""
        self.versions, self._keeps_config = Versions(self.history, config, other_preparation), True

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

    @property
    def is_encrypted(self) -> bool:
        """Whether what the model keeps of patients is encrypted."""
        return self.model.encryption is not None

    def change_key(self, new: Key, again: bool = False) -> None:
        """Put an encrypted model under another key; `again` also encrypts every file again, by a new data key.

        Killed at any moment, the model opens by the old key or the new one, and the same call goes on.
        """
        change_key(self.history, new, again)

    def as_prepared(self, number: int) -> LearnerConfig:
        """Return the model's configuration, with scans prepared and masks cleaned as for a round's network."""
        return self.versions.as_prepared(number)

    def config_for(self, site: str, number: int | None = None) -> LearnerConfig:
        """Return the configuration with which a version evaluates a site; refuse a version that does not exist."""
        self.versions.round_to_ask(number)
        return self.as_prepared(self.versions.round_for(site, number))

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
        prepared: PreparedSite | None = None,
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
            prepared: The site's subjects, if they were prepared before. Default: they are prepared here.
        """
        tolerance = self.config.guard.tolerance if tolerance is None else tolerance
        if math.isnan(tolerance):
            raise Misuse("a tolerance that is not a number would hold no round; give points of DSC that may be lost")
        versions, history = self.versions, self.history
        with alone(self.store):
            settled = settle(versions)
            if settled is not None and (record := history.record(settled)).site == site.name:
                return record
            refuse_learned(history, site.name, again)
            parts = parts_of_round(versions, site, split, leave_out, say, prepared)
            training = make_training(versions, site.name, parts, answering, elsewhere)
            check_training(training, say)
            guarding = Guarding(None if unguarded else tolerance, never_trained_on(versions, held_out or {}, say))
            run_with_checkpoints(versions, training, parts, checkpoint_seconds, on_step, say)
            close(versions, training, parts, guarding, elsewhere)
            meet()
            history.reload()
            return history.record(training.number)

    def refuse_to_learn(self, site: str, again: bool = False) -> None:
        """Raise, before any scan is read, if the model is in use, has learned the site, or has begun another round."""
        with alone(self.store):
            refuse_to_learn(self.history, site, again)

    def prepare(
        self,
        site: Site,
        leave_out: bool = False,
        number: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> list[Prepared]:
        """Return a site's subjects as slices, from the cache, which is encrypted if the model is.

        Args:
            site: Site to prepare.
            leave_out: Go on without subjects that have faults. Without it, a fault is an error.
            number: Round as for whose network scans are prepared. Default: the next round.
            progress: Callback with the site's name, after each subject.
        """
        config = self.config if number is None else self.as_prepared(number)
        return self.versions.prepare(site, config, leave_out, progress)

    def never_trained_on(self, sites: Mapping[str, Site]) -> dict[str, list[Prepared]]:
        """Return held-out scans of learned sites, prepared, without those that a round may have trained on."""
        return never_trained_on(self.versions, sites)

    def parts_of(self, site: Site, upto: int | None = None) -> dict[str, str]:
        """Return the part of each case that a version learned from a site; other cases are left out."""
        return parts_if_known(self.history, site, upto)

    def learned_elsewhere(self, site: str, prepared: Sequence[Prepared], upto: int | None = None) -> dict[str, str]:
        """Return the cases whose scans a version learned at another site, with the name of that site."""
        return learned_elsewhere(self.history, site, prepared, upto)

    def check_round(self, number: int) -> None:
        """Raise an error that lists the rounds if this one does not exist; round 0 is first weights that were given."""
        self.versions.check_round(number)

    def settle(self) -> None:
        """Complete a round whose process died after training and before everything was written."""
        with alone(self.store):
            settle(self.versions)

    def abandon(self) -> UnderWay | None:
        """Discard the unfinished round, note it in the journal, and return what it was; None if it cannot be read."""
        return abandon(self.versions)

    # --- asking -------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        site: Site,
        part: str | None = None,
        split: Split | None = None,
        leave_out: bool = False,
        number: int | None = None,
        on_subject: OnSubject | None = None,
        prepared: PreparedSite | None = None,
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
            prepared: The site's subjects, if they were prepared before. Default: they are prepared here.
        """
        return evaluate_site(self.versions, site, part, split, leave_out, number, on_subject, prepared)

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
        number = self.versions.round_to_ask(number)
        if self._predictor is None or self._predictor[0] != number:
            self._predictor = number, predictor_of(self.versions, number)
        return self._predictor[1]

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
