"""Compute gradients of batches whose rows are at several hospitals: each hospital answers for its own rows.

    g(Θ; B) = Σ_k (|B_k| / |B|) g(Θ; B_k),  B_k the rows of hospital k

which is exact, since the loss is a mean over rows. The sum is taken in a fixed order: this hospital first, then the
others in the order of their rounds, so that the sum does not depend on the order of the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.federation.hospital import LOSSES, refuse_coupled_rows, summed
from smg.federation.messages import Ask, Query, Sums
from smg.federation.secure_sums import opened
from smg.gradients.oracle import Answer, Asked, Oracle, Scale, Unanswered
from smg.networks.loss import Loss, name_of
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch

Part = tuple[Tensor, Tensor, int]  # a hospital's gradient and loss, summed over its rows, and the number of rows


@dataclass
class Federated:
    """A gradient source that combines this hospital's oracle with the answers of others.

    owners: the hospital that holds the k-th previous site's rows; None for this hospital.
    """

    own: Oracle
    owners: Sequence[str | None]
    ask: Callable[[dict[str, Ask]], dict[str, Future[Sums]]]
    dropped: Callable[[str, int], bool] = lambda _hospital, _iteration: False  # whose rows an iteration leaves out
    secure: bool = False  # sum under masks (smg.federation.secure_sums)
    answers: list[Answer] = field(default_factory=list)
    products: list[tuple[str, Tensor]] = field(default_factory=list)
    journeys: int = 0  # exchanges in this iteration
    theta: Tensor = field(init=False)  # Θ itself, of this hospital's network

    def __post_init__(self) -> None:
        refuse_coupled_rows(self.own.network)
        self.theta, self._reports = self.own.theta, True
        self._exchange = -1
        self._scale: Scale | None = None
        self._gone: set[str] = set()

    def at(self, *place: int, scale: Scale | None = None, report: bool = True) -> None:
        self.own.at(*place, report=False)
        self._scale = scale
        self.answers, self.products, self._reports, self.journeys = [], [], report, 0
        self._gone = {owner for owner in self.owners if owner and self.dropped(owner, place[-1])}

    def __call__(self, theta: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        return self.several([(theta, batch, loss)])[0]

    def several(self, asked: Sequence[Asked]) -> list[Tensor]:
        whole = [(one[0], one[1], one[2] if len(one) == 3 else None) for one in asked]
        asks, of_query = self._asks(whole)
        futures = self.ask(asks) if asks else {}
        self.journeys += bool(asks)
        parts: list[list[Part]] = [self._own_part(*one) for one in whole]
        if self.secure:
            self._add_hidden(whole, parts, futures, of_query)
            return [self._total(*one, part) for one, part in zip(whole, parts, strict=True)]
        for hospital in dict.fromkeys(owner for owner in self.owners if owner in futures):
            assert hospital is not None
            sums = futures[hospital].result()
            for number, gradient, loss in zip(of_query[hospital], sums.gradients, sums.losses, strict=True):
                count = sum(self._owner(row[0]) == hospital for row in whole[number][1].rows)
                parts[number].append((gradient.to(self.theta), loss.to(self.theta), count))
        return [self._total(*one, part) for one, part in zip(whole, parts, strict=True)]

    def _add_hidden(
        self,
        whole: Sequence[tuple[Tensor, Batch, Loss | None]],
        parts: list[list[Part]],
        futures: dict[str, Future[Sums]],
        of_query: dict[str, list[int]],
    ) -> None:
        """Add to each part the sum over all other hospitals; their single contributions are masked."""
        sums = {hospital: future.result() for hospital, future in futures.items()}
        for place, number in enumerate(next(iter(of_query.values()), [])):
            total = opened([one.gradients[place] for one in sums.values()], self.theta)
            count = sum(self._owner(row[0]) is not None for row in whole[number][1].rows)
            parts[number].append((total[:-1], total[-1], count))

    def linear(
        self, theta: Tensor, batch: Batch, loss: Loss | None = None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        raise SmgError(
            "products with the Hessian are not asked of other hospitals: each would be another journey with a vector "
            "of directions; use sga, which needs gradients alone, in place of sga-direct"
        )

    def preconditioned(self, gradient: Tensor) -> Tensor:
        return self.own.preconditioned(gradient) if self._scale is None else self._scale(gradient)

    def _owner(self, source: int) -> str | None:
        return self.owners[source - 1] if source else None

    def _asks(self, asked: Sequence[tuple[Tensor, Batch, Loss | None]]) -> tuple[dict[str, Ask], dict[str, list[int]]]:
        """Return the question for each hospital, with each Θ once, and the indices of the original queries."""
        thetas: dict[str, list[Tensor]] = {}
        queries: dict[str, list[Query]] = {}
        numbers: dict[str, list[int]] = {}
        for number, (theta, batch, loss) in enumerate(asked):
            rows: dict[str, list[tuple[int, int]]] = {}
            for source, index, place in batch.rows:
                owner = self._owner(source)
                if owner is not None and owner not in self._gone:
                    rows.setdefault(owner, []).append((index, place))
            if self.secure and rows:  # every hospital answers every query, so that masks cancel
                rows = {owner: rows.get(owner, []) for owner in dict.fromkeys(self.owners) if owner is not None}
            for owner, own in rows.items():
                known = thetas.setdefault(owner, [])
                at = next((n for n, one in enumerate(known) if one is theta), None)
                if at is None:
                    known.append(theta)
                    at = len(known) - 1
                queries.setdefault(owner, []).append(Query(at, tuple(own), _named(loss)))
                numbers.setdefault(owner, []).append(number)
        if not queries:
            return {}, {}
        iteration = asked[0][1].iteration
        here, augmented = (iteration.seed, iteration.round, iteration.number), _augments(iteration.augmentation)
        self._exchange += self.secure
        exchange = self._exchange if self.secure else None
        return {
            owner: Ask(here, augmented, tuple(thetas[owner]), tuple(queries[owner]), exchange) for owner in queries
        }, numbers

    def _own_part(self, theta: Tensor, batch: Batch, loss: Loss | None) -> list[Part]:
        rows = tuple(row for row in batch.rows if self._owner(row[0]) is None)
        if not rows:
            return []
        if len(rows) == len(batch.rows):  # exactly the result without a federation
            self.own.at(*self.own.place, report=True)
            gradient = self.own(theta, batch, loss)
            value = self.own.answers[-1].loss
            self.own.answers.clear()
            return [(gradient, value.detach(), 1)]
        mine = Batch(batch.name, rows, batch.iteration)
        gradient, value = summed(self.own, theta, mine, loss)
        return [(gradient, value, len(rows))]

    def _total(self, theta: Tensor, batch: Batch, loss: Loss | None, parts: Sequence[Part]) -> Tensor:
        """Return the mean over all answered rows, and keep it for the step's report."""
        count = sum(number for _, _, number in parts)
        if not count:
            if {owner for owner in self.owners if owner is not None} <= self._gone:
                raise Unanswered(
                    "no other hospital is there any more; the round is saved, and the same command goes on"
                )
            parts = [(torch.zeros_like(theta), theta.new_zeros(()), 1)]  # all rows are at an unavailable hospital
            count = 1
        gradient, value, _ = parts[0]
        for more, loss_there, _ in parts[1:]:
            gradient, value = gradient + more, value + loss_there
        gradient, value = gradient / count, value / count
        if self._reports:
            label = batch.name if loss is None else f"{batch.name} ({name_of(loss)})"
            self.answers.append(Answer(label, theta is not self.theta, value, gradient))
        return gradient


def _named(loss: Loss | None) -> str:
    """Return the name of a loss in questions to a hospital."""
    if loss is None:
        return ""
    for name, known in LOSSES.items():
        if loss is known:
            return name
    raise SmgError(
        f"loss {name_of(loss)}: no hospital knows it by name, so it cannot be asked of others; they answer for the "
        f"segmentation loss and {', '.join(LOSSES)}"
    )


def _augments(augmentation: Augmentation) -> bool:
    return augmentation != Augmentation()
