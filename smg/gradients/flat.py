"""Θ: all of a network's trainable parameters as one contiguous vector, of which they are views."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def flatten(network: nn.Module) -> Tensor:
    """Move the network's trainable parameters into one vector and return it: to change the vector is to change them."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    theta = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, piece in zip(parameters, pieces(network, theta).values(), strict=True):
        parameter.data = piece
    return theta


def pieces(network: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """A vector like Θ cut into the parameters' shapes, by name: views, through which gradients flow back into it."""
    named = {name: p.shape for name, p in network.named_parameters() if p.requires_grad}
    cut = torch.split(theta, [math.prod(shape) for shape in named.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(named.items(), cut, strict=True)}
