"""Hospitals of this process with toy slices, and the incoming one that asks them."""

from __future__ import annotations

import torch
from torch import nn

from smg.federation.hospital import Hospital, terms_of
from smg.federation.messages import Terms
from smg.federation.roster import Roster
from smg.federation.source import Federated
from smg.federation.transport import InProcess
from smg.gradients.oracle import Oracle
from smg.networks.network_config import NetworkConfig
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Iteration
from smg.prepare.slices import Slices
from tests.toys import OPTIONS, slices, smooth_network

NAMES = ("Amber", "Birch", "Cedar")
MILD = Augmentation.preset("mild")


def toy_terms(**changed: object) -> Terms:
    terms = terms_of(NetworkConfig(), OPTIONS, MILD, "dice+ce", 0, "float32")
    return Terms(**(vars(terms) | changed))  # type: ignore[arg-type]


def kept_at(number: int) -> Slices:
    return slices(10 + 2 * number, 11 + 2 * number)


def toy_hospital(name: str, number: int, network: nn.Module | None = None, **more: object) -> Hospital:
    network = network or smooth_network(5)  # of other weights: a hospital computes at the Θ that it is sent
    return Hospital(name, kept_at(number), Oracle(network), toy_terms(), MILD, **more)  # type: ignore[arg-type]


def federated(count: int = 2, keeps: bool = False, **more: object) -> tuple[Federated, InProcess]:
    """Return the incoming hospital's gradient source, with so many others behind it."""
    names = NAMES[:count]
    way = InProcess({name: toy_hospital(name, n, **more) for n, name in enumerate(names)}, keeps=keeps)
    roster = Roster(way)
    return Federated(Oracle(smooth_network()), names, roster.ask_all), way


def central(number: int = 0, previous: int = 2, **more: object) -> Iteration:
    """Return an iteration in which every site's slices are at hand."""
    sites = [kept_at(k) for k in range(previous)]
    return Iteration(slices(0, 1, 2, 3), sites, 4, 0, 1, number, MILD, earlier=1, **more)  # type: ignore[arg-type]


class Count:
    """Slices that lie elsewhere: their number alone is known here, and they cannot be read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def elsewhere(number: int = 0, previous: int = 2, **more: object) -> Iteration:
    """Return the same iteration where only the incoming site's slices are at hand."""
    sites = [Count(len(kept_at(k))) for k in range(previous)]
    return Iteration(slices(0, 1, 2, 3), sites, 4, 0, 1, number, MILD, earlier=1, **more)  # type: ignore[arg-type]


def distance_between(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference, in units of the largest entry."""
    return float((a - b).abs().max() / b.abs().max())
