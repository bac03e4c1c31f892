"""Windows: the rectangles of a slice that the network sees, drawn in training and tiled in prediction.

A window reaches beyond its slice if the slice is smaller. There the pixels of the slice's edge are repeated, since
zeros would draw a grey frame.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from smg.randomness import numpy_generator
from smg.sites.formats import Array

Sides = int | tuple[int, int]  # of a window: rows and columns, or one number for both
Corner = tuple[int, int]  # row and column of a window's first pixel; negative where the slice is smaller
Place = tuple[int, int, int, int]  # (seed, round, iteration, place in the iteration)

OVERLAP = 0.5  # of neighbouring windows in prediction, as nnU-Net
SIGMA = 1 / 8  # of the Gaussian weights, as a share of the window's side, as nnU-Net
LEAST = 1e-4  # weight of a pixel


def both(size: Sides) -> tuple[int, int]:
    """Return rows and columns of a window."""
    return size if isinstance(size, tuple) else (size, size)


def draw_corner(labels: Array, size: Sides, share: float, place: Place) -> Corner:
    """Draw a training window of a slice with these labels [rows, columns].

    With probability `share` it is centred on a random foreground pixel, as far as the slice's edges allow. In the other
    cases, and in a slice without foreground, its place is uniform.
    """
    coin, pick, down, across = numpy_generator("window", *place).random(4)
    (rows, columns), (high, wide) = labels.shape, both(size)
    if coin < share and len(pixels := np.flatnonzero(labels)):
        row, column = divmod(int(pixels[int(pick * len(pixels))]), columns)
        return _inside(row - high // 2, rows, high), _inside(column - wide // 2, columns, wide)
    return _anywhere(down, rows, high), _anywhere(across, columns, wide)


def _inside(start: int, length: int, size: int) -> int:
    """Return a window's start moved into the slice; a window larger than the slice is centred."""
    return min(max(start, 0), length - size) if length >= size else (length - size) // 2


def _anywhere(u: float, length: int, size: int) -> int:
    """Return a window's start for a uniform draw u in 0..1; a window larger than the slice is centred."""
    return int(u * (length - size + 1)) if length >= size else (length - size) // 2


def cut(slices: Tensor, corner: Corner, size: Sides) -> Tensor:
    """Return the window [..., size, size] of slices [..., rows, columns]; a view if it lies inside them."""
    (top, left), (rows, columns), (high, wide) = corner, slices.shape[-2:], both(size)
    if min(corner) >= 0 and top + high <= rows and left + wide <= columns:
        return slices[..., top : top + high, left : left + wide]
    down = torch.arange(top, top + high).clamp(0, rows - 1)
    across = torch.arange(left, left + wide).clamp(0, columns - 1)
    return slices[..., down[:, None], across]


def tiles(rows: int, columns: int, size: Sides) -> list[Corner]:
    """Return the corners of the windows that cover a slice in prediction; neighbours overlap by about half."""
    high, wide = both(size)
    return [(top, left) for top in _starts(rows, high) for left in _starts(columns, wide)]


def _starts(length: int, size: int) -> list[int]:
    """Return evenly spread starts of windows that cover a line."""
    if length <= size:
        return [(length - size) // 2]
    steps = math.ceil((length - size) / (size * (1 - OVERLAP)))
    return [round(step * (length - size) / steps) for step in range(steps + 1)]


@lru_cache(maxsize=8)
def gaussian(size: Sides) -> Tensor:
    """Return the weights [size, size] of a window's pixels where windows overlap; the centre counts most."""
    high, wide = both(size)
    return torch.outer(_bell(high), _bell(wide)).clamp_min(LEAST)


def _bell(length: int) -> Tensor:
    """Return the weights of a line of pixels, before there is a least one."""
    at = (torch.arange(length) - (length - 1) / 2) / (length * SIGMA)
    return torch.exp(-(at**2) / 2)
