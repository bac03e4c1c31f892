"""C-Meta: orientational alignment alone (Gupta et al., La-MAML, 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Meta, register
from smg.prepare.batches import Iteration


@register("c-meta")
@dataclass(frozen=True)
class CMeta(Meta):
    """g(Θ; D) + g(Θ - γ g(Θ; D); P)"""

    gamma: float = 5e-4

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        d, p = batches.incoming, batches.replay
        assert p is not None
        return self.aligned(theta, grad, (d, p, self.gamma))[0]
