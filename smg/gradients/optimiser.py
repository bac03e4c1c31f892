"""opt(Θ, g): one step of the outer optimiser, on the flat vector."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn


class OptimiserConfig(BaseModel):
    """Adam as in the paper; decoupled weight decay and a schedule are options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(5e-4, gt=0, description="learning rate")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay (AdamW's)")
    schedule: Literal["constant", "cosine", "poly"] = Field(
        "constant", description="how the rate falls over a round: not, to zero as a cosine, or as (1 - t/T)^0.9"
    )

    def rate_at(self, iteration: int, iterations: int) -> float:
        """Return the learning rate, a function of the iteration alone, so that it needs no state."""
        left = 1 - iteration / iterations
        share = {"constant": 1.0, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "poly": left**0.9}[self.schedule]
        return self.rate * share


class Optimiser:
    """Adam over one flat vector: `opt(theta, g)` updates theta in place and returns it.

    Each call may pass a different vector (a copy of Θ, in a method's inner loop); the moments are carried over.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, theta: Tensor, config: OptimiserConfig | None = None) -> None:
        self.config = config or OptimiserConfig()
        self._point = nn.Parameter(theta)
        self._steps = 0  # Adam's own count may be on a GPU, and reading it would synchronise
        self._adam = torch.optim.AdamW(
            [self._point],
            lr=self.config.rate,
            betas=self.BETAS,
            eps=self.EPSILON,
            weight_decay=self.config.weight_decay,
            fused=True,
        )

    def __call__(self, theta: Tensor, gradient: Tensor) -> Tensor:
        self._point.data, self._point.grad = theta, gradient
        self._adam.step()
        self._steps += 1
        self._point.grad = None
        return theta

    def at(self, iteration: int, iterations: int) -> None:
        """Set the learning rate of an iteration."""
        self._adam.param_groups[0]["lr"] = self.config.rate_at(iteration, iterations)

    def scale(self, gradient: Tensor) -> Tensor:
        """Return g / (√v̂ + ε), where v̂ is Adam's second-moment estimate after an update with g.

        With g in the estimate the step is bounded, and defined from the first iteration on. The stored moments do not
        change.
        """
        beta = self.BETAS[1]
        state, steps = self._adam.state[self._point], self._steps + 1
        v = gradient.square() * (1 - beta)
        if state:
            v += beta * state["exp_avg_sq"]
        return gradient / ((v / (1 - beta**steps)).sqrt_() + self.EPSILON)

    def state(self) -> dict[str, Tensor]:
        """Return the moments and the number of steps, for a checkpoint."""
        return {name: value.clone() for name, value in self._adam.state[self._point].items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Resume from a stored state."""
        # Adam keeps its count of steps on the CPU unless it is fused on a GPU; torch sorts that out on the first step.
        self._adam.state[self._point] = {name: value.clone().to(self._point.device) for name, value in state.items()}
        self._steps = int(state["step"]) if state else 0
