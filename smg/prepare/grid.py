"""The way between a scan's own grid and the prepared one, N x N axial slices, and the way back.

A resized slice is  Y = W_r X W_cᵀ,  one sparse matrix for the rows and one for the columns, each row of W a triangle
filter (linear interpolation upwards, averaging over the source pixels downwards). At equal size W is the identity and
is left out, so nothing is lost there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import sparse

from smg.sites.formats import Array
from smg.sites.volume import Orientation


@lru_cache(maxsize=64)
def resize_matrix(source: int, target: int) -> sparse.csr_matrix:
    """W [target, source]: pixel centres are aligned over the whole edge, rows sum to one."""
    scale = source / target
    centres = (np.arange(target) + 0.5) * scale - 0.5
    reach = max(scale, 1.0)
    weights = np.clip(1.0 - np.abs(np.arange(source)[None, :] - centres[:, None]) / reach, 0.0, None)
    return sparse.csr_matrix((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32))


def resize(slices: Array, rows: int, columns: int) -> Array:
    """[..., h, w] -> [..., rows, columns], float32."""
    slices = np.asarray(slices, np.float32)
    height, width = slices.shape[-2:]
    if (height, width) == (rows, columns):
        return slices
    w_r, w_c = resize_matrix(height, rows), resize_matrix(width, columns)
    out = np.empty((*slices.shape[:-2], rows, columns), np.float32)
    for at in np.ndindex(slices.shape[:-2]):
        out[at] = (w_c @ (w_r @ slices[at]).T).T
    return out


def resize_classes(indices: Array, rows: int, columns: int) -> Array:
    """Class indices resized: each class's indicator is resized, the largest wins."""
    if indices.shape[-2:] == (rows, columns):
        return np.ascontiguousarray(indices, np.uint8)
    shares = [resize(indices == number, rows, columns) for number in range(1, int(indices.max(initial=0)) + 1)]
    best = 1 - np.sum(shares, axis=0, dtype=np.float32) if shares else np.ones((*indices.shape[:-2], rows, columns))
    winner = np.zeros(best.shape, np.uint8)
    for number, share in enumerate(shares, start=1):
        winner[share > best] = number
        best = np.maximum(best, share)
    return winner


@dataclass(frozen=True, eq=False)
class Grid:
    """A scan's grid (shape [k, j, i] and affine) beside the prepared one (`size` x `size` axial slices)."""

    shape: tuple[int, int, int]
    affine: Array
    size: int

    @cached_property
    def orientation(self) -> Orientation:
        return Orientation.of(self.affine)

    @cached_property
    def axial_shape(self) -> tuple[int, int, int]:
        """Slices, rows and columns of the scan seen axially."""
        slices, rows, columns = (self.shape[axis] for axis in self.orientation.axes)
        return slices, rows, columns

    def image(self, array: Array) -> Array:
        """A scan's voxels on the prepared grid: [slices, size, size] float32, in memory of their own."""
        image = resize(np.ascontiguousarray(self.orientation.axial(array), np.float32), self.size, self.size)
        return image.copy() if np.may_share_memory(image, array) else image

    def classes(self, indices: Array) -> Array:
        """A mask's class indices on the prepared grid: [slices, size, size] uint8."""
        return resize_classes(self.orientation.axial(indices), self.size, self.size)

    def back(self, prepared: Array) -> Array:
        """A mask on the prepared grid, or class scores [slices, classes, size, size], as a mask on the scan's own.

        Scores are put back as they are and decided there, which keeps a contour smoother than moving a decided mask.
        """
        _, rows, columns = self.axial_shape
        if prepared.ndim == 4:
            mask = np.empty((len(prepared), rows, columns), np.uint8)
            for decided, scores in zip(mask, prepared, strict=True):  # one by one: all would take twelve scans' memory
                decided[:] = resize(scores, rows, columns).argmax(axis=0)
        else:
            mask = resize_classes(prepared, rows, columns)
        return np.ascontiguousarray(self.orientation.stored(mask))
