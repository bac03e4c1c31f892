"""G-Meta: arbitrary alignment alone (Li et al., MLDG, 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Meta, register
from smg.prepare.batches import Iteration


@register("g-meta")
@dataclass(frozen=True)
class GMeta(Meta):
    """g(Θ; C_tr) + g(Θ - β g(Θ; C_tr); C_te),  C = D ∪ P in random halves"""

    beta: float = 5e-4

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        d, p = batches.incoming, batches.replay
        assert p is not None
        c_tr, c_te = batches.split(d, p)
        return self.aligned(theta, grad, (c_tr, c_te, self.beta))[0]
