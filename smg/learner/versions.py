"""The versions of a model: the network of each round, and the exemplars, sentinels and state for the next round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from smg.errors import SmgError, validation_line
from smg.learner.config import OPENED, LearnerConfig, spelled
from smg.learner.exemplars import unpack
from smg.learner.history import MERGING, SENTINELS, SPECTRA, STATE, History
from smg.learner.merging import KEY as IMPORTANCE
from smg.learner.merging import Merging
from smg.learner.round import device_of_choice
from smg.learner.spectra import KEY, Spectra
from smg.networks import build_network
from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import PreparedSite, prepared_once
from smg.sites.site import Site

OPTIMISER = "optimiser.safetensors"


class Versions:
    """The tensors of a model's rounds, and the configuration of the next one."""

    def __init__(self, history: History, config: LearnerConfig | None = None, other_preparation: bool = False) -> None:
        """Read the configuration of the next round: `config` if given, or else the model's own.

        The network must be the model's. A different preparation is refused unless `other_preparation` is set, since
        weights that were trained with one preparation may work poorly with another.
        """
        history.store.check_classes(history.model)
        self.history, self.store = history, history.store
        self._given, self._other_preparation = config, other_preparation
        self.config = self._configured()

    def refresh(self) -> None:
        """Update the configuration after the history was reloaded."""
        self.config = self._configured()

    def _configured(self) -> LearnerConfig:
        """Return the configuration that was given if it fits the current round, or else that round's."""
        try:
            own = self._own(self.history.current, ("preparation",))
        except SmgError:  # the round is damaged; the model still opens, so that it can be rolled back
            own = self._own(0)
        config, folder = self._given or own, self.store.folder
        if config.network != own.network:
            changed = _changed(own.network, config.network)
            raise SmgError(f"{folder}: the model's network cannot be changed ({changed}); make a new model")
        if config.preparation != own.preparation and not self._other_preparation:
            raise SmgError(
                f"{folder}: scans were prepared in another way before "
                f"({_changed(own.preparation, config.preparation)}); give --other-preparation to allow it"
            )
        return config

    def as_prepared(self, number: int) -> LearnerConfig:
        """Return the model's configuration, with scans prepared and masks made as for a round's network."""
        return self._own(number, ("preparation", "largest_component", "mirror"))

    def _own(self, number: int, as_then: Sequence[str] = ()) -> LearnerConfig:
        """Return the model's configuration, with these settings as a round had them."""
        config = self.history.model.config.tree()
        if number:
            then = self.history.record(number).config.tree()
            config |= {key: then[key] for key in as_then if key in then}
        try:
            return LearnerConfig.model_validate(config, context=OPENED)
        except ValidationError as error:
            raise SmgError(
                f"{self.store.folder}: damaged (its settings: {validation_line(error)}); restore it from a backup"
            ) from None

    # --- networks -----------------------------------------------------------------------------------------------------

    def network(self, number: int | None = None) -> nn.Module:
        """Return the network of a round, the current one by default; round 0 has the first weights."""
        network = build_network(self.config.network, self.config.seed).to(device_of_choice())
        number = self.history.current if number is None else number
        if number or self.history.origin:
            weights = self.store.read_tensors(number, "weights")
            for name, tensor in weights.items():
                if not tensor.isfinite().all():
                    path = self.store.round_folder(number) / "weights.safetensors"
                    raise SmgError(f"{path}: {name} holds NaN or infinite weights; go back to another round")
            network.load_state_dict(weights)
        return network

    def network_for(self, site: str, number: int | None = None) -> nn.Module:
        """Return the network for a site: the round's, or the site's own if the method trains one for each site."""
        return self.network(self.round_for(site, number))

    def round_for(self, site: str, number: int | None = None) -> int:
        """Return the round whose network is used for a site."""
        if self.config.recipe().method.one_network_a_site:
            for entry in reversed(self.history.line(number)):
                if entry.site == site:
                    return entry.round
        return self.history.current if number is None else number

    def round_to_ask(self, number: int | None = None) -> int:
        """Return the round that answers, by default the current one; refuse random weights and a missing round."""
        if number is not None:
            self.check_round(number)
            return number
        if not self.history.has_learned:
            folder = self.store.folder
            raise SmgError(f"{folder}: has learned nothing yet; `smg learn {folder} SITE` teaches it a site")
        return self.history.current

    def check_round(self, number: int) -> None:
        """Raise an error that lists the rounds if this one does not exist; round 0 is first weights that were given."""
        there = self.history.model.numbers
        if number not in there and (number or not self.history.origin):
            listed = ", ".join(map(str, there)) or "none yet"
            raise SmgError(f"{self.store.folder}: no round {number} to answer with; it has {listed}")

    def prepare(
        self,
        site: Site,
        config: LearnerConfig,
        leave_out: bool = False,
        progress: Callable[[str], None] | None = None,
        ready: PreparedSite | None = None,
    ) -> list[Prepared]:
        """Return a site's subjects as slices: those that are ready, or from the cache, encrypted if the model is."""
        return prepared_once(ready, site, config.preparation, leave_out, progress, self.store.vault)

    # --- what the next round needs ------------------------------------------------------------------------------------

    def replay(self) -> dict[str, list[Prepared]]:
        """Return the exemplars of every learned site that has any."""
        kept = {e.site: unpack(e.site, self.store.read_tensors(e.round, "exemplars")) for e in self.history.line()}
        return {site: subjects for site, subjects in kept.items() if subjects}

    def sentinels(self) -> dict[str, list[Prepared]]:
        """Return the sentinels of every learned site that has any; those that a later round trained on are left out."""
        kept: dict[str, list[Prepared]] = {}
        for record in self.history.records():
            if SENTINELS in record.files:
                kept[record.site] = unpack(record.site, self.store.read_tensors(record.round, "sentinels"))
            trained = set(record.parts.train)
            kept[record.site] = [one for one in kept.get(record.site, ()) if one.subject.case not in trained]
        return {site: subjects for site, subjects in kept.items() if subjects}

    def spectra(self) -> dict[str, Spectra]:
        """Return the spectra of every learned site that has any."""
        kept = {}
        for record in self.history.records():
            if SPECTRA in record.files:
                stored = self.store.read_tensors(record.round, "spectra")
                then = Preparation.model_validate(record.config.tree()["preparation"])
                if KEY in stored:  # not dropped
                    kept[record.site] = Spectra(stored[KEY], then.size, then.spacing)
        return kept

    def merging(self, share: float) -> Merging:
        """Return how the next round is merged with the current one."""
        current, kept = self.history.current, None
        if current and MERGING in self.history.record(current).files:
            kept = self.store.read_tensors(current, "merging")[IMPORTANCE]
        return Merging(share, self.config.merge_by == "fisher", kept)

    def moments(self) -> dict[str, Tensor] | None:
        """Return the optimiser's state at the end of the current round, if it was kept."""
        current = self.history.current
        if not current or OPTIMISER not in self.history.record(current).files:
            return None
        return self.store.read_tensors(current, "optimiser")

    def memory(self) -> dict[str, Tensor]:
        """Return the method's state at the end of the current round; empty if that round had another method."""
        if self.state_hash() is None:
            return {}
        current = self.history.current
        same = _named(self.history.record(current).config.method) == _named(self.config.method)
        return self.store.read_tensors(current, "state") if same else {}

    def state_hash(self) -> str | None:
        """Return the sha256 of the method's state at the end of the current round, if it has one."""
        current = self.history.current
        return self.history.record(current).files.get(STATE) if current else None


def _named(method: str) -> str:
    """Return the registered name of a method, without its file."""
    return spelled(method)[0].rpartition(":")[2]


def _changed(before: BaseModel, now: BaseModel) -> str:
    """Return the settings that differ, as `width 8, not 4`."""
    old, new = before.model_dump(), now.model_dump()
    return ", ".join(f"{key} {old[key]}, not {new[key]}" for key in old if old[key] != new[key])
