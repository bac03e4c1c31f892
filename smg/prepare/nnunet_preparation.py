"""Prepare a scan as nnU-Net does, so that its networks see what they were trained on.

The order is nnU-Net's: crop the volume to what is not zero in any channel, normalise each channel, resample the slices.
Axes stay as they are stored, but for a permutation, since nnU-Net knows nothing of a patient's left and right. A window
that is larger than its slice is filled up with zeros, the odd pixel behind the slice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from smg.prepare.grid import Crop, Grid
from smg.prepare.prepare_options import Normalisation, Preparation
from smg.prepare.splines import resample
from smg.sites.formats import Array
from smg.sites.volume import Volume

LEAST_DEVIATION = 1e-8


def prepare_scan(channels: Sequence[Volume], options: Preparation) -> tuple[Array, Grid]:
    """Return a scan's slices [slices, channels, rows, columns] and its grid, which maps masks back to the scan."""
    about = options.nnunet
    assert about is not None
    turned = np.stack([volume.array.transpose(about.axes) for volume in channels]).astype(np.float32)
    there = (turned != 0).any(axis=0)
    box = _box(there)
    inside = tuple(slice(*ends) for ends in box)
    mask = ndimage.binary_fill_holes(there)[inside] if any(one.masked for one in about.normalise) else None
    shape = channels[0].array.shape
    crop = Crop(about.axes, box)
    grid = Grid((shape[0], shape[1], shape[2]), channels[0].affine, options.size, options.spacing, crop=crop)
    prepared = []
    for image, scheme in zip(turned, about.normalise, strict=True):
        normalised = normalise(image[inside], scheme, mask)
        prepared.append(resample(normalised, *grid.whole, order=about.order, clip=about.order > 1))
    return np.stack(prepared, axis=1), grid


def _box(there: Array) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return the first and the last, plus one, of the slices, rows and columns that hold anything; all if none does."""
    ends = []
    for axis in range(3):
        lines = np.flatnonzero(there.any(axis=tuple(other for other in range(3) if other != axis)))
        ends.append((int(lines[0]), int(lines[-1]) + 1) if len(lines) else (0, there.shape[axis]))
    return ends[0], ends[1], ends[2]


def normalise(image: Array, how: Normalisation, mask: Array | None) -> Array:
    """Return a channel's cropped volume normalised by a scheme of nnU-Net; `mask` is what is not zero."""
    if how.scheme == "ZScore":
        seen = image if mask is None or not how.masked else image[mask]
        changed = (image - seen.mean()) / max(seen.std(), LEAST_DEVIATION)
        return changed if mask is None or not how.masked else np.where(mask, changed, image)
    if how.scheme == "CT":
        return np.asarray((np.clip(image, how.low, how.high) - how.mean) / max(how.deviation, LEAST_DEVIATION))
    if how.scheme == "RescaleTo01":
        from_zero = image - image.min()
        return from_zero / max(from_zero.max(), LEAST_DEVIATION)
    return image
