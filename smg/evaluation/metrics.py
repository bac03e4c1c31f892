"""Overlap and surface metrics of two masks on a scan's own grid, in millimetres.

Published codes disagree on the direction and unit of surface distances. Ours: a surface is a mask's voxels with a
face-neighbour outside it; distances run from each voxel of one surface to the nearest of the other, in millimetres;
the symmetric distance is the mean over the voxels of both surfaces (as in MONAI and MedPy), HD95 the larger of the two
directed 95th percentiles (as in MONAI). Two empty masks have a DSC of 1; where a mask is empty no surface exists and
these are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

from smg.sites.formats import Array

TOLERANCE = 2.0  # mm, of the surface Dice


@dataclass(frozen=True)
class Metrics:
    """What one predicted mask is worth; distances in mm, volumes in ml."""

    dsc: float
    asd: float  # symmetric
    asd_to_truth: float  # directed: from the prediction's surface to the true one
    asd_to_prediction: float  # directed: the other way
    hd95: float
    surface_dice: float  # share of both surfaces within 2 mm of the other
    volume_difference: float  # predicted minus true


def measure(predicted: Array, truth: Array, spacing: tuple[float, float, float], steps: Array | None = None) -> Metrics:
    """All metrics of a predicted mask; `spacing` in mm along the arrays' own axes.

    steps: where the axes are not at right angles, what a step along each of them is in mm, as rows.
    """
    predicted, truth = predicted.astype(bool), truth.astype(bool)
    there, back = surface_distances(predicted, truth, spacing, steps)
    voxel = (float(np.prod(spacing)) if steps is None else float(abs(np.linalg.det(steps)))) / 1000
    volume = float(np.count_nonzero(predicted) - np.count_nonzero(truth)) * voxel
    if not (len(there) and len(back)):
        none = float("nan")
        return Metrics(dice(predicted, truth), none, none, none, none, none, volume)
    return Metrics(
        dsc=dice(predicted, truth),
        asd=float((there.sum() + back.sum()) / (len(there) + len(back))),
        asd_to_truth=float(there.mean()),
        asd_to_prediction=float(back.mean()),
        hd95=float(max(np.percentile(there, 95), np.percentile(back, 95))),
        surface_dice=float(((there <= TOLERANCE).sum() + (back <= TOLERANCE).sum()) / (len(there) + len(back))),
        volume_difference=volume,
    )


def dice(a: Array, b: Array) -> float:
    """2 |A ∩ B| / (|A| + |B|); two empty masks agree."""
    total = np.count_nonzero(a) + np.count_nonzero(b)
    return float(2 * np.count_nonzero(a & b) / total) if total else 1.0


def surface_distances(
    a: Array, b: Array, spacing: tuple[float, float, float], steps: Array | None = None
) -> tuple[Array, Array]:
    """From each voxel of a's surface to the nearest of b's, and the other way; empty where either mask is."""
    if not a.any() or not b.any():
        return np.empty(0), np.empty(0)
    (box,) = ndimage.find_objects((a | b).astype(np.uint8))  # all surfaces lie in it, so nothing outside is needed
    surface_a, surface_b = _surface(a[box]), _surface(b[box])
    if steps is not None:  # a distance transform's axes are at right angles
        points_a, points_b = (np.argwhere(surface) @ steps for surface in (surface_a, surface_b))
        return cKDTree(points_b).query(points_a)[0], cKDTree(points_a).query(points_b)[0]
    to_b = ndimage.distance_transform_edt(~surface_b, sampling=spacing)[surface_a]
    to_a = ndimage.distance_transform_edt(~surface_a, sampling=spacing)[surface_b]
    return to_b, to_a


def _surface(mask: Array) -> Array:
    return mask & ~ndimage.binary_erosion(mask)
