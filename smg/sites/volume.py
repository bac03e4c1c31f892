"""Volumes: scans and masks as arrays with an affine, read from files, viewed as axial slices, and written.

`Orientation.axial` views a scan of any orientation as [slice, row, column]: slices from the feet to the head, rows from
anterior to posterior (anterior is up in a picture), columns from the patient's right to the left. `Orientation.stored`
reverses it exactly. Both only permute and flip axes; nothing is resampled.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.files import folder_in
from smg.sites import dicom, in_process, itk, nifti, readers
from smg.sites.formats import META, NIFTI, NRRD, SUFFIXES, Array, Header, naming, scan_suffix
from smg.sites.itk_headers import meta_files, nrrd_files
from smg.sites.size_limit import scan_limit

__all__ = [
    "Orientation", "Volume", "geometry_note", "is_scan", "mask_suffix", "naming", "read_header", "read_volume",
    "same_grid", "scan_suffix", "source_files", "write_volume",
]  # fmt: skip


@dataclass(frozen=True)
class Orientation:
    """The stored axes that run to the head, the back and the left, and which of them run backwards."""

    axes: tuple[int, int, int]  # of the stored array [k, j, i], in the order slice, row, column
    flips: tuple[int, ...]  # axes of the axial array that run against the stored one

    @classmethod
    def of(cls, affine: Array) -> Orientation:
        """Return the assignment of axes closest to the scan's directions; an oblique scan keeps its own grid."""
        towards = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)  # rows L, P, S; columns i, j, k
        best = max(itertools.permutations(range(3)), key=lambda ijk: sum(abs(towards[w, ijk[w]]) for w in range(3)))
        left, back, head = best
        backwards = [towards[world, axis] < 0 for world, axis in ((2, head), (1, back), (0, left))]
        return cls((2 - head, 2 - back, 2 - left), tuple(a for a in range(3) if backwards[a]))

    def axial(self, array: Array) -> Array:
        """Return a view of the stored array as axial slices."""
        return np.flip(array.transpose(self.axes), self.flips)

    def stored(self, array: Array) -> Array:
        """Return a view of axial slices in the stored orientation."""
        return np.flip(array, self.flips).transpose(np.argsort(self.axes))


@dataclass(frozen=True, eq=False)
class Volume:
    """A scan or mask: voxels as stored, [k, j, i], and the affine from (i, j, k) to millimetres (LPS)."""

    array: Array
    affine: Array

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Return the millimetres between voxels along i, j, k."""
        i, j, k = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return i, j, k

    @property
    def steps(self) -> Array | None:
        """Return the steps along k, j and i in mm, as rows, if the axes are not at right angles; None if they are."""
        steps = self.affine[:3, :3].T[::-1]
        unit = steps / np.linalg.norm(steps, axis=1, keepdims=True)
        return steps if np.abs(unit @ unit.T - np.eye(3)).max() > 1e-4 else None

    @property
    def voxel(self) -> float:
        """Return the volume of a voxel in cubic millimetres."""
        return float(np.prod(self.spacing)) if self.steps is None else float(abs(np.linalg.det(self.affine[:3, :3])))

    @cached_property
    def orientation(self) -> Orientation:
        """Return the orientation that the affine gives."""
        return Orientation.of(self.affine)

    def axial(self) -> Array:
        """Return a view of the voxels as axial slices, anterior up."""
        return self.orientation.axial(self.array)

    @property
    def axial_spacing(self) -> tuple[float, float, float]:
        """Return the millimetres between axial slices, rows and columns."""
        slices, rows, columns = (self.spacing[2 - axis] for axis in self.orientation.axes)
        return slices, rows, columns


def is_scan(path: Path) -> bool:
    """Return whether a path is a file in a supported format, or a DICOM series: its folder, or `FOLDER/UID`."""
    return dicom.is_series(path) or (not path.is_dir() and scan_suffix(path) is not None)


def read_header(path: Path) -> Header:
    """Return shape, geometry and decompressed size of a scan; no voxel is read."""
    return readers.read_header(path) if _needs_reader(path) else in_process.read_header(path)


def read_volume(path: Path, limit: int | None = None) -> Volume:
    """Return a scan of any format; refuse one of more than `limit` bytes (default: `smg.sites.size_limit`)."""
    read = readers.read_voxels if _needs_reader(path) else in_process.read_voxels
    return Volume(*read(path, scan_limit() if limit is None else limit))


def _needs_reader(path: Path) -> bool:
    """Return whether a scan's format is read in a process of its own."""
    if not readers.AVAILABLE:
        return False
    if path.is_file():
        return scan_suffix(path) in (*META, *NRRD)
    return dicom.is_series(path)


OBLONG = 2.0  # ratio of a pixel's sides: beyond it a scan was not taken in axial slices


def is_oblong(rows: float, columns: float) -> bool:
    """Return whether pixels of axial slices, so many mm between rows and columns, look like those of another plane."""
    return max(rows, columns) > OBLONG * min(rows, columns)


def geometry_note(path: Path) -> str:
    """Return what a user should know of a scan's geometry; nothing if there is nothing, or it cannot be read."""
    if path.is_dir() or scan_suffix(path) not in NIFTI:
        return ""
    try:
        return read_header(path).note
    except SmgError:
        return ""


def source_files(path: Path) -> list[Path]:
    """Return every file whose bytes make up the scan; a change of any of them changes the scan."""
    if not path.is_dir() and dicom.is_series(path):
        return readers.series_files(path) if readers.AVAILABLE else in_process.series_files(path)
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if path.suffix.lower() in (".mhd", *NRRD):
        named = meta_files(path) if path.suffix.lower() == ".mhd" else nrrd_files(path)
        return [path, *(file for file in named if file.is_file())]
    return [path]


def write_volume(path: Path, volume: Volume, like: Path | None = None) -> None:
    """Write a volume in the format of the path's suffix, whole or not at all.

    The header is new, and no field of a source is copied. `like` is the scan on whose grid the volume lies: if both are
    NIfTI, the volume's geometry is written in the same header fields as the scan's.
    """
    suffix = scan_suffix(path)
    if suffix is None:
        raise SmgError(f"{path}: no format has this suffix; end the name in one of {' '.join(SUFFIXES)}")
    array = np.ascontiguousarray(volume.array)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), folder_in(path.parent) as folder:
        temporary = folder / path.name
        if suffix in NIFTI:
            alike = like is not None and scan_suffix(like) in NIFTI and not like.is_dir()
            nifti.write(temporary, array, volume.affine, read_header(like) if like and alike else None)
        else:
            itk.write(temporary, array, volume.affine)
        made = sorted(folder.iterdir(), key=lambda p: p.name == path.name)  # the .mhd after the .zraw it names
        for file in made:
            os.replace(file, path.parent / file.name)


def mask_suffix(scan: Path) -> str:
    """Return the suffix for a mask of this scan: the scan's own, and NIfTI's for DICOM."""
    return ".nii.gz" if dicom.is_series(scan) else scan_suffix(scan) or ".nii.gz"


def same_grid(one: Volume, other: Volume) -> str | None:
    """Return how the grids of two volumes differ, in words; None if they are the same grid."""
    if one.array.shape != other.array.shape:
        return f"sizes differ: {_size(one.array.shape)} and {_size(other.array.shape)}"
    corners = np.array([[*c, 1] for c in itertools.product(*((0, n - 1) for n in one.array.shape[::-1]))], dtype=float)
    apart = np.linalg.norm((corners @ (one.affine - other.affine).T)[:, :3], axis=1).max()
    # Other programs round the numbers in a header. From half a voxel at a corner on, a mask would miss its structure.
    return None if apart <= 0.5 * min(one.spacing) else f"same size, but positions differ by up to {apart:.1f} mm"


def _size(shape: tuple[int, ...]) -> str:
    """Return a stored shape in words, i first: `24 x 20 x 6`."""
    return " x ".join(str(n) for n in shape[::-1])
