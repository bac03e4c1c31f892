"""Merge at the end of a round: average its weights with the weights that closed the previous round.

    Θ ← w Θ + (1 - w) Θ*                                             by share
    Θ_i ← (w f_i Θ_i + (1 - w) b_i Θ*_i) / (w f_i + (1 - w) b_i)     by Fisher

f is the Fisher importance of each weight for the incoming site at Θ. b is the sum of the importances of all earlier
rounds. Both are divided by their means, so w is the share of a weight that matters equally to both.
The second form is the minimum of the sum of the two quadratics that have these curvatures and minima (Matena and
Raffel, 2022). Running statistics of batch norm have no importance and are merged by share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.gradients.oracle import Gradient
from smg.methods.ewc import fisher
from smg.prepare.batches import Iteration

KEY = "importance"
FLOOR = 1e-6  # of a mean importance of one: a weight that matters to no site is merged by share
OF_PATIENTS = "for each weight a sum over rounds of mean squared gradients, for merging; nothing of a single patient"


@dataclass(frozen=True)
class Merging:
    """How the weights of two rounds are averaged."""

    share: float  # w
    by_fisher: bool = False
    importance: Tensor | None = None  # of the rounds before, summed; None if they kept none

    def looked(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor | None:
        """Return f from one pass over the incoming site, if the merging uses it."""
        if not self.by_fisher:
            return None
        found = fisher(theta, grad, batches)
        if not found.isfinite().all():
            raise SmgError("the importances of the weights are no numbers; a lower rate may help")
        return _normalised(found)

    def shares(self, found: Tensor | None) -> float | Tensor:
        """Return the share of the new weights: one number for all, or one for each weight."""
        if found is None or self.importance is None:
            return self.share
        new = self.share * (found + FLOOR)
        old = (1 - self.share) * (_normalised(self.importance.to(found)) + FLOOR)
        return new / (new + old)

    def summed(self, found: Tensor | None) -> dict[str, Tensor]:
        """Return the importances summed over this round and all earlier ones, for the next round's merging."""
        if found is None:
            return {}
        return {KEY: found if self.importance is None else self.importance.to(found) + found}


def merge(now: Tensor, before: Tensor, share: float | Tensor) -> Tensor:
    """Return w Θ + (1 - w) Θ*."""
    return before + share * (now - before)


def _normalised(importance: Tensor) -> Tensor:
    """Return importances with a mean of one."""
    return importance / importance.mean().clamp_min(torch.finfo(importance.dtype).tiny)
