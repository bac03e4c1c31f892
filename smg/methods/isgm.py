"""ISGM: inter-site gradient matching, which is Fish (Shi et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, Opt, register
from smg.prepare.batches import Iteration


@register("isgm")
@dataclass(frozen=True)
class ISGM(Method):
    """Θ̃ = Θ after one optimiser step for each site, incoming and previous, in a fresh random order;  Θ ← Θ + ε (Θ̃ - Θ)

    Averaged over orders, with plain steps of size a:  Θ̃ - Θ ≈ -a Σ g_i + (a²/2) Σ_{i<j} ∇(g_i · g_j).
    The inner steps use the optimiser, with its state carried over. The outer step does not use the optimiser.

    epsilon: how far to go towards Θ̃.
    """

    epsilon: float = 0.5

    def later_update(self, theta: Tensor, grad: Gradient, opt: Opt, batches: Iteration) -> Tensor:
        first, *others = batches.shuffled([batches.incoming, *batches.exemplars])
        inner = opt(theta.clone(), grad(theta, first))
        for batch in others:
            inner = opt(inner, grad(inner, batch))
        return theta + self.epsilon * (inner - theta)
