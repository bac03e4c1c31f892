"""What all formats of scans share: a header, which gives the scan's size before any voxel is read, and errors.

NIfTI is read by nibabel; MetaImage and NRRD by SimpleITK; DICOM series by `smg.dicom`. An array is indexed [k, j, i],
slowest first, as in the file. An affine maps (i, j, k) to millimetres in LPS, the convention of DICOM and ITK: x to the
left, y to the back, z to the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smg.errors import SmgError

Array = np.ndarray[Any, Any]

NIFTI = (".nii", ".nii.gz")
META = (".mha", ".mhd")
NRRD = (".nrrd",)
SUFFIXES = NIFTI + META + NRRD


@dataclass(frozen=True)
class Header:
    """Facts of a scan that are known before any voxel is read."""

    shape: tuple[int, ...]  # [k, j, i]
    affine: Array  # (i, j, k, 1) -> millimetres, LPS
    bytes: int  # unpacked
    own: Any = None  # what the reader of the voxels also needs: nibabel's header, or the dtype of a voxel


FEWER = "cut short or corrupt: fewer voxels than its header announces; copy the file again"


class Truncated(SmgError):
    """Error for a file with fewer voxels than its header announces, or with bytes that do not decompress."""


def drop_single(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without single dimensions beyond the third: (x, y, z, 1) is a volume too."""
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def head(path: Path, length: int) -> bytes:
    """Return the first `length` bytes of a file."""
    with path.open("rb") as file:
        return file.read(length)
