"""Read scans of every format in this process.

NIfTI is read here by every process; the other formats by reading processes, which a bad scan may end
(`smg.sites.readers`), and which call these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smg import patience
from smg.dicom.dicom_files import has_mark
from smg.dicom.dicom_masks import mask_structures, read_mask
from smg.dicom.series import is_series, read_series
from smg.errors import SmgError
from smg.sites import dicom, itk, nifti
from smg.sites.formats import NIFTI, SUFFIXES, Array, Header, naming, scan_suffix
from smg.sites.size_limit import check_size

SPACING = 1e-4, 1e4  # mm: range of a distance between voxels


def read_header(path: Path) -> Header:
    """Return shape, geometry and decompressed size of a scan; no voxel is read."""
    with naming(path):
        if path.is_dir() or dicom.is_series(path):
            header = dicom.read_header(path)
        elif not path.exists():
            raise SmgError("no such file; correct the path")
        elif not path.is_file():
            raise SmgError("not a regular file; give a scan's file or folder")
        elif dicom.is_dicom_file(path) or (scan_suffix(path) is None and has_mark(path)):
            raise SmgError("one DICOM file, not a scan; give the folder that holds all files of its series")
        elif (suffix := scan_suffix(path)) is None:
            raise SmgError(f"not a scan: its name ends in none of {' '.join(SUFFIXES)}; convert or rename it")
        else:
            header = nifti.read_header(path) if suffix in NIFTI else itk.read_header(path)
        if len(header.shape) != 3:
            raise SmgError(f"has {_counted(len(header.shape))} dimensions; give a scan of three")
        _check_geometry(header.affine)
    return header


def read_voxels(path: Path, limit: int) -> tuple[Array, Array]:
    """Return a scan's voxels, [k, j, i], and its affine; refuse a scan of more than `limit` bytes."""
    header = read_header(path)
    with naming(path):
        check_size(header.bytes, limit)
        patience.expect(header.bytes)
        if path.is_dir() or dicom.is_series(path):
            array = dicom.read_array(header)
        elif scan_suffix(path) in NIFTI:
            array = nifti.read_array(path, header)
        else:
            array = itk.read_array(path, header)
    return array, header.affine


def read_dicom_mask(mask: Path, image: Path, roi: Sequence[str], limit: int) -> tuple[Array, Array]:
    """Return a SEG or RTSTRUCT on the grid of its image, and the affine."""
    with naming(mask):
        if not is_series(image):
            raise SmgError(f"a DICOM mask needs the series that it was drawn on, and {image.name} is none; "
                           "give the folder of the series as the image")  # fmt: skip
        series = read_series(image)
        check_size(series.bytes, limit)
        patience.expect(series.bytes)
        return read_mask(mask, series, roi), series.affine


def structure_names(mask: Path) -> tuple[str, ...]:
    """Return the names of the structures in a SEG or RTSTRUCT, each once."""
    with naming(mask):
        return tuple(dict.fromkeys(mask_structures(mask).values()))


def series_files(path: Path) -> list[Path]:
    """Return the files that the DICOM series at a path is made of."""
    with naming(path):
        return dicom.series_files(path)


def _counted(n: int) -> str:
    """Return a number of dimensions in words."""
    return {1: "one", 2: "two", 4: "four", 5: "five"}.get(n, str(n))


def _check_geometry(affine: Array) -> None:
    """Refuse an affine that is not finite, cannot be inverted, or has distances that no scanner has."""
    if not np.isfinite(affine).all() or not abs(np.linalg.det(affine[:3, :3])) > 0:
        raise SmgError("its geometry is unusable: a spacing is zero, infinite or NaN; export the scan again")
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    if not (spacing.min() >= SPACING[0] and spacing.max() <= SPACING[1]) or np.abs(affine[:3, 3]).max() > 1e7:
        listed = " x ".join(f"{mm:g}" for mm in spacing)
        raise SmgError(f"its voxels are {listed} mm apart, which no scan's are; export the scan again")
    if abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        raise SmgError("its geometry is unusable: two of its axes have the same direction; export the scan again")
