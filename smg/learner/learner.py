"""A model that learns one site after another, and can be asked, looked back on and taken back."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

import smg
from smg.errors import SmgError
from smg.evaluation.subjects import Evaluated, Measuring, evaluate_subjects, prepared_dice
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias, choose, size_of, unpack
from smg.learner.familiarity import Familiar
from smg.learner.history import History, line_of
from smg.learner.prediction import Answer, Keep, Prediction, Predictor
from smg.learner.processes import first_process, meet
from smg.learner.round import Diverged, Told, Training, device_of_choice
from smg.learner.store import FORMAT, Store
from smg.networks import build_network, check_network
from smg.networks.features import bottleneck_map, means_of
from smg.prepare.cache import Prepared
from smg.prepare.site import prepare_site
from smg.replay.features import foreground_features, subject_moments
from smg.sites.site import Site
from smg.sites.split import Split, split_site
from smg.sites.volume import Volume


class Learner:
    """One model in one folder.

        learner = Learner.create("model", method="sga+c", iterations=2000)
        learner.learn(Site.find("data/RUNMC"))
        learner.evaluate(Site.find("data/HK"))

    A round killed at any moment goes on where it was when `learn` is called again, and ends with the same weights.
    """

    def __init__(
        self, folder: str | Path, config: LearnerConfig | None = None, other_preparation: bool = False
    ) -> None:
        """Open a model; `config` is what its next rounds go by, the model's own if none is given.

        The network must be the model's. A preparation that differs is refused unless asked for: what was learned from
        scans prepared one way may be worth little on scans prepared another.
        """
        self.store = Store(Path(folder))
        self.model = self.store.read()
        self.store.check_classes(self.model)
        self._given, self._other_preparation = config, other_preparation
        self.config = self._configured()
        self._predictor: tuple[int, Predictor] | None = None  # with the round it is of

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

    @classmethod
    def create(cls, folder: str | Path, config: LearnerConfig | None = None, **options: Any) -> Learner:
        """A model that has learned nothing yet; options are those of `LearnerConfig`."""
        store = Store(Path(folder))
        there = store.exists
        meet()  # before any process writes what the others look for
        made = config or LearnerConfig.model_validate(options)
        with store.locked() if first_process() and not there else nullcontext():
            if there or (first_process() and store.exists):  # since another may have made it in the meantime
                raise SmgError(f"{folder}: a model is there already; give another folder, or learn with that one")
            if first_process():
                store.write({"format": FORMAT, "config": made.model_dump(mode="json"), "current": 0, "rounds": []})
                store.note("created", version=smg.__version__)
        meet()
        return cls(folder)

    # --- what it knows ------------------------------------------------------------------------------------------------

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
        if number:
            network.load_state_dict(self.store.read_tensors(number, "weights"))
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
        told = self.model["config"]
        if number:
            then = self.store.read_round(number)["config"]
            told = told | {key: then[key] for key in ("preparation", "largest_component") if key in then}
        return LearnerConfig.model_validate(told, context={"opened": True})

    def replay(self) -> dict[str, list[Prepared]]:
        """The exemplars of every site learned so far."""
        kept = {e["site"]: unpack(e["site"], self.store.read_tensors(e["round"], "exemplars")) for e in self.rounds()}
        return {site: subjects for site, subjects in kept.items() if subjects}

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        site: Site,
        split: Split | None = None,
        again: bool = False,
        leave_out: bool = False,
        tolerance: float | None = None,
        checkpoint_seconds: float = 60.0,
        told: Told | None = None,
        say: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """One round on a site; returns its record. After it the site's data may be deleted.

        A site learned before is refused unless `again`; subjects with faults are left out if `leave_out`. If the DSC of
        an earlier site's exemplars falls by more than `tolerance`, the round is kept but held: it is not made current
        until it is accepted.
        """
        with self._alone():
            if (done := self._settle(site.name)) is not None:
                return done
            prepared = prepare_site(site, self.config.preparation, leave_out)
            if site.name in self.sites and not again:
                raise SmgError(self._refusal(site.name, prepared))
            prepared = self._new_scans(site, prepared, leave_out)
            split = split or self._split(site.keep({p.subject.case for p in prepared}))
            parts = {part: [p for p in prepared if p.subject.case in cases] for part, cases in split.items()}
            number = 1 + max((entry["round"] for entry in self.model["rounds"]), default=0)
            training = self._training(number, site.name, parts)
            slice_ = training.incoming.gather([0]).images.to(training.oracle.theta.device)
            bottleneck = check_network(training.network, slice_)
            if self.config.replay.features == "foreground":
                bottleneck_map(training.network, slice_, bottleneck)
            key = self._key(number, site.name, parts)
            self._resume(training, key, say)
            try:
                training.run(lambda: self._save(training, key), checkpoint_seconds, told)
            except Diverged:
                self._give_up()
                raise
            return self._close(training, parts, tolerance)

    def _settle(self, site: str) -> dict[str, Any] | None:
        """Tidy after a process that died with its round entered and its progress not forgotten; that round's record."""
        self.model = self.store.read()
        self.config = self._configured()
        found = self.store.resume()
        entered = found is not None and found[1]["round"] in [entry["round"] for entry in self.model["rounds"]]
        meet()
        if found is None or not entered:
            return None
        record = self.store.read_round(found[1]["round"])
        if first_process():
            self.store.forget_progress()
            self.store.note("held" if record["held"] else "learned", round=record["round"], site=record["site"])
        meet()
        return record if record["site"] == site else None

    def _training(self, number: int, site: str, parts: dict[str, list[Prepared]]) -> Training:
        if not parts["train"]:
            raise SmgError(f"site {site}: no subject to train with")
        fresh = self.config.recipe().method.one_network_a_site
        moments = None
        if self.config.keep_optimiser and not fresh and self.current:
            if "optimiser.safetensors" in self.store.read_round(self.current)["files"]:  # it was kept then, too
                moments = self.store.read_tensors(self.current, "optimiser")
        replay = self.replay()
        for name, exemplars in replay.items():
            if exemplars[0].images.shape[-1] != self.config.preparation.size:
                raise SmgError(
                    f"{self.store.folder}: exemplars of {name} have {exemplars[0].images.shape[-1]} rows, so slices of "
                    f"{self.config.preparation.size} cannot be learned beside them; keep preparation.size, or give "
                    f"them up: `smg replay drop {self.store.folder} {name}`"
                )
        return Training(
            network=self.network(0 if fresh else None),
            config=self.config,
            number=number,
            site=site,
            train=parts["train"],
            validation=parts["validation"],
            replay=list(replay.values()),
            moments=moments,
        )

    def _key(self, number: int, site: str, parts: dict[str, list[Prepared]]) -> str:
        """What a checkpoint must have been made from to be gone on with."""
        data = {part: [[p.content for p in subjects]] for part, subjects in parts.items()}
        whole = [number, site, self.current, self.config.model_dump(mode="json"), data]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def _resume(self, training: Training, key: str, say: Callable[[str], None] | None) -> None:
        found = self.store.resume()
        meet()  # lest one process go on, and save, before another has looked
        if found is None:
            return
        tensors, about = found
        if about["key"] != key:
            raise SmgError(
                f"{self.store.folder}: a round on site {about['site']} is under way there, with another configuration "
                f"or other data; go on with it as it was begun, or give it up: delete {self.store.folder / 'progress'}"
            )
        training.load(tensors, about)
        if say:
            say(f"going on at iteration {about['iteration']} of {self.config.iterations}")

    def _save(self, training: Training, key: str) -> None:
        if first_process():
            tensors, about = training.state()
            of = {"site": training.site, "round": training.number, "iterations": self.config.iterations}
            self.store.checkpoint(tensors, about | of | {"key": key})

    def _give_up(self) -> None:
        """A round that diverged would only diverge again: nothing of it is kept."""
        if first_process():
            self.store.forget_progress()

    def _close(self, training: Training, parts: dict[str, list[Prepared]], tolerance: float | None) -> dict[str, Any]:
        """Choose exemplars, evaluate, and make the round a version."""
        network, number, site = training.network, training.number, training.site
        kept, candidates = self.replay(), parts["train"]
        previous = {name: self._moments(network, exemplars) for name, exemplars in kept.items()}
        moments = self._moments(network, candidates)
        features = self._features(network, candidates, moments)
        of_kept = [self._features(network, kept[name], of) for name, of in previous.items()]
        chosen, selection = choose(self.config, number, site, candidates, features, of_kept)
        earlier = self._earlier(self.network(), network)
        tested = evaluate_subjects(network, parts["test"], self.config.preparation, self.config.largest_component)
        fallen = {name: dsc["before"] - dsc["after"] for name, dsc in earlier.items()}
        record: dict[str, Any] = {
            "round": number,
            "parent": self.current,
            "site": site,
            "subjects": {part: len(subjects) for part, subjects in parts.items()},
            "parts": {part: [self._alias(site, p.subject.case) for p in subjects] for part, subjects in parts.items()},
            "scans": sorted({one for subjects in parts.values() for p in subjects for one in _hashes(p)}),
            "config": self.config.model_dump(mode="json"),
            "versions": versions(),
            "curve": training.progress.curve,
            "log": training.progress.log,
            "selection": selection,
            "familiar": self._familiar(network, site, previous | {site: moments}, parts["validation"]),
            "kept": self.kept() | {site: {"subjects": len(chosen) // 2, "bytes": size_of(chosen)}},
            "test": [self._under_alias(site, row) for row in tested],
            "earlier": earlier,
            "held": tolerance is not None and any(fall > tolerance for fall in fallen.values()),
        }
        tensors = {"weights": _cpu(network.state_dict()), "exemplars": chosen}
        if self.config.keep_optimiser:
            tensors["optimiser"] = _cpu(training.opt.state())
        if first_process():
            self.store.write_round(number, tensors, record)
            self._enter(number, site, record["held"])
            self.store.forget_progress()
            self.store.note("held" if record["held"] else "learned", round=number, site=site)
        meet()
        self.model = self.store.read()
        return self.store.read_round(number)

    def _enter(self, number: int, site: str, held: bool) -> None:
        entry = {"round": number, "parent": self.current, "site": site}
        current = self.current if held else number
        self.store.write(self.model | {"current": current, "rounds": [*self.model["rounds"], entry]})

    def _moments(self, network: nn.Module, subjects: Sequence[Prepared]) -> Tensor:
        return subject_moments(network, subjects, self.config.preparation)

    def _features(self, network: nn.Module, subjects: Sequence[Prepared], moments: Tensor) -> Tensor:
        """f(s), by which exemplars are chosen."""
        if self.config.replay.features == "foreground":
            return foreground_features(network, subjects, self.config.preparation)
        return means_of(moments)

    def _familiar(
        self, network: nn.Module, site: str, moments: dict[str, Tensor], validation: list[Prepared]
    ) -> dict[str, Any]:
        """What predictions with this network will be measured against."""
        known = Familiar.of(moments)
        apart = [known.distance(m, site) for m in self._moments(network, validation)] if validation else []
        return known.as_json([d for d in apart if d is not None])

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

    def _earlier(self, before: nn.Module, after: nn.Module) -> dict[str, dict[str, float]]:
        """What the round did to each earlier site's exemplars: their mean DSC before and after."""
        told, options = {}, (self.config.preparation, self.config.largest_component)
        for site, exemplars in self.replay().items():
            rows = [[prepared_dice(n, e, *options) for e in exemplars] for n in (before, after)]
            told[site] = {"before": sum(rows[0]) / len(rows[0]), "after": sum(rows[1]) / len(rows[1])}
        return told

    def _under_alias(self, site: str, row: Evaluated) -> dict[str, object]:
        return row.as_json() | {"subject": self._alias(site, row.case)}

    def _alias(self, site: str, case: str) -> str:
        return alias(self.config.seed, site, case)

    def _round_of(self, site: str) -> int:
        return next(int(entry["round"]) for entry in self.rounds() if entry["site"] == site)

    def _split(self, site: Site, upto: int | None = None) -> Split:
        """By a hash of seed and case; but who was in a part when a version learned the site stays in it."""
        before: dict[str, str] = {}
        for entry in self.rounds(upto):
            if entry["site"] == site.name:
                record = self.store.read_round(entry["round"])
                part_of = {name: part for part, names in record.get("parts", {}).items() for name in names}
                names = {s.case: alias(record["config"]["seed"], site.name, s.case) for s in site.subjects}
                before |= {case: part_of[name] for case, name in names.items() if name in part_of}
        return split_site(site, self.config.seed, before)

    def _refusal(self, site: str, prepared: list[Prepared]) -> str:
        """Of a site learned before; where not one scan is, it may be another hospital whose folder has that name."""
        number = self._round_of(site)
        rounds = [entry["round"] for entry in self.rounds() if entry["site"] == site]
        known = {scan for n in rounds for scan in self.store.read_round(n).get("scans", [])}
        if known and known.isdisjoint(one for scan in prepared for one in _hashes(scan)):
            return (
                f"site {site} was learned before (round {number}), and from other scans: --as NAME learns them as "
                f"another site, --again as new ones of {site}"
            )
        return f"site {site} was learned before (round {number}); --again learns it anew"

    def _new_scans(self, site: Site, prepared: list[Prepared], leave_out: bool) -> list[Prepared]:
        """Without those that were learned at another site: they would be tested on as if they were new."""
        elsewhere = [entry for entry in self.rounds() if entry["site"] != site.name]
        known = {scan: e["site"] for e in elsewhere for scan in self.store.read_round(e["round"]).get("scans", [])}
        new = []
        for scan in prepared:
            where = next((known[one] for one in _hashes(scan) if one in known), None)
            if where is None:
                new.append(scan)
            elif not leave_out:
                raise SmgError(
                    f"{scan.subject.image}: the same scan was learned at site {where}; --leave-out goes on without it, "
                    f"--as {where} if this is that site"
                )
        return new

    def _alone(self) -> AbstractContextManager[None]:
        """The lock, which in a job of several processes the first one holds for all."""
        return self.store.locked() if first_process() else nullcontext()

    # --- asking, looking back, taking back ----------------------------------------------------------------------------

    def evaluate(
        self,
        site: Site,
        part: str = "test",
        split: Split | None = None,
        leave_out: bool = False,
        number: int | None = None,
        told: Measuring | None = None,
    ) -> list[Evaluated]:
        """Every subject of a site's part (`all` for the whole site), measured on its own grid, by a round's network."""
        answering = self._answering(site.name, number)
        config = self.as_prepared(answering)
        prepared = prepare_site(site, config.preparation, leave_out)
        if part != "all":
            if split is None:
                prepared = self._new_scans(site, prepared, leave_out)  # the parts they were in are another site's
                split = self._split(site.keep({p.subject.case for p in prepared}), number)
            prepared = [p for p in prepared if p.subject.case in split[part]]
        return evaluate_subjects(self.network(answering), prepared, config.preparation, config.largest_component, told)

    def predict(self, scan: Volume) -> Prediction:
        """The mask of a scan, on the scan's own grid, and how far the scan is from each site learned."""
        return self.predictor().predict(scan)

    def predict_all(self, scans: Iterable[Path], keep: Keep | None = None) -> Iterator[Answer]:
        """(file, prediction) or (file, error) of each scan, in order, several at a time.

        `keep(file, prediction)`, called in a thread, is the place to write a mask.
        """
        return self.predictor().predict_all(scans, keep)

    def predictor(self) -> Predictor:
        """The current network with what it knows of its sites, read once."""
        if self._predictor is None or self._predictor[0] != self.current:
            familiar = Familiar.read([self._told_of(entry) for entry in self.rounds()])
            self._predictor = self.current, Predictor(self.network(), self.as_prepared(self.current), familiar)
        return self._predictor[1]

    def _told_of(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A round's record; where an earlier one is damaged, its entry: predictions do without the rest."""
        try:
            return self.store.read_round(entry["round"])
        except SmgError:
            return entry

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
        """Remove a site's exemplars from every round that holds them, note it in the journal; how many there were."""
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
            self.store.note("dropped exemplars", site=site, subjects=count)
            return count


def versions() -> dict[str, str | int]:
    """Of what made a result; with other threads, or on a processor with other vectors, sums are rounded otherwise."""
    made = {"smg": smg.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return {**made, "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}


def _changed(before: BaseModel, now: BaseModel) -> str:
    """`width 8, not 4`"""
    old, new = before.model_dump(), now.model_dump()
    return ", ".join(f"{key} {old[key]}, not {new[key]}" for key in old if old[key] != new[key])


def _hashes(scan: Prepared) -> tuple[str, str]:
    """By which a scan is known again, as it is stored or turned (smg.sites.check), and nobody found out."""
    return scan.content[:16], scan.turned[:16]


def _cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone().cpu() for name, t in tensors.items()}
