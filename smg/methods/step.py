"""One iteration of a method, and what it tells of the objective, at no extra pass."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor

from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Answer, Oracle
from smg.methods.base import Method
from smg.prepare.batches import Iteration

PAIRS = {"cos_incoming_replay": ("incoming", "replay"), "cos_train_test": ("virtual train", "virtual test")}


@dataclass(frozen=True)
class Step:
    """Losses and gradient norms by batch, and the cosines the paper's objective is about, where both gradients exist.

    `shifted` names the batches whose gradient was taken at shifted parameters: for `c-meta` and `sga` that of the
    replay and of the virtual test half, so a cosine with one of them is with the shifted gradient.
    """

    losses: dict[str, float]
    norms: dict[str, float]
    cosines: dict[str, float]
    shifted: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def take_step(method: Method, oracle: Oracle, opt: Optimiser, batches: Iteration) -> Step:
    """Θ ← the method's update of it; the network's parameters move with Θ."""
    oracle.at(batches.seed, batches.round, batches.number)
    oracle.scale = opt.scale
    moved = method.update(oracle.theta, oracle, opt, batches)
    if moved is not oracle.theta:
        oracle.theta.copy_(moved)
    return _report(oracle.answers)


def _report(answers: list[Answer]) -> Step:
    told: dict[str, Answer] = {}
    for answer in answers:  # of two gradients of one batch, the one at Θ itself counts
        if answer.batch not in told or told[answer.batch].virtual:
            told[answer.batch] = answer
    pairs = {name: pair for name, pair in PAIRS.items() if set(pair) <= told.keys()}
    losses, squares, products = _fetched(
        [answer.loss for answer in told.values()],
        [torch.dot(answer.gradient, answer.gradient) for answer in told.values()],
        [torch.dot(told[a].gradient, told[b].gradient) for a, b in pairs.values()],
    )
    norms = {name: math.sqrt(square) for name, square in zip(told, squares, strict=True)}
    lengths = [norms[a] * norms[b] for a, b in pairs.values()]
    return Step(
        losses=dict(zip(told, losses, strict=True)),
        norms=norms,
        cosines={name: p / n if n else 0.0 for name, p, n in zip(pairs, products, lengths, strict=True)},
        shifted=tuple(name for name, answer in told.items() if answer.virtual),
    )


def _fetched(*groups: list[Tensor]) -> list[list[float]]:
    """Scalars on the device as numbers here, all in one transfer: each would make a GPU wait."""
    numbers = iter(torch.stack([scalar for group in groups for scalar in group]).tolist())
    return [list(islice(numbers, len(group))) for group in groups]
