"""Joint minimisation of the incoming site's loss and the replay buffer's (Eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.prepare.batches import Iteration


@register("jm")
@dataclass(frozen=True)
class JM(Method):
    """g(Θ; D) + g(Θ; P)

    The second half of Eq. 1, over C_tr and C_te at the same Θ, repeats the first with equal weights, so it is left out.
    """

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        d, p = batches.incoming, batches.replay
        assert p is not None
        learned, replayed = grad.several([(theta, d), (theta, p)])
        return learned + replayed
