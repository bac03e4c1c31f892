"""Small networks and slices in memory, for the tests of mathematics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from smg.gradients.oracle import Oracle
from smg.methods import Method
from smg.networks.loss import Loss
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch, Iteration
from smg.prepare.cache import Prepared
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import Slices
from smg.sites.site import Subject

OPTIONS = Preparation(size=16)


def subject(seed: int, slices: int = 5, size: int = 16, site: str = "HK") -> Prepared:
    """A disc of its own brightness and place in noise."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    centre, radius = rng.uniform(0.35, 0.65, 2) * size, rng.uniform(0.2, 0.35) * size
    disc = ((yy - centre[0]) ** 2 + (xx - centre[1]) ** 2 < radius**2).astype(np.uint8)
    labels = np.repeat(disc[None], slices, axis=0)
    images = (rng.normal(size=(slices, size, size)) + rng.uniform(0.5, 2) * labels).astype(np.float32)
    images = (images - images.mean()) / images.std()
    grid = Grid((slices, size, size), np.eye(4), size)
    about = Subject(site, f"Case{seed:02d}", (Path("i"),), Path("m"))
    outputs = torch.from_numpy(rng.normal(size=(slices, 2, size, size))).half()
    arrays = torch.from_numpy(images)[:, None], torch.from_numpy(labels)
    return Prepared(about, *arrays, (True,) * slices, grid, str(seed), outputs=outputs)


def slices(*seeds: int) -> Slices:
    return Slices([subject(seed) for seed in seeds], OPTIONS)


def iteration(number: int = 0, previous: int = 2, size: int = 4, seed: int = 0, **more: object) -> Iteration:
    """Batches of an incoming site and of two exemplars for each previous one."""
    sites = [slices(10 + 2 * k, 11 + 2 * k) for k in range(previous)]
    more = {"augmentation": Augmentation.preset("none")} | more
    return Iteration(slices(0, 1, 2, 3), sites, size, seed, 1, number, **more)  # type: ignore[arg-type]


def smooth_network(seed: int = 0) -> nn.Module:
    """Convolutions and softplus, in double precision: every derivative exists, so limits can be taken."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, 2, 1)
    ).double()


def remember(method: Method, ours: Oracle, theta: torch.Tensor | None = None) -> Method:
    """Take the method through the end of one round, at Θ, and the beginning of the next."""
    theta = ours.theta if theta is None else theta
    ours.at(0, 1, 0, report=False)
    method.end_round(theta.clone(), ours, iteration(previous=0))
    method.begin_round(theta.clone(), ours, iteration(earlier=1))
    return method


class Given:
    """An oracle that answers with vectors chosen by the test, by the name of the batch."""

    def __init__(self, answers: dict[str, torch.Tensor]) -> None:
        self.answers = answers

    def __call__(self, theta: torch.Tensor, batch: Batch, loss: Loss | None = None) -> torch.Tensor:
        return self.answers[batch.name]

    def several(self, asked: list[tuple[torch.Tensor, Batch]]) -> list[torch.Tensor]:
        return [self(*one) for one in asked]


def oracle(seed: int = 0) -> Oracle:
    return Oracle(smooth_network(seed))
