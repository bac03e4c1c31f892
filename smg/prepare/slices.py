"""Slices drawn as a function of (seed, round, iteration).

The order of drawing is one endless sequence: the slices in a random order, then all of them in another, and so on.
Iteration t takes the places t·B to (t+1)·B of it, wherever the process was started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from smg.prepare.cache import Prepared
from smg.prepare.options import Preparation
from smg.randomness import numpy_generator
from smg.sites.formats import Array


@dataclass(frozen=True)
class Samples:
    """Slices in memory, as the network takes them."""

    images: torch.Tensor  # [B, channels, N, N] float32
    labels: torch.Tensor  # [B, N, N] uint8, class indices

    def __len__(self) -> int:
        return len(self.images)


class Slices:
    """All slices of some prepared subjects that may be drawn, one after another."""

    def __init__(self, subjects: Sequence[Prepared], options: Preparation) -> None:
        self.subjects = subjects
        self.channels = options.adjacent
        self.places = [  # (subject, slice)
            (number, index)
            for number, subject in enumerate(subjects)
            for index, foreground in enumerate(subject.foreground)
            if foreground or options.empty_slices
        ]

    def __len__(self) -> int:
        return len(self.places)

    def gather(self, indices: Sequence[int]) -> Samples:
        """Copy the slices at these indices, and nothing else, out of the memory map."""
        size = self.subjects[0].images.shape[-1]
        images = torch.empty(len(indices), self.channels, size, size)
        labels = torch.empty(len(indices), size, size, dtype=torch.uint8)
        for row, index in enumerate(indices):
            number, slice_ = self.places[index]
            subject = self.subjects[number]
            images[row] = with_neighbours(subject.images, [slice_], self.channels)[0]
            labels[row] = subject.labels[slice_]
        return Samples(images, labels)


def with_neighbours(images: torch.Tensor, slices: Sequence[int], channels: int) -> torch.Tensor:
    """[B, channels, N, N]: each slice, with its neighbours if asked for; beyond the last slice stands the last."""
    if channels == 1 and len(slices) == 1:
        return images[slices[0]][None, None]  # a view: nothing is copied
    offsets = torch.arange(channels) - channels // 2
    return images[(torch.tensor(slices)[:, None] + offsets).clamp(0, len(images) - 1)]


def draw_indices(n: int, count: int, purpose: str, seed: int, round: int, iteration: int) -> list[int]:
    """Places iteration·count ... of the endless sequence of permutations of n."""
    places = range(iteration * count, (iteration + 1) * count)
    return [endless(n, place, purpose, seed, round) for place in places]


def endless(n: int, place: int, purpose: str, seed: int, round: int) -> int:
    """What stands at this place of the endless sequence."""
    return int(_permutation(n, purpose, seed, round, place // n)[place % n])


@lru_cache(maxsize=256)
def _permutation(n: int, purpose: str, seed: int, round: int, epoch: int) -> Array:
    return numpy_generator(f"batches/{purpose}", seed, round, epoch).permutation(n)
