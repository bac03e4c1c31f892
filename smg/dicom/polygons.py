"""Masks and polygons: a polygon's inside by the even-odd rule, and the outlines of a mask.

Coordinates are (x, y) in pixels: column and row, a pixel's centre at whole numbers. Outlines run along the edges
between pixels, at halves: filled again they give the same mask, to the pixel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from smg.dicom.dicom_files import Array

Corner = tuple[int, int]


def fill(polygons: Iterable[Array], shape: tuple[int, int]) -> Array:
    """Return the pixels whose centres lie inside an odd number of the polygons, [rows, columns].

    Each row's centre line is crossed by the edges that pass over it, and each crossing changes inside to outside for
    all pixels to its right. An edge has its upper end and not its lower one, so that a corner on the line counts once.
    """
    rows, columns = shape
    changes = np.zeros((rows, columns + 1), np.int64)
    for polygon in polygons:
        edges = np.concatenate([polygon, np.roll(polygon, -1, axis=0)], axis=1)
        for x1, y1, x2, y2 in edges.tolist():
            if (y2, x2) < (y1, x1):  # a line that runs there and back crosses at the same place, to the last bit
                x1, y1, x2, y2 = x2, y2, x1, y1
            lines = np.arange(max(0, math.ceil(y1)), min(rows, math.ceil(y2)))
            if len(lines):
                crossing = x1 + (lines - y1) * ((x2 - x1) / (y2 - y1))
                np.add.at(changes, (lines, np.clip(np.ceil(crossing), 0, columns).astype(np.int64)), 1)
    return (np.cumsum(changes, axis=1)[:, :columns] % 2).astype(bool)


def outlines(mask: Array) -> list[Array]:
    """Return a closed outline, [corners, 2], for each piece of a mask whose pixels touch along an edge.

    A hole is joined to the outer outline by a line that runs there and back: DICOM's contours have no holes.
    """
    from scipy import ndimage

    pieces, _ = ndimage.label(mask)
    found = []
    for number, box in enumerate(ndimage.find_objects(pieces), start=1):
        corner = np.array([box[1].start, box[0].start])
        rings = [ring + corner for ring in _rings(pieces[box] == number)]
        outer = max(rings, key=lambda ring: abs(_signed_area(ring)))
        found.append(_joined(outer, [ring for ring in rings if ring is not outer]))
    return found


def _rings(mask: Array) -> list[Array]:
    """Return the closed lines between inside and outside, pixels of the inside on their right hand."""
    padded = np.pad(mask.astype(bool), 1)
    ends: dict[Corner, list[Corner]] = {}  # a corner -> where the edges from it lead
    inside = padded[1:-1, 1:-1]
    sides = (  # the neighbour beyond the side, and the side's corners (x, y)
        (padded[:-2, 1:-1], (0, 0), (1, 0)),
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    )
    for beyond, start, end in sides:
        for y, x in np.argwhere(inside & ~beyond).tolist():
            ends.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    found = []
    while ends:
        first = next(iter(ends))
        corners, here, towards = [first], first, (0, 0)
        while True:
            following = _turn(here, towards, ends[here])
            ends[here].remove(following)
            if not ends[here]:
                del ends[here]
            direction = (following[0] - here[0], following[1] - here[1])
            if direction == towards:
                corners.pop()  # straight on: no corner
            towards, here = direction, following
            if here == first:
                break
            corners.append(here)
        found.append(np.array(_without_straight_start(corners), np.float64) - 0.5)
    return found


def _joined(outer: Array, holes: Sequence[Array]) -> Array:
    """Return one polygon of an outline and its holes, each joined where it comes nearest."""
    for hole in holes:
        apart = np.linalg.norm(outer[:, None] - hole[None], axis=2)
        here, there = np.unravel_index(apart.argmin(), apart.shape)
        around = np.roll(hole, -int(there), axis=0)
        outer = np.concatenate([outer[: here + 1], around, around[:1], outer[here:]])
    return outer


def _signed_area(polygon: Array) -> float:
    """Return a polygon's area in pixels, positive where it runs clockwise in the picture (y downwards)."""
    x, y = polygon[:, 0], polygon[:, 1]
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _turn(here: Corner, towards: Corner, choices: list[Corner]) -> Corner:
    """Return where to go on: where two pixels touch at a corner, to the right, along the same pixel."""
    right = (here[0] - towards[1], here[1] + towards[0])
    return right if len(choices) > 1 and right in choices else choices[0]


def _without_straight_start(corners: list[Corner]) -> list[Corner]:
    """Return the corners without the first, if the outline runs straight through it."""
    (x0, y0), (x1, y1), (x2, y2) = corners[-1], corners[0], corners[1]
    return corners[1:] if (x1 - x0) * (y2 - y1) == (y1 - y0) * (x2 - x1) else corners
