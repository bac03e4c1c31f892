"""MAS: memory-aware synapses (Aljundi et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Anchored, mean_of, register
from smg.networks.loss import Outputs
from smg.prepare.batches import Iteration


@register("mas")
@dataclass(frozen=True)
class MAS(Anchored):
    """g(Θ; D) + λ Ω ⊙ (Θ - Θ*),  Ω = Σ over rounds of  mean over samples of |∂ ‖f(x; Θ_r)‖² / ∂Θ|

    f are the network's outputs before softmax, Θ_r the weights that closed round r, and a sample is one slice. Labels
    are not used.
    """

    keeps_of_patients: ClassVar[str] = (
        "weights of the last round, and for each weight a mean over all training slices of the outputs' sensitivity to "
        "it; nothing of a single patient"
    )

    def importance(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        return mean_of(grad(theta, sample, squared_length).abs() for sample in batches.each())


def squared_length(outputs: Outputs) -> Tensor:
    """Return ‖f(x)‖², summed over classes and pixels."""
    return outputs.logits.square().sum(dim=(1, 2, 3))
