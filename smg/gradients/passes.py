"""One forward pass of some rows, from which the gradients of their losses are taken: by autograd, or written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smg.gradients.unet_pass import Tape, UNetPass

Leaves = dict[str, Tensor]  # the parameters of a pass by name, in the order of Θ


@dataclass
class Pass:
    """A forward pass of autograd, with a value of each loss for each row."""

    leaves: Leaves
    losses: list[Tensor]

    def gradients(self, of: Tensor, groups: Sequence[int], again: bool = False) -> list[Tensor]:
        """Return the gradients of a sum of losses, one for each group of consecutive rows of these lengths.

        `again` keeps what another call needs.
        """
        if len(groups) > 1:
            raise ValueError("autograd gives the gradient of all rows together")
        return [flat_gradient(of, self.leaves, retain_graph=again)]


@dataclass
class WrittenPass(Pass):
    """A forward pass that is written out; its losses are functions of the logits alone."""

    by: UNetPass
    tape: Tape
    logits: Tensor

    def gradients(self, of: Tensor, groups: Sequence[int], again: bool = False) -> list[Tensor]:
        (at_logits,) = torch.autograd.grad(of, self.logits, retain_graph=again, materialize_grads=True)
        return self.by.backward(self.leaves, self.tape.copy() if again else self.tape, at_logits, groups)


def flat_gradient(
    of: Tensor,
    leaves: Leaves,
    along: Tensor | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Tensor:
    """Return the gradient with respect to the leaves, as one flat vector.

    There is one leaf for each parameter. Differentiating with respect to Θ through its pieces would add nodes for the
    views and the split to every graph, which takes a millisecond a pass.
    """
    parameters = tuple(leaves.values())
    parts = torch.autograd.grad(of, parameters, along, retain_graph, create_graph, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])
