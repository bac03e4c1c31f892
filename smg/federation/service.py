"""A hospital's service: it opens the hospital's own model folder and answers for the exemplars in it.

Questions about the end of a round are answered by numbers: the minimum similarity of each candidate to the exemplars,
sums of the exemplars' features, and DSC of exemplars and sentinels under pseudonyms.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

import torch
from torch import Tensor, nn

from smg.evaluation.subjects import prepared_dice
from smg.federation.desk import Desk, Handler
from smg.federation.hospital import Hospital, refuse_coupled_rows, terms_of
from smg.federation.limits import Audit, Gate, Limits
from smg.federation.local_socket import Frames, listen
from smg.federation.messages import Message, Terms
from smg.federation.privacy import Noise
from smg.federation.round_exchange import is_at_home, listing, outgoing, pseudonyms, receive
from smg.federation.secure_sums import Masks
from smg.federation.transport import NotGreeted, Refused
from smg.gradients.oracle import Oracle
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import NOWHERE, alias
from smg.learner.familiarity import summary_of
from smg.learner.learner import Learner
from smg.learner.round import this_process
from smg.learner.store import Store
from smg.networks import build_network
from smg.networks.features import means_of
from smg.prepare.cache import Prepared
from smg.prepare.slices import Slices
from smg.replay.selection import least_likeness
from smg.replay.subject_features import foreground_features, subject_moments
from smg.sites.site import Site

LEAST_SUBJECTS = 2  # smallest number of subjects in a sum of features; a sum over one would be that patient's


@dataclass
class Opened:
    """The content of the model folder that the service reads when it is greeted."""

    hospital: Hospital | None  # None where the hospital has learned nothing itself
    config: LearnerConfig
    exemplars: list[Prepared]
    sentinels: list[Prepared]

    def network(self, weights: dict[str, Tensor]) -> nn.Module:
        """Return a network with the weights that were sent."""
        network = build_network(self.config.network, self.config.seed)
        try:
            network.load_state_dict(weights)
        except RuntimeError:
            raise Refused("weights were sent that do not fit the model's network; greet the hospital again") from None
        return network


@dataclass
class Service:
    """Answer questions about the site that was learned in a model folder.

    Questions are answered one at a time.
    """

    name: str
    folder: Path  # of the model, which need not exist yet
    secret: bytes
    limits: Limits = field(default_factory=Limits)
    audit: Audit = field(default_factory=Audit)
    site: Site | None = None  # scans whose held-out part judges a round instead of sentinels

    def __post_init__(self) -> None:
        self._opened: Opened | None = None
        limits = self.limits
        self.noise = Noise(limits.clip, limits.noise, limits.delta) if limits.clip and limits.noise else None
        self._busy = threading.Lock()
        handlers: dict[str, Handler] = {
            "presence": lambda _: Message("here"),
            "versions": lambda _: Message("versions", listing(self.folder)),
            "round": self.send_round,
            "receive": self.receive,
            "holding": self.holding,
            "greeting": self.greet,
            "keys": self.keys,
            "gradients": lambda message: self._hospital().gradients(message),
            "nearest": self.nearest,
            "summary": self.summary,
            "scores": self.scores,
        }
        self._desk = Desk(self.name, Gate(self.name, self.limits, self.audit), self.audit, handlers)

    def __call__(self, caller: str, question: bytes) -> bytes:
        """Return the answer to a question, or a refusal with its reason."""
        with self._busy:
            return self._desk(caller, question)

    # --- versions -----------------------------------------------------------------------------------------------------

    def send_round(self, message: Message) -> Message:
        """Return a round that the incoming hospital lacks."""
        return outgoing(self.folder, int(message.facts["number"]), pseudonyms(self.secret))

    def receive(self, message: Message) -> Message:
        """Enter a round that another hospital learned."""
        version = Message("version", message.facts["version"], message.tensors) if "version" in message.facts else None
        receive(self.folder, message.facts["model"], version)
        self._opened = None
        return Message("received")

    # --- a round ------------------------------------------------------------------------------------------------------

    def holding(self, _message: Message) -> Message:
        """Return the site that this hospital holds."""
        rounds = Store(self.folder).read().rounds if Store(self.folder).exists else ()
        own = [entry.site for entry in rounds if is_at_home(self.folder, entry.round)]
        return Message("holding", {"site": own[-1] if own else ""})

    def greet(self, message: Message) -> Message:
        """Open the model folder and return its holding; refuse if the two sides would compute differently."""
        self._opened = self._open(int(message.facts["round"]))
        hospital = self._opened.hospital
        if hospital is None:
            raise Refused(f"hospital {self.name}: holds no site of this model; let it learn one, or leave")
        return hospital.greet(message)

    def keys(self, message: Message) -> Message:
        """Agree with the other hospitals on masks for secure sums."""
        masks = self._hospital().masks
        assert masks is not None
        masks.agree(self.name, message.facts["keys"])
        return Message("agreed")

    def nearest(self, message: Message) -> Message:
        """Return for each unit vector the minimum of -sim to this hospital's exemplars."""
        here, network = self._with_exemplars(message)
        if here.config.replay.features == "foreground":
            features = foreground_features(network, here.exemplars, here.config.preparation)
        else:
            features = means_of(subject_moments(network, here.exemplars, here.config.preparation))
        return Message("nearest", {}, {"least": least_likeness(message.tensors["unit"], features)})

    def summary(self, message: Message) -> Message:
        """Return sums of the exemplars' features, if there are enough exemplars."""
        here, network = self._with_exemplars(message)
        if len(here.exemplars) < LEAST_SUBJECTS:
            return Message("summary", {"subjects": 0})
        made = summary_of(subject_moments(network, here.exemplars, here.config.preparation))
        return Message("summary", {"subjects": made.subjects}, {"mean": made.mean, "squares": made.squares})

    def scores(self, message: Message) -> Message:
        """Return the exemplars' mean DSC and each sentinel's, with the networks before and after a round."""
        here = self._current()
        networks = [here.network(_under(f"{when}/", message)) for when in ("before", "after")]
        options = here.config.preparation, here.config.largest_component
        rename, seed = pseudonyms(self.secret), here.config.seed
        sentinels = {}
        for p in here.sentinels:
            name = p.subject.case if p.subject.image == NOWHERE else alias(seed, p.subject.site, p.subject.case)
            sentinels[rename(name)] = [prepared_dice(network, p, *options) for network in networks]
        exemplars = [sum(prepared_dice(n, p, *options) for p in here.exemplars) for n in networks]
        count = len(here.exemplars)
        means = [total / count for total in exemplars] if count else None
        return Message("scores", {"exemplars": means, "sentinels": sentinels})

    def _with_exemplars(self, message: Message) -> tuple[Opened, nn.Module]:
        here = self._current()
        if not here.exemplars:
            raise Refused(f"hospital {self.name}: keeps no exemplars; greet it again")
        return here, here.network(_under("weights/", message))

    def _current(self) -> Opened:
        if self._opened is None:
            raise NotGreeted(f"hospital {self.name}: was started again; greet it first")
        return self._opened

    def _hospital(self) -> Hospital:
        here = self._current().hospital
        if here is None:
            raise Refused(f"hospital {self.name}: holds no site of this model; let it learn one, or leave")
        return here

    def _open(self, upto: int) -> Opened:
        past = Learner(self.folder)
        if upto and upto not in past.model.numbers:
            raise Refused(f"hospital {self.name}: does not have round {upto}; bring the versions together first")
        entries = [entry for entry in past.rounds(upto) if is_at_home(self.folder, entry.round)]
        sites = dict.fromkeys(entry.site for entry in entries)
        if len(sites) > 1:
            raise Refused(f"hospital {self.name}: has learned {', '.join(sites)}; it answers for one site alone")
        config = past.config
        if not sites:
            return Opened(None, config, [], [])
        (site,) = sites
        exemplars, sentinels = past.replay().get(site, []), past.sentinels().get(site, [])
        if self.site is not None:
            sentinels = past.never_trained_on({site: self.site.called(site)})[site] or sentinels
        network = build_network(config.network, config.seed)
        refuse_coupled_rows(network)
        oracle = this_process(network, config)
        assert isinstance(oracle, Oracle)
        hospital = Hospital(
            site,
            Slices(exemplars, config.preparation),
            oracle,
            terms_of_config(config),
            config.augment,
            config.preparation.window,
            past.store.files_of(entries[-1].round)["exemplars.safetensors"][:16],
            self.limits,
            self.audit,
            self.noise,
            Masks(),
        )
        return Opened(hospital, config, exemplars, sentinels)


def terms_of_config(config: LearnerConfig) -> Terms:
    """Return the terms of a model's configuration that must be equal at all hospitals."""
    loss = json.dumps([config.loss, config.loss_options], sort_keys=True)
    return terms_of(config.network, config.preparation, config.augment, loss, config.seed, config.precision)


def answer_at(path: Path, service: Service) -> socket:
    """Answer questions that NVFLARE's process brings to a socket, each in a thread; return the socket."""
    listening = listen(path)

    def answer(frames: Frames) -> None:
        try:
            header, question = frames.receive()
            frames.send({}, service(str(header["caller"]), question))
        except (EOFError, OSError):
            pass  # the asking process is gone
        finally:
            frames.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(Frames(connection),), daemon=True).start()

    threading.Thread(target=accept, name="answering", daemon=True).start()
    return listening


def _under(prefix: str, message: Message) -> dict[str, Tensor]:
    found = {name.removeprefix(prefix): t for name, t in message.tensors.items() if name.startswith(prefix)}
    if any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in found.values()):
        raise Refused("weights were sent that are not numbers; the round has diverged")
    return found
