"""LwF: learning without forgetting (Li and Hoiem, 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.networks.loss import Outputs, with_background
from smg.prepare.batches import Iteration


@register("lwf")
@dataclass(frozen=True)
class LwF(Method):
    """g(Θ; D) + α g(Θ; D; distillation),  distillation = T² H(softmax(f(x; Θ*) / T), softmax(f(x; Θ) / T))

    Θ* is the weights that closed the last round. Both outputs are of the same augmented rows. H is the cross-entropy,
    mean over pixels. The factor T² compensates for the smaller gradient at a large T, so α means the same at every T.

    weight: α.
    temperature: T.
    """

    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "nothing"
    keeps_of_patients: ClassVar[str] = "weights of the last round, while a round is under way; nothing of a patient"

    weight: float = 1.0
    temperature: float = 2.0

    def begin_round(self, theta: Tensor, grad: Gradient, batches: Iteration) -> None:
        if batches.earlier:
            self.state["theta"] = theta

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        d, distillation = batches.incoming, Distillation(self.state["theta"], self.temperature)
        learned, kept = grad.several([(theta, d), (theta, d, distillation)])
        return learned + self.weight * kept

    def end_round(self, theta: Tensor, grad: Gradient, batches: Iteration) -> None:
        self.state.clear()  # the next round's Θ* are this version's weights


@dataclass(frozen=True)
class Distillation:
    """T² H(q, p), mean over pixels, where q and p are the softened outputs of a teacher's Θ and of Θ."""

    teacher: Tensor
    temperature: float

    def __call__(self, outputs: Outputs) -> Tensor:
        log_p = (with_background(outputs.logits) / self.temperature).log_softmax(dim=1)
        q = (with_background(outputs.at(self.teacher)) / self.temperature).softmax(dim=1)
        return -(self.temperature**2) * (q * log_p).sum(dim=1).mean(dim=(1, 2))
