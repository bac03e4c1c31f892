"""One iteration of a method, and what it tells of the objective, at no extra pass."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import GradientSource
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


def take_step(method: Method, oracle: GradientSource, opt: Optimiser, batches: Iteration) -> Step:
    """Θ ← the method's update of it; the network's parameters move with Θ.

    A FloatingPointError names the first thing on the way that is no number: a loss, a gradient or a Hessian product, at
    Θ or at shifted parameters, what the optimiser was handed, or Θ itself, which need not be asked ever again.
    """
    handed: list[Tensor] = []

    def noted(theta: Tensor, gradient: Tensor) -> Tensor:
        _require_vector(method, "direction", gradient, oracle.theta)
        keep_apart(method, oracle.theta)
        handed.append(gradient)
        return opt(theta, gradient)

    oracle.at(batches.seed, batches.round, batches.number, scale=opt.scale)
    moved = method.update(oracle.theta, oracle, noted, batches)
    _require_vector(method, "update", moved, oracle.theta)
    if moved is not oracle.theta:
        keep_apart(method, oracle.theta)
        oracle.theta.copy_(moved)
    return _report(oracle, handed)


def keep_apart(method: Method, theta: Tensor) -> None:
    """Copy what a method's state holds of Θ itself, before Θ moves: what is remembered stays as it was."""
    for name, tensor in method.state.items():
        if not isinstance(tensor, Tensor):
            raise SmgError(f"method {method.name}: state {name!r} is {tensor!r}; state is tensors by name")
        if tensor.untyped_storage().data_ptr() == theta.untyped_storage().data_ptr():
            method.state[name] = tensor.detach().clone()


def _require_vector(method: Method, what: str, given: object, theta: Tensor) -> None:
    """A method of a user's own may return anything."""
    if isinstance(given, Tensor) and (given.shape, given.dtype) == (theta.shape, theta.dtype):
        return
    found = f"a {given.dtype} tensor of shape {list(given.shape)}" if isinstance(given, Tensor) else repr(given)[:80]
    raise SmgError(
        f"method {method.name}: its {what} is {found}; return a {theta.dtype} vector of {len(theta)} numbers, as theta"
    )


def _report(oracle: GradientSource, handed: list[Tensor]) -> Step:
    first: dict[str, int] = {}
    answers = oracle.answers
    for number, answer in enumerate(answers):  # of two gradients of one batch, the one at Θ itself counts
        if answer.batch not in first or answers[first[answer.batch]].virtual:
            first[answer.batch] = number
    pairs = {name: pair for name, pair in PAIRS.items() if set(pair) <= first.keys()}
    low, high = oracle.theta.aminmax()  # neither overlooks a NaN, and unlike a norm they do not overflow
    losses, norms, products, curved, directions, (spread,) = _fetched(
        [answer.loss for answer in answers],
        [_square(answer.gradient) for answer in answers],
        [torch.dot(answers[first[a]].gradient, answers[first[b]].gradient) for a, b in pairs.values()],
        [_square(product) for _, product in oracle.products],
        [_square(direction) for direction in handed],  # whose squares are also what Adam sums up
        [high - low],
    )
    norms = [math.sqrt(square) for square in norms]
    _require_numbers(oracle, losses, norms, curved, directions, spread)
    lengths = [norms[first[a]] * norms[first[b]] for a, b in pairs.values()]
    return Step(
        losses={name: losses[number] for name, number in first.items()},
        norms={name: norms[number] for name, number in first.items()},
        cosines={name: p / n if n else 0.0 for name, p, n in zip(pairs, products, lengths, strict=True)},
        shifted=tuple(name for name, number in first.items() if answers[number].virtual),
    )


def _square(vector: Tensor) -> Tensor:
    return torch.dot(vector, vector)


def _require_numbers(
    oracle: GradientSource,
    losses: list[float],
    norms: list[float],
    curved: list[float],
    directions: list[float],
    spread: float,
) -> None:
    """In the order in which they came about: the first that is no number is where it began."""
    for answer, loss, norm in zip(oracle.answers, losses, norms, strict=True):
        where = " at shifted parameters" if answer.virtual else ""
        _require(loss, f"the loss of the {answer.batch} batch", where)
        _require(norm, f"the gradient of the {answer.batch} batch", where)
    for (batch, _), square in zip(oracle.products, curved, strict=True):
        _require(square, f"the Hessian product of the {batch} batch")
    for square in directions:
        _require(square, "the direction handed to the optimiser")
    _require(spread, "the weight vector", " after the update")


def _require(value: float, what: str, where: str = "") -> None:
    if not math.isfinite(value):
        raise FloatingPointError(f"{what} is {value}{where}")


def _fetched(*groups: list[Tensor]) -> list[list[float]]:
    """Scalars on the device as numbers here, all in one transfer: each would make a GPU wait."""
    numbers = iter(torch.stack([scalar for group in groups for scalar in group]).tolist())
    return [list(islice(numbers, len(group))) for group in groups]
