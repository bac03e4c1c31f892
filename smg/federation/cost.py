"""Estimate the traffic of a federated round before it starts, by running iterations of the method on zeros."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from smg.federation.messages import Ask, Sums, size_of
from smg.federation.source import Federated, Part
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.learner.config import LearnerConfig
from smg.learner.elsewhere import Rows
from smg.methods import take_step
from smg.networks import build_network
from smg.networks.loss import Loss
from smg.prepare.batches import Batch, Iteration

LOOK = 4  # iterations that are counted, since the rows' hospitals differ between them


@dataclass(frozen=True)
class Cost:
    """Mean traffic of an iteration, and the number of iterations."""

    iterations: int
    exchanges: float
    sent: float  # bytes
    received: float

    @property
    def total(self) -> float:
        """Return the bytes of the round over the incoming hospital's line."""
        return self.iterations * (self.sent + self.received)

    def hours(self, megabits: float) -> float:
        """Return the hours that the bytes take on a line of the given megabits a second."""
        return self.total * 8 / (megabits * 1e6) / 3600

    def line(self, hospitals: int, megabits: float) -> str:
        """Return the cost as a sentence."""
        size = f"{self.total / 1e9:.1f} GB" if self.total >= 1e9 else f"{self.total / 1e6:.1f} MB"
        others = "1 hospital" if hospitals == 1 else f"{hospitals} hospitals"
        time = f"{_span(self.hours(megabits))} on a line of {megabits:g} Mbit/s, beside the computing"
        return (
            f"federation: {self.iterations:,} iterations with {self.exchanges:g} exchanges each, {others}, {size} in "
            f"all; {time}"
        )


def expected(
    config: LearnerConfig, incoming: int, previous: Sequence[Rows | int], owners: Sequence[str | None]
) -> Cost:
    """Return the cost of a round from the numbers of slices of all sites and the holders of the previous sites."""
    network = build_network(config.network, config.seed)
    sent: list[int] = []
    received: list[int] = []
    method = config.recipe().method
    far = _Counting(Oracle(network), owners, lambda asks: _zeros(asks, sent, received))
    opt, exchanges = Optimiser(far.theta, config.optimiser), 0
    sites = [one if isinstance(one, Rows) else Rows(one, "") for one in previous]
    for number in range(LOOK):
        batches = Iteration(
            incoming_site=Rows(incoming, ""),  # type: ignore[arg-type]
            previous_sites=sites,
            size=config.batch,
            seed=config.seed,
            round=1,
            number=number,
            replay_size=config.replay.batch,
            earlier=len(sites),
        )
        take_step(method, far, opt, batches)
        exchanges += far.journeys
    return Cost(config.iterations, exchanges / LOOK, sum(sent) / LOOK, sum(received) / LOOK)


class _Counting(Federated):
    """A source of zero gradients that counts the traffic."""

    def _own_part(self, theta: Tensor, batch: Batch, loss: Loss | None) -> list[Part]:
        rows = [row for row in batch.rows if self._owner(row[0]) is None]
        return [(torch.zeros_like(theta), theta.new_zeros(()), len(rows))] if rows else []


def _zeros(asks: dict[str, Ask], sent: list[int], received: list[int]) -> dict[str, Future[Sums]]:
    made = {}
    for hospital, ask in asks.items():
        zeros = tuple(torch.zeros_like(ask.thetas[0]) for _ in ask.queries)
        sent.append(size_of(ask.thetas))
        received.append(size_of(zeros))
        made[hospital] = coming = Future[Sums]()
        coming.set_result(Sums(zeros, tuple(zero.new_zeros(()) for zero in zeros)))
    return made


def _span(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.1f} s"
