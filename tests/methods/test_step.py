"""What is no number ends the step, wherever it arises, and is named."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import smg.gradients.oracle
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Gradient, Oracle
from smg.methods import JM, METHODS, Method, take_step
from smg.prepare.batches import Iteration
from tests.toys import iteration, remember, smooth_network

METHOD = {
    name: remember(method(), Oracle(smooth_network()))
    for name, method in METHODS.items()
    if method.__module__.startswith("smg.")
}
METHOD["sga symmetric"] = dataclasses.replace(METHOD["sga"], symmetric=True)  # type: ignore[call-arg]


@dataclass
class Spoilt(Oracle):
    """An oracle of whose answers one is not a number."""

    which: int = 0
    loss_too: bool = False

    def _agreed(self, gradient: Tensor, loss: Tensor, label: str, theta: Tensor) -> Tensor:
        if len(self.answers) == self.which:
            if self.loss_too:
                loss = loss + math.inf
            else:
                gradient = gradient.index_fill(0, torch.tensor([7]), math.nan)
        return super()._agreed(gradient, loss, label, theta)


def step(method: Method, ours: Oracle | None = None, opt: type[Optimiser] = Optimiser) -> None:
    ours = ours or Oracle(smooth_network())
    take_step(method, ours, opt(ours.theta), iteration())


@pytest.mark.parametrize("name", METHOD)
def test_a_loss_or_a_gradient_of_any_pass(name: str) -> None:
    ours = Oracle(smooth_network())
    step(METHOD[name], ours)
    for number, answer in enumerate(ours.answers):
        where = " at shifted parameters" if answer.virtual else ""
        batch = re.escape(answer.batch)
        with pytest.raises(FloatingPointError, match=f"^the gradient of the {batch} batch is nan"):
            step(METHOD[name], Spoilt(smooth_network(), which=number))
        with pytest.raises(FloatingPointError, match=f"^the loss of the {batch} batch is inf{where}$"):
            step(METHOD[name], Spoilt(smooth_network(), which=number, loss_too=True))


@pytest.mark.parametrize(
    ("name", "batch"),
    [("c-meta", "replay"), ("g-meta", "virtual test"), ("sga", "replay"), ("sga symmetric", "replay")],
)
def test_parameters_shifted_too_far(name: str, batch: str) -> None:
    far = {field.name: 1e300 for field in dataclasses.fields(METHOD[name]) if field.name in ("gamma", "beta")}
    with pytest.raises(FloatingPointError, match=f"^the loss of the {batch} batch is nan at shifted parameters$"):
        step(dataclasses.replace(METHOD[name], **far))


def test_a_hessian_product(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = smg.gradients.oracle.flat_gradient

    def spoilt(of: Tensor, leaves: dict[str, Tensor], along: Tensor | None = None, **more: bool) -> Tensor:
        made = sound(of, leaves, along, **more)
        return made if along is None else made * math.nan

    monkeypatch.setattr(smg.gradients.oracle, "flat_gradient", spoilt)
    with pytest.raises(FloatingPointError, match=r"^the Hessian product of the incoming batch is nan$"):
        step(METHOD["sga-direct"])


@dataclass(frozen=True)
class Scaled(JM):
    by: float = 1.0

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        return self.by * super().direction(theta, grad, batches)


@pytest.mark.parametrize(("by", "value"), [(math.nan, "nan"), (math.inf, "inf|nan"), (1e200, "inf")])
def test_the_direction_itself_or_what_adam_would_sum_up_of_it(by: float, value: str) -> None:
    with pytest.raises(FloatingPointError, match=f"^the direction handed to the optimiser is ({value})$"):
        step(Scaled(by))


class Jumping(Optimiser):
    def __call__(self, theta: Tensor, gradient: Tensor) -> Tensor:
        return super().__call__(theta, gradient).index_fill_(0, torch.tensor([len(theta) - 1]), math.nan)


@pytest.mark.parametrize("name", [name for name in METHOD if name != "isgm"])  # whose inner passes would tell of it
def test_the_weights_after_the_update(name: str) -> None:
    with pytest.raises(FloatingPointError, match=r"^the weight vector is nan after the update$"):
        step(METHOD[name], opt=Jumping)


def test_weights_moved_past_the_optimiser() -> None:
    with pytest.raises(FloatingPointError, match=r"^the weight vector is (nan|inf) after the update$"):
        step(METHODS["isgm"](epsilon=math.inf))  # type: ignore[call-arg]
