"""One iteration of a method, and what it tells of the objective, at no extra pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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
    norms = {name: answer.gradient.norm() for name, answer in told.items()}
    cosines = {
        name: _cosine(told[a].gradient, told[b].gradient, norms[a] * norms[b])
        for name, (a, b) in PAIRS.items()
        if a in told and b in told
    }
    return Step(
        losses={name: float(answer.loss) for name, answer in told.items()},
        norms={name: float(norm) for name, norm in norms.items()},
        cosines={name: float(cosine) for name, cosine in cosines.items()},
        shifted=tuple(name for name, answer in told.items() if answer.virtual),
    )


def _cosine(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, torch.dot(a, b) / lengths, 0.0)
