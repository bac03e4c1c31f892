"""A hospital's answering side: it receives seed, round, iteration, rows and places, and returns gradients.

The installed smg computes the answers. A question names rows and a Θ. The hospital's own model folder determines how
rows are read, augmented, passed through the network and scored. No code is sent.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import smg
from smg.errors import SmgError
from smg.federation.desk import Desk, Handler
from smg.federation.limits import Audit, Gate, Limits
from smg.federation.messages import Ask, Holding, Message, Query, Sums, Terms
from smg.federation.privacy import Noise
from smg.federation.secure_sums import Masks
from smg.federation.transport import Refused
from smg.gradients.oracle import Oracle
from smg.methods.der import distance
from smg.networks.loss import Loss
from smg.networks.network_config import NetworkConfig
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch, Iteration
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import Slices
from smg.prepare.windows import Sides

LOSSES: dict[str, Loss] = {"distance": distance}  # besides the segmentation loss, for methods with stored outputs


@dataclass
class Hospital:
    """Answer questions about the slices of one site.

    `handlers` adds further kinds of questions.
    """

    site: str
    slices: Slices
    oracle: Oracle
    terms: Terms
    augmentation: Augmentation = field(default_factory=Augmentation)
    window: Sides | None = None
    exemplars: str = ""  # hash of what is stored
    limits: Limits = field(default_factory=Limits)
    audit: Audit = field(default_factory=Audit)
    noise: Noise | None = None
    masks: Masks | None = None  # of secure sums
    handlers: dict[str, Handler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._gate = Gate(self.site, self.limits, self.audit)
        self._masked: tuple[bytes, Message] | None = None  # the last question under masks, and its answer
        self._now: Iteration | None = None  # a row that two questions of one iteration need is read once
        own: dict[str, Handler] = {"greeting": self.greet, "gradients": self.gradients}
        self._desk = Desk(self.site, self._gate, self.audit, own | self.handlers)

    def __call__(self, caller: str, question: bytes) -> bytes:
        """Return the answer to a question, or a refusal with its reason."""
        return self._desk(caller, question)

    def greet(self, message: Message) -> Message:
        """Return what this hospital holds; refuse if the two sides would compute differently."""
        asked = Terms(**message.facts["terms"])
        if differing := self.terms.differences(asked):
            here, there = vars(self.terms), vars(asked)
            what = ", ".join(f"{name} {there[name]}, here {here[name]}" for name in differing)
            raise Refused(f"hospital {self.site}: its settings differ from the incoming ones ({what}); make them equal")
        key = self.masks.public if self.masks else ""
        return Holding(self.site, len(self.slices), self.exemplars, self.terms, self.limits.least_rows, key).message()

    def gradients(self, message: Message) -> Message:
        """Return the gradient and loss of each query, summed over its rows."""
        ask = Ask.of(message)
        return self.sums(ask).message() if ask.exchange is None else self._under_masks(ask)

    def _under_masks(self, ask: Ask) -> Message:
        """Return the sums under masks; a repeated question gets the same answer, and a different one is refused."""
        assert ask.exchange is not None
        question = ask.message().digest()
        if self._masked and self._masked[0] == question:
            return self._masked[1]
        if self.masks is None:
            raise Refused(f"hospital {self.site}: gives no secure sums; start it with a newer smg")
        sums = self.sums(ask)
        self.masks.use(ask.exchange)
        pairs = zip(sums.gradients, sums.losses, strict=True)
        whole = [torch.cat([gradient, loss[None]]) for gradient, loss in pairs]
        hidden = [self.masks.masked(one, ask.exchange, number) for number, one in enumerate(whole)]
        self._masked = question, Sums(tuple(hidden), ()).message()
        return self._masked[1]

    def sums(self, ask: Ask) -> Sums:
        """Return the row-summed gradients and losses; under masks, a query without rows is answered by zeros."""
        masked = ask.exchange is not None
        self._gate.check_rows(tuple(one for one in ask.queries if one.rows) if masked else ask.queries)
        self._check(ask)
        iteration = self._iteration(ask)
        self.oracle.at(*ask.place, report=False)
        sums = [self._sum(ask.thetas[query.theta], query, iteration) for query in ask.queries]
        return Sums(tuple(gradient for gradient, _ in sums), tuple(loss for _, loss in sums))

    def _sum(self, theta: Tensor, query: Query, iteration: Iteration) -> tuple[Tensor, Tensor]:
        batch = Batch("asked", tuple((0, index, place) for index, place in query.rows), iteration)
        loss = LOSSES[query.loss] if query.loss else None
        theta = theta.to(self.oracle.theta.device)
        if not query.rows:
            return torch.zeros_like(theta), theta.new_zeros(())
        if self.noise is not None:
            return self.noise.summed(self.oracle, theta, batch, loss)
        return summed(self.oracle, theta, batch, loss)

    def _iteration(self, ask: Ask) -> Iteration:
        seed, round_, number = ask.place
        augmentation = self.augmentation if ask.augmented else Augmentation()
        last = self._now
        if last is None or (last.seed, last.round, last.number, last.augmentation) != (*ask.place, augmentation):
            last = Iteration(
                incoming_site=self.slices,
                previous_sites=(),
                size=1,  # the asking hospital draws the rows
                seed=seed,
                round=round_,
                number=number,
                augmentation=augmentation,
                window=self.window,
            )
        self._now = last
        return last

    def _check(self, ask: Ask) -> None:
        length, here = self.oracle.theta.numel(), len(self.slices)
        for query in ask.queries:
            if not 0 <= query.theta < len(ask.thetas) or any(not 0 <= index < here for index, _ in query.rows):
                raise Refused(f"hospital {self.site}: was asked for a row that it does not have; greet it again")
            if query.loss and query.loss not in LOSSES:
                raise Refused(
                    f"hospital {self.site}: does not know the loss {query.loss!r} of that method; it answers for the "
                    f"segmentation loss and {', '.join(LOSSES)}"
                )
        if any(theta.shape != (length,) for theta in ask.thetas):
            raise Refused(f"hospital {self.site}: its network has {length} weights; send as many")


def summed(oracle: Oracle, theta: Tensor, batch: Batch, loss: Loss | None = None) -> tuple[Tensor, Tensor]:
    """Return gradient and loss summed over a batch's rows, by an oracle that keeps its last answer."""
    oracle.at(*oracle.place, report=True)
    gradient = oracle(theta, batch, loss)
    value = oracle.answers[-1].loss
    oracle.answers.clear()
    return gradient * len(batch), value.detach() * len(batch)


def terms_of(
    network: NetworkConfig, preparation: Preparation, augmentation: Augmentation, loss: str, seed: int, precision: str
) -> Terms:
    """Return the terms that must be equal at all hospitals."""
    return Terms(
        smg=smg.__version__,
        torch=str(torch.__version__).partition("+")[0],
        network=_hash(network.model_dump(mode="json")),
        preparation=_hash(preparation.model_dump(mode="json")),
        augmentation=_hash(augmentation.model_dump(mode="json")),
        loss=loss,
        seed=seed,
        precision=precision,
    )


def refuse_coupled_rows(network: nn.Module) -> None:
    """Refuse a network in which a row's output depends on the other rows of its batch, or on a common random draw."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise SmgError(
                f"network: {name or 'it'} is a batch norm, which mixes rows of different hospitals; use "
                "network.norm=instance for a federation"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise SmgError(
                f"network: {name or 'it'} drops activations by a draw for the whole batch; use network.dropout=0 for "
                "a federation"
            )


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
