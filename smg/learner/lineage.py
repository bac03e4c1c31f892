"""What a model's folder tells of its past: looking back on its rounds, and taking them back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch import Tensor, nn

from smg import trust
from smg.errors import SmgError
from smg.learner.config import OPENED, LearnerConfig, spelled
from smg.learner.exemplars import alias, unpack
from smg.learner.history import History, line_of
from smg.learner.merging import KEY as MERGING
from smg.learner.merging import Merging
from smg.learner.processes import first_process
from smg.learner.round import device_of_choice
from smg.learner.spectra import KEY, Spectra
from smg.learner.store import Store
from smg.networks import build_network
from smg.prepare.cache import Prepared
from smg.prepare.options import Preparation
from smg.sites.site import Site
from smg.sites.split import Split, fold_site, split_site


class Lineage:
    """The rounds of one model: those that led to the current one, and those that were left aside."""

    def __init__(
        self,
        folder: str | Path,
        config: LearnerConfig | None = None,
        other_preparation: bool = False,
        trust_code: bool = False,
    ) -> None:
        """Open a model; `config` is what its next rounds go by, the model's own if none is given.

        The network must be the model's. A preparation that differs is refused unless asked for: what was learned from
        scans prepared one way may be worth little on scans prepared another.

        A method, loss, policy or network of one's own that the folder names does not run unless its file is trusted
        (smg.trust), or `trust_code` says so.
        """
        self.store = Store(Path(folder))
        self.model = self.store.read()
        self.store.check_classes(self.model)
        self._given, self._other_preparation = config, other_preparation
        self.config = self._configured()
        if trust_code:
            trust.allow(*self.config.code().values())

    def _configured(self) -> LearnerConfig:
        """What the next round goes by: what was given, if it fits the current round, or else as that has it."""
        try:
            own = self.as_prepared(self.current)
        except SmgError:  # the round is damaged: the model opens all the same, so that it can be rolled back
            own = self.as_prepared(0)
        config, folder = self._given or own, self.store.folder
        if config.network != own.network:
            changed = _changed(own.network, config.network)
            raise SmgError(f"{folder}: the model's network cannot be changed ({changed}); make a new model")
        if config.preparation != own.preparation and not self._other_preparation:
            raise SmgError(
                f"{folder}: scans were prepared otherwise before "
                f"({_changed(own.preparation, config.preparation)}); --other-preparation does it all the same"
            )
        return config

    # --- looking back -------------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """The round whose weights are in use; 0 before the first."""
        return int(self.model["current"])

    def rounds(self, upto: int | None = None) -> list[dict[str, Any]]:
        """The entries of the rounds that led to a version, first to last."""
        return line_of(self.model, self.current if upto is None else upto)

    @property
    def sites(self) -> list[str]:
        """The sites learned, in order."""
        return [entry["site"] for entry in self.rounds()]

    def network(self, number: int | None = None) -> nn.Module:
        """The network of a round, the current one if none is named; round 0 has the first weights."""
        network = build_network(self.config.network, self.config.seed).to(device_of_choice())
        number = self.current if number is None else number
        if number or self.model.get("origin"):
            weights = self.store.read_tensors(number, "weights")
            for name, tensor in weights.items():
                if not tensor.isfinite().all():
                    path = self.store.round_folder(number) / "weights.safetensors"
                    raise SmgError(f"{path}: {name} holds NaN or infinite weights; go back to another round")
            network.load_state_dict(weights)
        return network

    def network_for(self, site: str, number: int | None = None) -> nn.Module:
        """The network that answers for a site: the round's, or the site's own where every site has one by then."""
        return self.network(self._answering(site, number))

    def _answering(self, site: str, number: int | None) -> int:
        if self.config.recipe().method.one_network_a_site:
            for entry in reversed(self.rounds(number)):
                if entry["site"] == site:
                    return int(entry["round"])
        return self.current if number is None else number

    def as_prepared(self, number: int) -> LearnerConfig:
        """The model's configuration, with scans prepared and masks cleaned as they were for a round's network."""
        config = self.model["config"]
        if number:
            then = self.store.read_round(number)["config"]
            config = config | {key: then[key] for key in ("preparation", "largest_component", "mirror") if key in then}
        return LearnerConfig.model_validate(config, context=OPENED)

    def replay(self) -> dict[str, list[Prepared]]:
        """The exemplars of every site learned so far."""
        kept = {e["site"]: unpack(e["site"], self.store.read_tensors(e["round"], "exemplars")) for e in self.rounds()}
        return {site: subjects for site, subjects in kept.items() if subjects}

    def sentinels(self) -> dict[str, list[Prepared]]:
        """Return the sentinels of every site learned so far that has any."""
        kept = {}
        for entry in self.rounds():
            if "sentinels.safetensors" in self.store.read_round(entry["round"])["files"]:
                kept[entry["site"]] = unpack(entry["site"], self.store.read_tensors(entry["round"], "sentinels"))
        return {site: subjects for site, subjects in kept.items() if subjects}

    def spectra(self) -> dict[str, Spectra]:
        """Return the spectra of every site learned so far that has any."""
        kept = {}
        for entry in self.rounds():
            record = self.store.read_round(entry["round"])
            if "spectra.safetensors" in record["files"]:
                stored = self.store.read_tensors(entry["round"], "spectra")
                then = Preparation.model_validate(record["config"]["preparation"])
                if KEY in stored:  # not dropped
                    kept[entry["site"]] = Spectra(stored[KEY], then.size, then.spacing)
        return kept

    def memory(self) -> dict[str, Tensor]:
        """Return the method's state at the end of the current round; none where that round had another method."""
        if self._state_hash() is None:
            return {}
        then = self.store.read_round(self.current)["config"]["method"]
        return self.store.read_tensors(self.current, "state") if _named(then) == _named(self.config.method) else {}

    def _merging(self, share: float) -> Merging:
        """Return how the next round is merged with the current one."""
        record = self.store.read_round(self.current) if self.current else {"files": {}}
        kept = None
        if "merging.safetensors" in record["files"]:
            kept = self.store.read_tensors(self.current, "merging")[MERGING]
        return Merging(share, self.config.merge_by == "fisher", kept)

    def _state_hash(self) -> str | None:
        files = self.store.read_round(self.current)["files"] if self.current else {}
        return files.get("state.safetensors")

    def held(self, number: int) -> bool:
        """Whether a round still waits to be accepted."""
        return History(self.store.folder).held(self.store.read_round(number))

    def stored(self) -> list[dict[str, Any]]:
        """How many subjects and bytes each round holds of its site, and whether the next round would replay them."""
        return History(self.store.folder).stored()

    def kept(self) -> dict[str, dict[str, int]]:
        """How many subjects and bytes of each earlier site are in the buffer."""
        past = History(self.store.folder)
        return {entry["site"]: past.kept(entry["round"]) for entry in self.rounds()}

    def _round_of(self, site: str) -> int:
        return next(int(entry["round"]) for entry in self.rounds() if entry["site"] == site)

    def _split(self, site: Site, upto: int | None = None) -> Split:
        """By a hash of seed and case; but who was in a part when a version learned the site stays in it."""
        before = self.parts_of(site, upto)
        if self.config.folds and not before:
            return fold_site(site, self.config.seed, self.config.folds)
        return split_site(site, self.config.seed, before)

    def parts_of(self, site: Site, upto: int | None = None) -> dict[str, str]:
        """Return the part that each case of a site was in when a version learned it; nothing of other cases."""
        before: dict[str, str] = {}
        for entry in self.rounds(upto):
            if entry["site"] == site.name:
                record = self.store.read_round(entry["round"])
                part_of = {name: part for part, names in record.get("parts", {}).items() for name in names}
                names = {s.case: alias(record["config"]["seed"], site.name, s.case) for s in site.subjects}
                before |= {case: part_of[name] for case, name in names.items() if name in part_of}
        return before

    def check_round(self, number: int) -> None:
        """Raise an error that lists the rounds if there is none of that number; 0 needs weights that were given."""
        known = [entry["round"] for entry in self.model["rounds"]]
        if number not in known and (number or not self.model.get("origin")):
            there = ", ".join(map(str, known)) or "none yet"
            raise SmgError(f"{self.store.folder}: no round {number} to answer with; it has {there}")

    def _new_scans(self, site: Site, prepared: list[Prepared], leave_out: bool) -> list[Prepared]:
        """Without those that were learned at another site: they would be tested on as if they were new."""
        elsewhere, new = self.learned_elsewhere(site.name, prepared), []
        for scan in prepared:
            where = elsewhere.get(scan.subject.case)
            if where is None:
                new.append(scan)
            elif not leave_out:
                raise SmgError(
                    f"{scan.subject.image}: the same scan was learned at site {where}; --leave-out goes on without it, "
                    f"--as {where} if this is that site"
                )
        return new

    def learned_elsewhere(self, site: str, prepared: Sequence[Prepared], upto: int | None = None) -> dict[str, str]:
        """Return the cases whose scans a version has learned under another site's name, with that name."""
        others = [entry for entry in self.rounds(upto) if entry["site"] != site]
        known = {scan: e["site"] for e in others for scan in self.store.read_round(e["round"]).get("scans", [])}
        found = {p.subject.case: [known[one] for one in scan_hashes(p) if one in known] for p in prepared}
        return {case: names[0] for case, names in found.items() if names}

    # --- taking back --------------------------------------------------------------------------------------------------

    def rollback(self, number: int) -> None:
        """Make an earlier round current; nothing is deleted."""
        if self._known(number) and self.held(number):
            raise SmgError(f"{self.store.folder}: round {number} is held; `smg accept` takes it")
        self._make_current(number, "rolled back")

    def accept(self, number: int) -> None:
        """Make a held round current."""
        if number == 0 or (self._known(number) and not self.held(number)):
            raise SmgError(f"{self.store.folder}: round {number} is not held; `smg rollback` goes back to it")
        self._make_current(number, "accepted")

    def _known(self, number: int) -> bool:
        return number in [entry["round"] for entry in self.model["rounds"]]

    def _make_current(self, number: int, event: str) -> None:
        with self.store.locked():
            self.model = self.store.read()
            known = [entry["round"] for entry in self.model["rounds"]]
            if number not in (0, *known):
                there = ", ".join(map(str, known)) or "none yet"
                raise SmgError(f"{self.store.folder}: no round {number}; it has {there}")
            self.store.write(self.model | {"current": number})
            self.store.note(event, round=number)
            self.model = self.store.read()
            self.config = self.config if self._given else self._configured()

    def drop(self, site: str) -> int:
        """Remove what every round holds of a site's patients, and return how many exemplars there were.

        It is exemplars, sentinels, spectra, and what a method's state says is of that site.

        The journal notes it.
        """
        with self.store.locked():
            self.model = self.store.read()
            rounds = [entry["round"] for entry in self.model["rounds"] if entry["site"] == site]
            if not rounds:
                raise SmgError(
                    f"{self.store.folder}: site {site} was never learned; it has {', '.join(self.sites) or 'none'}"
                )
            count = 0
            for number in rounds:
                count += len(unpack(site, self.store.read_tensors(number, "exemplars")))
                self.store.replace_tensors(number, "exemplars", {})
                for name in ("sentinels", "spectra"):
                    if f"{name}.safetensors" in self.store.read_round(number)["files"]:
                        self.store.replace_tensors(number, name, {})
            self._drop_state(site)
            self.store.note("dropped exemplars", site=site, subjects=count)
            return count

    def _drop_state(self, site: str) -> None:
        """Remove what the states of all rounds hold of a site's patients: a later round's may hold it too."""
        for number in [entry["round"] for entry in self.model["rounds"]]:
            record = self.store.read_round(number)
            if "state.safetensors" in record["files"]:
                state = self.store.read_tensors(number, "state")
                left = {name: tensor for name, tensor in state.items() if not name.startswith(f"{site}/")}
                if len(left) < len(state) or "replaced" in record:  # or a process died while it did so
                    self.store.replace_tensors(number, "state", left)

    def _alone(self) -> AbstractContextManager[None]:
        """The lock, which in a job of several processes the first one holds for all."""
        return self.store.locked() if first_process() else nullcontext()


def _named(method: str) -> str:
    """Return the name that a method is registered by, without its file."""
    return spelled(method)[0].rpartition(":")[2]


def _changed(before: BaseModel, now: BaseModel) -> str:
    """`width 8, not 4`"""
    old, new = before.model_dump(), now.model_dump()
    return ", ".join(f"{key} {old[key]}, not {new[key]}" for key in old if old[key] != new[key])


def scan_hashes(scan: Prepared) -> tuple[str, str]:
    """Return hashes that re-identify a scan, as it is stored or turned, without naming the patient."""
    return scan.content[:16], scan.turned[:16]
