"""Θ: all trainable parameters of a network as one contiguous vector; the parameters are views of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def flatten(network: nn.Module) -> Tensor:
    """Move the network's trainable parameters into one vector and return it; the parameters become views of it."""
    named = trainable(network)
    theta = torch.cat([p.detach().reshape(-1) for p in named.values()])
    for name, piece in pieces(named, theta).items():
        named[name].data = piece
    return theta


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that form Θ, by name, in the order of Θ."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def pieces(named: Mapping[str, Tensor], theta: Tensor) -> dict[str, Tensor]:
    """Return views of a vector like Θ in the shapes of the parameters, by name."""
    cut = torch.split(theta, [p.numel() for p in named.values()])
    return {name: piece.view(named[name].shape) for name, piece in zip(named, cut, strict=True)}
