"""Paint soft shapes, given in millimetres, over a grid of voxels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline
from scipy.sparse import csr_array

Array = NDArray[np.floating[Any]]  # float32 throughout: painting is bound by memory
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """The axes of a volume in millimetres, and every voxel's coordinates after the subject's warp."""

    axes: tuple[Array, Array, Array]  # z, y, x: one value a slice, a row, a column
    x: Array
    y: Array
    z: Array  # one value a slice: a warp stays within its slice, so that the gland keeps its height

    @classmethod
    def along(cls, z: Array, y: Array, x: Array) -> Grid:
        """Return the grid of these axes without a warp."""
        shape = (len(z), len(y), len(x))
        return cls((z, y, x), np.broadcast_to(x, shape), np.broadcast_to(y[:, None], shape), z[:, None, None])

    def warped(self, dx: Array, dy: Array) -> Grid:
        """Return the grid with coordinates moved by dx and dy."""
        return Grid(self.axes, self.x + dx, self.y + dy, self.z)

    def near(self, centre: Triple, reach: Triple) -> tuple[slice, slice, slice]:
        """Return the box of voxels within reach of a centre: painting small organs everywhere would be slow."""
        spans = (
            np.searchsorted(axis, (middle - far, middle + far))
            for axis, middle, far in zip(self.axes, reversed(centre), reversed(reach), strict=True)
        )
        z, y, x = (slice(int(first), int(last)) for first, last in spans)
        return z, y, x

    def __getitem__(self, box: tuple[slice, slice, slice]) -> Grid:
        """Return the part of the grid in a box."""
        z, y, x = self.axes
        return Grid((z[box[0]], y[box[1]], x[box[2]]), self.x[box], self.y[box], self.z[box[0]])


def smooth_noise(rng: np.random.Generator, grid: Grid, scale: float | Triple) -> Array:
    """Return a random field of unit variance that varies over `scale` mm (z, y, x): a cubic spline of white noise."""
    scales = scale if isinstance(scale, tuple) else (scale, scale, scale)
    bases = [_spline_basis(axis, step) for axis, step in zip(grid.axes, scales, strict=True)]
    # Along each axis a cubic spline keeps 151/315 of the variance of white noise.
    field = rng.standard_normal([basis.shape[1] for basis in bases], dtype=np.float32) * np.float32((315 / 151) ** 1.5)
    for (
        basis
    ) in bases:  # the first axis is evaluated and becomes the last; sparse, so that rounding does not depend on BLAS
        spread = basis @ field.reshape(len(field), -1)
        field = np.ascontiguousarray(np.moveaxis(spread.reshape(-1, *field.shape[1:]), 0, -1))
    return field


def _spline_basis(axis: Array, step: float) -> csr_array:
    """Return the weights of cubic B-splines with knots every `step` mm, at the points of an axis."""
    low = float(axis.min()) - 0.01
    count = int(np.ceil((float(axis.max()) + 0.01 - low) / step))
    knots = low + step * np.arange(-3, count + 4)
    return BSpline.design_matrix(axis.astype(np.float64), knots, 3).astype(np.float32)


class Part(NamedTuple):
    """An ellipsoid, rotated by `turn` degrees from +x towards +y."""

    centre: Triple
    radii: Triple
    turn: float = 0.0


def implicit(dx: Array, dy: Array, dz: Array, radii: Triple, power: float = 2.0) -> Array:
    """Return the distance to |dx/a|^2 + |dy/b|^2 + |dz/c|^power = 1, to first order; negative inside."""
    a, b, c = (np.float32(1 / radius) for radius in radii)
    u, v, w = np.square(dx * a), np.square(dy * b), np.abs(dz * c) ** np.float32(power)
    level = np.sqrt(u + v + w) + np.float32(1e-4)
    slope = np.sqrt(u * (a * a) + v * (b * b) + w * (c * c)) + np.float32(1e-6)
    return np.asarray((level - 1) * level / slope)


def tube(at: Grid, centre_x: Array, centre_y: Array, radius: Array) -> Array:
    """Return the distance to a tube from head to foot, with a centre and a radius for each slice."""
    dx, dy = at.x - centre_x[:, None, None], at.y - centre_y[:, None, None]
    return np.asarray(np.sqrt(dx * dx + dy * dy) - radius[:, None, None])


def meet(first: Array, second: Array, rounding: float) -> Array:
    """Return the intersection of two shapes, its edge rounded over `rounding` millimetres."""
    overlap = np.clip(rounding - np.abs(first - second), 0, None)
    return np.asarray(np.maximum(first, second) + overlap * overlap / np.float32(4 * rounding))


def mirrored(*parts: Part) -> list[Part]:
    """Return each part on the left and on the right."""
    return [Part((side * x, y, z), radii, side * turn) for (x, y, z), radii, turn in parts for side in (1, -1)]


class Canvas:
    """The signal painted so far. Edges are as soft as a voxel is wide, as by partial volume in a real scan."""

    def __init__(self, grid: Grid, edge: float) -> None:
        self.grid = grid
        self.image: Array = np.zeros(grid.x.shape, np.float32)
        self.edge = edge

    def paint(self, distance: Array, value: Array | float, box: tuple[slice, ...] = (), opacity: float = 1.0) -> None:
        """Paint a value where a distance is negative."""
        cover = np.clip(np.float32(0.5) - distance * np.float32(1 / self.edge), 0, np.float32(opacity))
        under = self.image[box]
        under += cover * ((value[box] if isinstance(value, np.ndarray) else np.float32(value)) - under)

    def fill(self, parts: Iterable[Part], *layers: tuple[float, Array | float], within: Array | None = None) -> None:
        """Paint ellipsoids in layers (inset, value), outermost first; parts that touch become one shape."""
        shapes = [shape for part in parts if (shape := self._shape(part, within)) is not None]
        for inset, value in layers:
            for distance, box in shapes:
                self.paint(distance + np.float32(inset), value, box)

    def _shape(self, part: Part, within: Array | None) -> tuple[Array, tuple[slice, slice, slice]] | None:
        """Return the distance to an ellipsoid in a box around it; None if it lies outside the grid."""
        (a, b, c), turn = part.radii, np.radians(part.turn)
        cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        across, along = float(np.hypot(a * cos, b * sin)), float(np.hypot(a * sin, b * cos))
        box = self.grid.near(part.centre, (across + 10, along + 10, c + 2))  # the warp may move it this far
        at = self.grid[box]
        if at.x.size == 0:
            return None
        dx, dy, dz = (axis - np.float32(centre) for axis, centre in zip((at.x, at.y, at.z), part.centre, strict=True))
        distance = implicit(dx * cos + dy * sin, dy * cos - dx * sin, dz, part.radii)
        return (distance if within is None else np.maximum(distance, within[box])), box
