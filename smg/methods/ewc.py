"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from smg.gradients.oracle import Gradient
from smg.methods.base import Anchored, mean_of, register
from smg.networks.loss import Outputs, with_background
from smg.prepare.batches import Iteration


@register("ewc")
@dataclass(frozen=True)
class EWC(Anchored):
    """g(Θ; D) + λ F ⊙ (Θ - Θ*),  F = Σ over rounds of  mean over samples of (∇ log p(y | x; Θ_r))²

    y are the site's labels, Θ_r the weights that closed round r, and a sample is one slice. The square is taken of each
    sample's gradient, not of a batch's mean gradient, in which the samples' signs cancel.
    """

    keeps_of_patients: ClassVar[str] = (
        "weights of the last round, and for each weight a mean over all training slices of squared gradients; "
        "nothing of a single patient"
    )

    def importance(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        return fisher(theta, grad, batches)


def fisher(theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
    """Return the mean over the incoming site's slices of the squared gradient of log p(y | x; Θ)."""
    return mean_of(grad(theta, sample, log_likelihood).square() for sample in batches.each())


def log_likelihood(outputs: Outputs) -> Tensor:
    """Return log p(y | x), the sum over pixels, which are independent given the image."""
    return -cross_entropy(with_background(outputs.logits), outputs.labels.long(), reduction="none").sum(dim=(1, 2))
