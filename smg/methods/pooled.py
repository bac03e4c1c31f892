"""Pooled: all sites so far, kept whole. No continual learner may do this; it is the ceiling they are compared with."""

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
