"""Measure the classes of a mask: whether each is one piece, and which lies to the left of which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import ndimage

from smg.sites.formats import Array

ONE_PIECE = 0.95  # of a class's voxels in its largest component, median over subjects: fewer are several pieces
SAME_ORDER = 0.9  # of the subjects with both classes: more have them in one order, so left and right matter
COMMON = 0.5  # of all subjects, at least, that have both: the sides of a rare class are chance


@dataclass(frozen=True)
class ClassFacts:
    """One class of one subject's mask."""

    largest: float  # share of its voxels in its largest component
    place: float  # mm from the scan's right edge to its centre
    reach: float  # mm, standard deviation of its voxels from left to right


Classes = dict[str, ClassFacts]  # the classes that a mask has, by name


@dataclass(frozen=True)
class Pieces:
    """A class of several pieces."""

    name: str
    share: float  # of its voxels in the largest component, median over subjects


@dataclass(frozen=True)
class Sides:
    """Two classes on different sides of each other."""

    left: str
    right: str
    subjects: int  # that have them in this order
    both: int  # subjects that have both


def measure_classes(axial: Array, names: Sequence[str], column: float) -> Classes:
    """Return the facts of each class of a mask seen as axial slices, whose columns are `column` mm apart."""
    found: Classes = {}
    for number, box in enumerate(ndimage.find_objects(axial, max_label=len(names)), start=1):
        if box is None:
            continue
        own = axial[box] == number
        columns = own.sum(axis=(0, 1))
        at = column * (box[2].start + np.arange(len(columns)) + 0.5)
        centre = float(np.average(at, weights=columns))
        reach = float(np.sqrt(np.average((at - centre) ** 2, weights=columns)))
        found[names[number - 1]] = ClassFacts(_largest(own), centre, reach)
    return found


def _largest(own: Array) -> float:
    """Return the share of voxels in the largest component, by faces as predictions are (`keep_largest`)."""
    components, _ = ndimage.label(own)
    sizes = np.bincount(components.ravel())[1:]
    return float(sizes.max() / sizes.sum())


def in_pieces(subjects: Sequence[Classes], names: Sequence[str]) -> Pieces | None:
    """Return the class that is most in pieces; None if every class is one piece in most subjects."""
    shares = {name: [s[name].largest for s in subjects if name in s] for name in names}
    medians = [Pieces(name, float(np.median(of))) for name, of in shares.items() if of]
    most = min(medians, key=lambda pieces: pieces.share, default=None)
    return most if most and most.share < ONE_PIECE else None


def on_two_sides(subjects: Sequence[Classes], names: Sequence[str]) -> Sides | None:
    """Return the first two classes that lie on different sides of each other, in one order; None if there are none.

    One class lies to the left of another if their centres are further apart than both reach. A ring and what it holds
    have no sides, and neither has a class that few subjects have.
    """
    for pair in combinations(names, 2):
        both = [(s[pair[0]], s[pair[1]]) for s in subjects if pair[0] in s and pair[1] in s]
        for (left, right), ordered in ((pair, both), (pair[::-1], [(b, a) for a, b in both])):
            count = sum(a.place - b.place > a.reach + b.reach for a, b in ordered)
            if both and len(both) >= COMMON * len(subjects) and count > SAME_ORDER * len(both):
                return Sides(left, right, count, len(both))
    return None
