"""Fine-tuning: the incoming site alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.prepare.batches import Iteration


@register("finetune")
@dataclass(frozen=True)
class FineTune(Method):
    """g(Θ; D)"""

    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "nothing"

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        return grad(theta, batches.incoming)
