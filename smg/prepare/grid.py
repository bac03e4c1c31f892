"""Map a scan's own grid to the prepared grid, axial slices at one size or one spacing, and masks back to the scan.

A resized slice is  Y = W_r X W_cᵀ,  with one sparse matrix for the rows and one for the columns. Each row of W is a
triangle filter: linear interpolation to a larger size, an average over source pixels to a smaller one. At equal size W
is the identity and is skipped, so nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import sparse

from smg.prepare.splines import resample
from smg.sites.formats import Array
from smg.sites.volume import Orientation


@lru_cache(maxsize=64)
def resize_matrix(source: int, target: int) -> sparse.csr_matrix:
    """Return W [target, source]; the outer edges of both pixel grids coincide, and each row sums to one."""
    scale = source / target
    centres = (np.arange(target) + 0.5) * scale - 0.5
    reach = max(scale, 1.0)
    weights = np.clip(1.0 - np.abs(np.arange(source)[None, :] - centres[:, None]) / reach, 0.0, None)
    return sparse.csr_matrix((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32))


def resize(slices: Array, rows: int, columns: int) -> Array:
    """Return slices [..., h, w] resized to [..., rows, columns], float32."""
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
    """Return class indices resized: each class's indicator is resized, and the largest wins."""
    if indices.shape[-2:] == (rows, columns):
        return np.ascontiguousarray(indices, np.uint8)
    shares = [resize(indices == number, rows, columns) for number in range(1, int(indices.max(initial=0)) + 1)]
    best = 1 - np.sum(shares, axis=0, dtype=np.float32) if shares else np.ones((*indices.shape[:-2], rows, columns))
    winner = np.zeros(best.shape, np.uint8)
    for number, share in enumerate(shares, start=1):
        winner[share > best] = number
        best = np.maximum(best, share)
    return winner


def _central(length: int, kept: int) -> slice:
    """Return the central part of a line, `kept` long or all of it."""
    start = max(0, (length - kept) // 2)
    return slice(start, min(start + kept, length))


@dataclass(frozen=True)
class Crop:
    """The prepared part of a scan whose slices are as stored, as nnU-Net has it (smg.prepare.nnunet_preparation)."""

    axes: tuple[int, int, int]  # stored axes that are slices, rows and columns
    box: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # first slice and last plus one, then rows, columns

    @property
    def inside(self) -> tuple[slice, slice, slice]:
        """Return the part as an index of slices, rows and columns."""
        slices, rows, columns = (slice(*ends) for ends in self.box)
        return slices, rows, columns


@dataclass(frozen=True, eq=False)
class Grid:
    """A scan's grid (shape [k, j, i] and affine) and the prepared grid of axial slices that belongs to it.

    Without `spacing` a prepared slice has `size` pixels a side, or (rows, columns). With `spacing` (mm, or that of rows
    and of columns) it covers the scan's field of view in pixels of that spacing, rounded to whole pixels as in nnU-Net.
    With `field` (mm) only the central field is kept. With `crop` slices are as stored and cover a part of the scan.
    """

    shape: tuple[int, int, int]
    affine: Array
    size: int | tuple[int, int]
    spacing: float | tuple[float, float] | None = None
    field: float | None = None
    crop: Crop | None = None

    @cached_property
    def orientation(self) -> Orientation:
        """Return the scan's orientation."""
        return Orientation.of(self.affine) if self.crop is None else Orientation(self.crop.axes, ())

    @cached_property
    def axial_shape(self) -> tuple[int, int, int]:
        """Return slices, rows and columns of the scan viewed as axial."""
        slices, rows, columns = (self.shape[axis] for axis in self.orientation.axes)
        return slices, rows, columns

    @cached_property
    def pixel(self) -> tuple[float, float]:
        """Return the millimetres between the scan's axial rows and columns."""
        steps = np.linalg.norm(self.affine[:3, :3], axis=0)
        _, rows, columns = (float(steps[2 - axis]) for axis in self.orientation.axes)
        return rows, columns

    @cached_property
    def whole(self) -> tuple[int, int]:
        """Return rows and columns of a slice at the prepared resolution, before it is cut to the field."""
        if self.spacing is None:
            return self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if self.crop is not None:
            counts = [stop - start for start, stop in self.crop.box[1:]]
            lengths = [mm / wanted * n for n, mm, wanted in zip(counts, self.pixel, self._spacings, strict=True)]
        else:
            lengths = [
                n * mm / wanted for n, mm, wanted in zip(self.axial_shape[1:], self.pixel, self._spacings, strict=True)
            ]
        rows, columns = (max(1, round(length)) for length in lengths)
        return rows, columns

    @property
    def _spacings(self) -> tuple[float, float]:
        """Return the mm between prepared rows and columns."""
        assert self.spacing is not None
        return self.spacing if isinstance(self.spacing, tuple) else (self.spacing, self.spacing)

    @cached_property
    def box(self) -> tuple[slice, slice]:
        """Return the rows and columns of the whole slice that the field covers."""
        if self.field is None or self.spacing is None:
            return slice(0, self.whole[0]), slice(0, self.whole[1])
        kept = (max(1, round(self.field / mm)) for mm in self._spacings)
        rows, columns = (_central(length, count) for length, count in zip(self.whole, kept, strict=True))
        return rows, columns

    def image(self, array: Array) -> Array:
        """Return a scan's voxels on the prepared grid: [slices, rows, columns] float32, never a view of them."""
        image = resize(np.ascontiguousarray(self.orientation.axial(array), np.float32), *self.whole)[:, *self.box]
        return image.copy() if np.may_share_memory(image, array) else np.ascontiguousarray(image)

    def classes(self, indices: Array) -> Array:
        """Return a mask's class indices on the prepared grid: [slices, rows, columns] uint8."""
        axial = self.orientation.axial(indices)
        whole = resize_classes(axial if self.crop is None else axial[self.crop.inside], *self.whole)
        return np.ascontiguousarray(whole[:, *self.box])

    def field_of(self, indices: Array) -> float:
        """Return the smallest `field` (mm) that holds all foreground of a mask; 0 for an empty mask."""
        shown = (self.orientation.axial(indices) != 0).any(axis=0)
        needed = 0.0
        for axis, mm in zip((1, 0), self.pixel, strict=True):  # first the rows that hold foreground, then the columns
            lines = np.flatnonzero(shown.any(axis=axis))
            if len(lines):
                centre = shown.shape[1 - axis] / 2
                needed = max(needed, 2 * mm * max(lines[-1] + 1 - centre, centre - lines[0]))
        return float(needed)

    def back(self, prepared: Array) -> Array:
        """Return a prepared mask, or class scores [slices, classes, rows, columns], as a mask on the scan's own grid.

        Scores are resized first and the class is decided on the scan's grid, which gives smoother contours than
        resizing a mask. Outside the field everything is background.
        """
        _, rows, columns = self.axial_shape
        if self.crop is not None:
            return self._uncropped(prepared, self.crop)
        if prepared.ndim == 4:
            mask = np.empty((len(prepared), rows, columns), np.uint8)
            for decided, scores in zip(
                mask, prepared, strict=True
            ):  # one by one, since all together need the memory of twelve scans
                decided[:] = resize(self._uncut(scores), rows, columns).argmax(axis=0)
        else:
            mask = resize_classes(self._uncut(prepared), rows, columns)
        return np.ascontiguousarray(self.orientation.stored(mask))

    def _uncropped(self, prepared: Array, crop: Crop) -> Array:
        """Return `back` for a crop: scores are resampled linearly, without smoothing; around the crop is background."""
        mask = np.zeros(self.axial_shape, np.uint8)
        rows, columns = (stop - start for start, stop in crop.box[1:])
        if prepared.ndim == 4:
            for decided, scores in zip(mask[crop.inside], prepared, strict=True):
                decided[:] = resample(scores, rows, columns, order=1).argmax(axis=0)
        else:
            mask[crop.inside] = resize_classes(prepared, rows, columns)
        return np.ascontiguousarray(self.orientation.stored(mask))

    def probabilities(self, scores: Array) -> Array:
        """Return the scores of `back` as probabilities on the scan's own grid: [classes, k, j, i], float32.

        Scores of a crop are logits, as nnU-Net resamples them.
        """
        _, rows, columns = self.axial_shape
        whole = np.zeros((scores.shape[1], *self.axial_shape), np.float32)
        whole[0] = 1
        if self.crop is None:
            for number, one in enumerate(scores):
                whole[:, number] = resize(self._uncut(one), rows, columns)
        else:
            rows, columns = (stop - start for start, stop in self.crop.box[1:])
            logits = np.stack([resample(one, rows, columns, order=1) for one in scores], axis=1)
            powers = np.exp(logits - logits.max(axis=0))
            whole[:, *self.crop.inside] = powers / powers.sum(axis=0)
        return np.stack([np.ascontiguousarray(self.orientation.stored(of)) for of in whole])

    def _uncut(self, cut: Array) -> Array:
        """Return a mask or scores of the field in the whole slice, with background around the field."""
        if cut.shape[-2:] == self.whole:
            return cut
        whole = np.zeros((*cut.shape[:-2], *self.whole), cut.dtype)
        if cut.dtype.kind == "f":
            whole[0] = 1  # the background's score
        whole[..., *self.box] = cut
        return whole
