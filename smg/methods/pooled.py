"""Pooled: train on the whole data of all sites so far. A reference that continual learners are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.prepare.batches import Iteration


@register("pooled")
@dataclass(frozen=True)
class Pooled(Method):
    """g(Θ; B),  B drawn over every slice of every site so far"""

    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "everything"

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        return grad(theta, batches.pooled)
