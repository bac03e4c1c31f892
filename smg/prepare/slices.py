"""Draw slices as a function of (seed, round, iteration).

Slices are drawn from one endless sequence: all slices in a random order, then all of them in another, and so on.
Iteration t takes places t·B to (t+1)·B of the sequence, so a restarted process draws the same slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from smg.prepare.cache import BySlice, Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.windows import Corner, Place, cut, draw_corner, tiles
from smg.randomness import numpy_generator
from smg.sites.formats import Array


@dataclass(frozen=True)
class Samples:
    """A batch of slices or windows in memory."""

    images: torch.Tensor  # [B, adjacent x channels, rows, columns] float32
    labels: torch.Tensor  # [B, rows, columns] uint8, class indices
    outputs: torch.Tensor | None = None  # [B, classes, rows, columns] float32, where all of these have them stored

    def __len__(self) -> int:
        return len(self.images)


class Slices:
    """The slices of prepared subjects that training may draw, numbered in order."""

    def __init__(self, subjects: Sequence[Prepared], options: Preparation) -> None:
        self.subjects, self.options = subjects, options
        self.places = [  # (subject, slice)
            (number, index) for number, subject in enumerate(subjects) for index in drawable(subject, options)
        ]

    def __len__(self) -> int:
        return len(self.places)

    def gather(self, indices: Sequence[int], places: Sequence[Place] | None = None, margin: int = 0) -> Samples:
        """Return copies of the slices at these indices; nothing else is read from the memory map.

        With a spacing they are windows, drawn at `places` or, without places, at the slices' centres. Each has `margin`
        more pixels of its slice on every side.
        """
        rows = [self._window(index, places[n] if places else None, margin) for n, index in enumerate(indices)]
        images, labels, outputs = zip(*rows, strict=True)
        stored = torch.stack(outputs) if all(one is not None for one in outputs) else None
        return Samples(torch.stack(images), torch.stack(labels), stored)

    def _window(
        self, index: int, place: Place | None, margin: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        number, slice_ = self.places[index]
        subject, options = self.subjects[number], self.options
        image = with_neighbours(subject.image_slices, [slice_], options.adjacent)[0]
        labels = subject.label_slices[slice_]
        outputs = None if subject.outputs is None else subject.outputs[slice_].float()
        if options.window is None:
            return image, labels, outputs
        high, wide = options.window
        if place is None:
            top, left = ((length - side) // 2 for length, side in zip(labels.shape, options.window, strict=True))
        else:
            top, left = draw_corner(labels.numpy(), options.window, options.foreground, place, options.even_classes)
        corner, size = (top - margin, left - margin), (high + 2 * margin, wide + 2 * margin)
        stored = None if outputs is None else cut(outputs, corner, size)
        zeros = options.nnunet is not None
        return cut(image, corner, size, zeros), cut(labels, corner, size, zeros), stored


def drawable(subject: Prepared, options: Preparation) -> list[int]:
    """Return the slices of a subject that training may draw: those with foreground, or all by `empty_slices`."""
    return [index for index, foreground in enumerate(subject.foreground) if foreground or options.empty_slices]


def with_neighbours(images: BySlice, slices: Sequence[int], adjacent: int) -> torch.Tensor:
    """Return slices with their neighbours, [B, adjacent x channels, rows, columns].

    `images` are [slices, channels, rows, columns]. Neighbours are in order from the lowest up. The first and last slice
    are their own missing neighbours.
    """
    if adjacent == 1 and len(slices) == 1:
        return images[slices[0]][None]  # a view: nothing is copied
    offsets = torch.arange(adjacent) - adjacent // 2
    return images[(torch.tensor(slices)[:, None] + offsets).clamp(0, len(images) - 1)].flatten(1, 2)


def passes(
    images: torch.Tensor, options: Preparation, at_once: int
) -> Iterator[tuple[list[tuple[int, Corner]], torch.Tensor]]:
    """Yield all windows of slices [slices, channels, rows, columns] in batches: (slice, corner) of each, [B, C, h, w].

    Without a spacing each slice is one window.
    """
    size, as_nnunet = options.window, options.nnunet is not None
    corners = [(0, 0)] if size is None else tiles(images.shape[-2], images.shape[-1], size, odd_behind=as_nnunet)
    where = [(number, corner) for number in range(len(images)) for corner in corners]
    for start in range(0, len(where), at_once):
        some = where[start : start + at_once]
        slices = with_neighbours(images, [number for number, _ in some], options.adjacent)
        if size is not None:
            cuts = [cut(one, corner, size, as_nnunet) for one, (_, corner) in zip(slices, some, strict=True)]
            slices = torch.stack(cuts)
        yield some, slices


def draw_indices(n: int, count: int, purpose: str, seed: int, round: int, iteration: int) -> list[int]:
    """Return places iteration·count to (iteration+1)·count of the endless sequence of permutations of n."""
    places = range(iteration * count, (iteration + 1) * count)
    return [endless(n, place, purpose, seed, round) for place in places]


def endless(n: int, place: int, purpose: str, seed: int, round: int) -> int:
    """Return the element at a place of the endless sequence."""
    return int(_permutation(n, purpose, seed, round, place // n)[place % n])


@lru_cache(maxsize=256)
def _permutation(n: int, purpose: str, seed: int, round: int, epoch: int) -> Array:
    """Return the permutation of n that an epoch of the endless sequence uses."""
    return numpy_generator(f"batches/{purpose}", seed, round, epoch).permutation(n)
