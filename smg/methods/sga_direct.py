"""SGA's objective (Eq. 4) by double back-propagation: slow, for the ablation and as a reference in tests."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.methods.sga import pairs_to_align
from smg.prepare.batches import Batch, Iteration


@register("sga-direct")
@dataclass(frozen=True)
class SGADirect(Method):
    """∇ [ L_D + L_P - γ G_D · G_P  +  L_tr + L_te - β G_tr · G_te ]

    ∇ (G_A · G_B) = H_A G_B + H_B G_A.
    """

    gamma: float = 5e-4
    beta: float = 5e-4

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        (d, p), (c_tr, c_te) = pairs_to_align(batches)
        orientational = self.aligned(theta, grad, d, p, self.gamma)
        arbitrary = self.aligned(theta, grad, c_tr, c_te, self.beta)
        return orientational + arbitrary

    @staticmethod
    def aligned(theta: Tensor, grad: Gradient, a: Batch, b: Batch, gamma: float) -> Tensor:
        g_a, h_a = grad.linear(theta, a)
        g_b, h_b = grad.linear(theta, b)
        return g_a + g_b - gamma * (h_a(g_b) + h_b(g_a))
