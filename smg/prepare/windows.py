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
from torch.nn.functional import pad

from smg.randomness import numpy_generator
from smg.sites.formats import Array

Sides = int | tuple[int, int]  # of a window: rows and columns, or one number for both
Corner = tuple[int, int]  # row and column of a window's first pixel; negative where the slice is smaller
Place = tuple[int, int, int, int]  # (seed, round, iteration, place in the iteration)

OVERLAP = 0.5  # of neighbouring windows in prediction, as nnU-Net
SIGMA = 1 / 8  # of the Gaussian weights, as a share of the window's side, as nnU-Net
LEAST = 1e-4  # weight of a pixel
PEAK = 10.0  # weight of the central pixel in nnU-Net, which stores the weights in half precision


def both(size: Sides) -> tuple[int, int]:
    """Return rows and columns of a window."""
    return size if isinstance(size, tuple) else (size, size)


def draw_corner(labels: Array, size: Sides, share: float, place: Place, even_classes: bool = False) -> Corner:
    """Draw a training window of a slice with these labels [rows, columns].

    With probability `share` it is centred on a random foreground pixel, or with `even_classes` on one of a random class
    of the slice, as far as the slice's edges allow. In the other cases, and in a slice without foreground, its place is
    uniform.
    """
    coin, pick, down, across = numpy_generator("window", *place).random(4)
    (rows, columns), (high, wide) = labels.shape, both(size)
    if even_classes and len(classes := np.flatnonzero(np.bincount(labels.ravel())[1:])):
        turn, pick = divmod(pick * len(classes), 1)
        labels = labels == 1 + classes[int(turn)]
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


def cut(slices: Tensor, corner: Corner, size: Sides, zeros: bool = False) -> Tensor:
    """Return the window [..., size, size] of slices [..., rows, columns]; a view if it lies inside them.

    Beyond the slices their edges are repeated or, with `zeros`, there are zeros, as in nnU-Net.
    """
    (top, left), (rows, columns), (high, wide) = corner, slices.shape[-2:], both(size)
    if min(corner) >= 0 and top + high <= rows and left + wide <= columns:
        return slices[..., top : top + high, left : left + wide]
    if zeros:
        return pad(slices, (-left, left + wide - columns, -top, top + high - rows))  # a negative number cuts off
    down = torch.arange(top, top + high).clamp(0, rows - 1)
    across = torch.arange(left, left + wide).clamp(0, columns - 1)
    return slices[..., down[:, None], across]


def tiles(rows: int, columns: int, size: Sides, odd_behind: bool = False) -> list[Corner]:
    """Return the corners of the windows that cover a slice in prediction; neighbours overlap by about half.

    If a window exceeds its slice by an odd number of pixels, the odd pixel is before the slice; in nnU-Net, behind it.
    """
    high, wide = both(size)
    return [(top, left) for top in _starts(rows, high, odd_behind) for left in _starts(columns, wide, odd_behind)]


def _starts(length: int, size: int, odd_behind: bool) -> list[int]:
    """Return evenly spread starts of windows that cover a line."""
    if length <= size:
        return [-((size - length) // 2) if odd_behind else (length - size) // 2]
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


@lru_cache(maxsize=8)
def nnunet_gaussian(size: Sides) -> Tensor:
    """Return the weights [rows, columns] of a window's pixels where windows overlap: a Gaussian that ends at 4 sigma.

    Its centre is the pixel behind the middle, and its least weight the smallest that half precision holds of it.
    """
    rows, columns = both(size)
    weights = PEAK * torch.outer(_cut_bell(rows), _cut_bell(columns))
    weights = weights.half().float()
    return weights.clamp_min(float(weights[weights > 0].min()))


def _cut_bell(length: int) -> Tensor:
    """Return the weights of a line of pixels, one at the centre and zero beyond 4 sigma."""
    sigma = length / 8
    at = torch.arange(length, dtype=torch.float64) - length // 2
    return torch.exp(-((at / sigma) ** 2) / 2) * (at.abs() <= int(4 * sigma + 0.5))
