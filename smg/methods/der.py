"""DER++: dark experience replay (Buzzega et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.networks.loss import Outputs
from smg.prepare.batches import Iteration


@register("der++")
@dataclass(frozen=True)
class DER(Method):
    """g(Θ; D) + α g(Θ; P; ‖f(x; Θ) - z(x)‖²) + β g(Θ; P')

    z are the network's outputs, before softmax, at the time when the exemplar was chosen. They are stored with its
    slices in half precision. The augmentation moves them as it moves the pixels, so both sides of the difference are of
    the same image. P and P' are two draws. The square is the mean over classes and pixels, as in the published code.

    alpha: weight of the stored outputs.
    beta: weight of the stored labels.
    """

    stores_outputs: ClassVar[bool] = True

    alpha: float = 0.5
    beta: float = 1.0

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        d, p, other_p = batches.incoming, batches.replay, batches.second_replay
        assert p is not None
        assert other_p is not None
        learned, as_before, replayed = grad.several([(theta, d), (theta, p, distance), (theta, other_p)])
        return learned + self.alpha * as_before + self.beta * replayed


def distance(outputs: Outputs) -> Tensor:
    """Return ‖f(x) - z(x)‖², mean over classes and pixels."""
    return (outputs.logits - outputs.stored).square().mean(dim=(1, 2, 3))
