"""GEM: gradient episodic memory (Lopez-Paz and Ranzato, 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from smg.gradients.oracle import Gradient
from smg.methods.base import Method, register
from smg.prepare.batches import Iteration


@register("gem")
@dataclass(frozen=True)
class GEM(Method):
    """z = argmin ½ ‖z - g‖²  such that  z · g_k ≥ 0 for every previous site k,  g = g(Θ; D), g_k = g(Θ; P_k)

    margin: how far inside the constraints the solution is pushed (0.5 in the published code).
    ridge: constant added to the Gram matrix's diagonal, for a unique solution.
    """

    margin: float = 0.5
    ridge: float = 1e-3

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        g, *of_sites = grad.several([(theta, batch) for batch in (batches.incoming, *batches.exemplars)])
        memory = torch.stack(of_sites)
        exact = memory.double()
        fetched = torch.cat([(exact @ g.double())[:, None], exact @ exact.T], dim=1).cpu().numpy()  # one GPU transfer
        products, gram = fetched[:, 0], fetched[:, 1:]
        if (products >= 0).all():
            return g
        if not (np.isfinite(products).all() and np.isfinite(gram).all()):
            return g  # the step's report names the cause
        v = dual(gram + self.ridge * np.eye(len(gram)), products, self.margin)
        return g + (torch.from_numpy(v).to(memory) @ memory)


def dual(gram: np.ndarray, products: np.ndarray, margin: float) -> np.ndarray:
    """Return argmin ½ vᵀPv + (Gg)ᵀv over v ≥ margin, by non-negative least squares: P = LLᵀ, v = u + margin."""
    lower = np.linalg.cholesky(gram)
    target = -solve_triangular(lower, products + gram @ np.full(len(gram), margin), lower=True)
    return nnls(lower.T, target)[0] + margin
