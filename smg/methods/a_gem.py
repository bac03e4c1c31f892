"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.prepare.batches import Iteration


@register("a-gem")
@dataclass(frozen=True)
class AGEM(Method):
    """g - min(0, g · p) / (p · p) p,  g = g(Θ; D), p = g(Θ; P)

    If the incoming gradient would increase the loss of the replay batch, the component that does is removed.
    """

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        assert batches.replay is not None
        g, p = grad.several([(theta, batches.incoming), (theta, batches.replay)])
        harm = torch.dot(g, p).clamp(max=0)
        return g - harm / torch.dot(p, p).clamp_min(torch.finfo(p.dtype).tiny) * p
