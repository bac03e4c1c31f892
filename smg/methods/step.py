"""Take one iteration of a method, and measure its losses, norms and cosines without an extra pass."""

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
    """Losses and gradient norms by batch, and the cosines in the paper's objective, where both gradients exist.

    `shifted` names the batches whose gradient was taken at shifted parameters. For `c-meta` and `sga` these are the
    replay and the virtual test half, so a cosine with one of them uses the shifted gradient.
    """

    losses: dict[str, float]
    norms: dict[str, float]
    cosines: dict[str, float]
    shifted: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def take_step(method: Method, oracle: GradientSource, opt: Optimiser, batches: Iteration) -> Step:
    """Update Θ, and with it the network's parameters, by one iteration of the method; return the report.

    A FloatingPointError names the first value that is NaN or infinite: a loss, a gradient or a Hessian product, at Θ or
    at shifted parameters, the direction for the optimiser, or Θ itself.
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
    """Copy tensors of a method's state that share memory with Θ, so that they do not change with Θ."""
    for name, tensor in method.state.items():
        if not isinstance(tensor, Tensor):
            raise SmgError(f"method {method.name}: state {name!r} is {tensor!r}; state is tensors by name")
        if tensor.untyped_storage().data_ptr() == theta.untyped_storage().data_ptr():
            method.state[name] = tensor.detach().clone()


def _require_vector(method: Method, what: str, given: object, theta: Tensor) -> None:
    """Raise an error if a method returns anything but a vector like Θ."""
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
    low, high = oracle.theta.aminmax()  # both propagate NaN and, unlike a norm, do not overflow
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
    """Raise an error for the first value, in order of computation, that is NaN or infinite: it is the cause."""
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
    """Return scalars on the device as numbers, in one transfer, since each transfer synchronises a GPU."""
    numbers = iter(torch.stack([scalar for group in groups for scalar in group]).tolist())
    return [list(islice(numbers, len(group))) for group in groups]
