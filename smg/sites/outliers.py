"""Masks that are unlike the others of their site: in position, in volume, or in shape.

Each mask is described by a few numbers. A number x is far from the site's if

    |x - median| > 3.5 max(s, floor),   s = 1.4826 median |x - median|

where the floor keeps a site of very similar masks from flagging ordinary ones. Limit and floors were chosen on the 86
subjects of five real prostate sites. There 6 are flagged as they are; shifted to the left by 20 mm, 78 are, by 30 mm
all; of masks without their upper half 78, and with one stray voxel all. Masks shifted to the back by 20 mm are flagged
in 24 of 86 cases only, since patients lie differently in the scanner.

An outlier is no fault: it may be a patient. It is listed and drawn first, so that someone looks at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from smg.sites.formats import Array

FEWEST = 5  # masks of a site; fewer have no spread to speak of
FAR = 3.5
TOWARDS = (("feet", "head"), ("front", "back"), ("right", "left"))  # of the axes of an axial array
SIDES = ("along the slices", "from front to back", "from side to side")
FLOORS = {"position": 2.5, "volume": 0.2, "extent": 0.12, "fill": 0.05}  # mm; two logarithms; a share


@dataclass(frozen=True)
class MaskShape:
    """Position, size and shape of the foreground of one mask, seen as axial slices."""

    volume: float  # ml
    centre: tuple[float, float, float]  # mm from the scan's centre to the head, the back and the left
    extent: tuple[float, float, float]  # mm of its box
    fill: float  # share of its box that is foreground

    @classmethod
    def of(cls, classes: Array, spacing: tuple[float, float, float]) -> MaskShape | None:
        """Describe axial class indices, `spacing` mm apart; None if there is no foreground."""
        lines = [classes.any(axis=tuple(a for a in range(3) if a != axis)) for axis in range(3)]
        if not lines[0].any():
            return None
        inside = [np.flatnonzero(line) for line in lines]
        box = classes[tuple(slice(at[0], at[-1] + 1) for at in inside)] != 0
        count = int(np.count_nonzero(box))
        centre, extent = [], []
        for axis, at in enumerate(inside):
            along = box.sum(axis=tuple(a for a in range(3) if a != axis))
            mean = float(along @ np.arange(at[0], at[-1] + 1)) / count
            centre.append(spacing[axis] * (mean - (classes.shape[axis] - 1) / 2))
            extent.append(spacing[axis] * box.shape[axis])
        volume = count * math.prod(spacing) / 1000
        return cls(volume, (centre[0], centre[1], centre[2]), (extent[0], extent[1], extent[2]), count / box.size)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> MaskShape:
        """Return the shape that `as_json` has written."""
        c, e = fields["centre"], fields["extent"]
        return cls(fields["volume"], (c[0], c[1], c[2]), (e[0], e[1], e[2]), fields["fill"])


@dataclass(frozen=True)
class Outlier:
    """A mask unlike the others of its site."""

    subject: int  # its index
    far: float  # how far, in units of the limit: over 1
    reason: str


def outliers(shapes: Sequence[MaskShape | None]) -> list[Outlier]:
    """Return the masks of one site that are unlike the others, the farthest first; None is left out."""
    there = [number for number, shape in enumerate(shapes) if shape is not None]
    if len(there) < FEWEST:
        return []
    known = [shape for shape in shapes if shape is not None]
    worst: dict[int, Outlier] = {}
    for values, floor, describe in _features(known):
        middle = float(np.median(values))
        deviations = np.abs(values - middle)
        limit = FAR * max(1.4826 * float(np.median(deviations)), floor)
        for place in np.flatnonzero(deviations > limit):
            found = Outlier(there[place], float(deviations[place]) / limit, describe(float(values[place]), middle))
            if found.subject not in worst or found.far > worst[found.subject].far:
                worst[found.subject] = found
    return sorted(worst.values(), key=lambda one: -one.far)


def _features(shapes: Sequence[MaskShape]) -> list[tuple[Array, float, Any]]:
    """Return each number that describes the masks, its floor, and how to put an outlier of it in words."""
    features: list[tuple[Array, float, Any]] = []
    for axis, (less, more) in enumerate(TOWARDS):

        def place(value: float, middle: float, less: str = less, more: str = more) -> str:
            towards = more if value > middle else less
            return f"its mask lies {abs(value - middle):.0f} mm nearer to the {towards} than those of the site do"

        features.append((np.array([s.centre[axis] for s in shapes]), FLOORS["position"], place))

    def volume(value: float, middle: float) -> str:
        return f"its mask has {math.exp(value):.1f} ml, and those of the site {math.exp(middle):.1f} in the middle"

    features.append((np.log([s.volume for s in shapes]), FLOORS["volume"], volume))
    for axis, side in enumerate(SIDES):

        def extent(value: float, middle: float, side: str = side) -> str:
            return f"its mask is {math.exp(value):.0f} mm long {side}, and those of the site {math.exp(middle):.0f}"

        features.append((np.log([s.extent[axis] for s in shapes]), FLOORS["extent"], extent))

    def fill(value: float, middle: float) -> str:
        return f"its mask fills {100 * value:.0f} % of its box, and those of the site {100 * middle:.0f} %"

    features.append((np.array([s.fill for s in shapes]), FLOORS["fill"], fill))
    return features
