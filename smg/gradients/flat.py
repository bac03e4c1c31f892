"""Θ: all of a network's trainable parameters as one contiguous vector, of which they are views."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def flatten(network: nn.Module) -> Tensor:
    """Move the network's trainable parameters into one vector and return it: to change the vector is to change them."""
    named = trainable(network)
    theta = torch.cat([p.detach().reshape(-1) for p in named.values()])
    for name, piece in pieces(named, theta).items():
        named[name].data = piece
    return theta


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that Θ is made of, by name, in its order."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def pieces(named: Mapping[str, Tensor], theta: Tensor) -> dict[str, Tensor]:
    """A vector like Θ cut into the parameters' shapes, by name: views of it."""
    cut = torch.split(theta, [p.numel() for p in named.values()])
    return {name: piece.view(named[name].shape) for name, piece in zip(named, cut, strict=True)}
