"""Resample slices by splines without smoothing, as nnU-Net does: cubic for images, linear for scores.

A spline is linear in the pixels, so a resampled slice is  Y = W_r X W_cᵀ,  as in smg.prepare.grid. W is what scipy's
`zoom` makes of the unit vectors: pixel edges coincide, and beyond the slice its edge goes on.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import ndimage

from smg.sites.formats import Array


@lru_cache(maxsize=64)
def spline_matrix(source: int, target: int, order: int) -> Array:
    """Return W [target, source], float32."""
    unit = np.eye(source)
    columns = [ndimage.zoom(one, target / source, order=order, mode="nearest", grid_mode=True) for one in unit]
    return np.stack(columns, axis=1).astype(np.float32)


def resample(slices: Array, rows: int, columns: int, order: int, clip: bool = False) -> Array:
    """Return slices [..., h, w] resampled to [..., rows, columns], float32.

    With `clip` no value is beyond those of its slice, where a cubic spline would overshoot.
    """
    slices = np.asarray(slices, np.float32)
    height, width = slices.shape[-2:]
    if (height, width) == (rows, columns):
        return slices
    made = spline_matrix(height, rows, order) @ slices @ spline_matrix(width, columns, order).T
    if clip:
        low, high = slices.min(axis=(-2, -1), keepdims=True), slices.max(axis=(-2, -1), keepdims=True)
        np.clip(made, low, high, out=made)
    return made
