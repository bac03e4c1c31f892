"""What every format of scan comes to: a header, from which a scan's size is known, and then its voxels.

NIfTI is read by nibabel, MetaImage, NRRD and DICOM series by SimpleITK. An array is indexed [k, j, i], slowest first,
as it lies in the file; an affine maps (i, j, k) to millimetres in LPS, the convention of DICOM and ITK (x to the left,
y to the back, z to the head).
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
    """What is known of a scan before any voxel is read."""

    shape: tuple[int, ...]  # [k, j, i]
    affine: Array  # (i, j, k, 1) -> millimetres, LPS
    bytes: int  # unpacked
    own: Any = None  # what the voxels' reader needs more: nibabel's header, or the kind of a voxel


FEWER = "cut short or corrupt: fewer voxels than its header announces"


class Truncated(SmgError):
    """The file holds fewer voxels than its header announces, or bytes that do not unpack."""


def drop_single(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(x, y, z, 1) is a volume too."""
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def head(path: Path, length: int) -> bytes:
    """The first bytes of a file."""
    with path.open("rb") as file:
        return file.read(length)
