"""SGA, optimised by Dual-Meta: the paper's method (Eq. 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Meta, register
from smg.prepare.batches import Batch, Iteration


@register("sga")
@dataclass(frozen=True)
class SGA(Meta):
    """g(Θ; D) + g(Θ - γ g(Θ; D); P)  +  g(Θ; C_tr) + g(Θ - β g(Θ; C_tr); C_te),  C = D ∪ P in random halves

    The first pair aligns the incoming site with the replay buffer, the second pair aligns random halves.
    """

    gamma: float = 5e-4
    beta: float = 5e-4

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        (d, p), (c_tr, c_te) = pairs_to_align(batches)
        orientational, arbitrary = self.aligned(theta, grad, (d, p, self.gamma), (c_tr, c_te, self.beta))
        return orientational + arbitrary


def pairs_to_align(batches: Iteration) -> tuple[tuple[Batch, Batch], tuple[Batch, Batch]]:
    """Return the two pairs of batches that SGA aligns: D with P, and random halves of D ∪ P."""
    d, p = batches.incoming, batches.replay
    assert p is not None
    return (d, p), batches.split(d, p)
