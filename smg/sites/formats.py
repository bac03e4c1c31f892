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

from smg import patience
from smg.errors import SmgError

Array = np.ndarray[Any, Any]

NIFTI = (".nii", ".nii.gz")
META = (".mha", ".mhd")
NRRD = (".nrrd",)
DICOM_ENDS = (".seg.dcm", ".rtstruct.dcm")  # of masks that we write
SUFFIXES = NIFTI + META + NRRD


@dataclass(frozen=True)
class Header:
    """Facts of a scan that are known before any voxel is read."""

    shape: tuple[int, ...]  # [k, j, i]
    affine: Array  # (i, j, k, 1) -> millimetres, LPS
    bytes: int  # unpacked
    own: Any = None  # what the reader of the voxels also needs: nibabel's header, or the dtype of a voxel
    note: str = ""  # what a user should know of its geometry


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


def scan_suffix(path: Path) -> str | None:
    """Return the suffix that gives a scan's format; None if the file is not a scan, as hidden `._*` files."""
    name = path.name.lower()
    if name.startswith("."):
        return None
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(s)), None)


def scan_name(path: Path) -> str:
    """Return a file's name without the suffix of its format, such as `p1` of `p1.nii.gz` and of `p1.seg.dcm`."""
    suffix = scan_suffix(path) or next((s for s in DICOM_ENDS if path.name.endswith(s)), "")
    return path.name[: len(path.name) - len(suffix)]


class naming:
    """Turn every error of the block into one line that begins with the file's name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SmgError):
            raise type(error)(f"{self.path}: {error}") from None
        if isinstance(error, OSError):
            raise SmgError(f"{self.path}: {error.strerror or error}") from None
        if isinstance(error, MemoryError) and not patience.limited():  # a reading process says more of it
            raise SmgError(f"{self.path}: not enough memory to read it; close other programs") from None
        if isinstance(error, Exception) and not isinstance(
            error, MemoryError
        ):  # of a library: one bad file must not stop the others
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SmgError(f"{self.path}: cannot be read or written ({line})") from error
