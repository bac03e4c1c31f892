"""A scan as an array with its place in the patient: read, turned to axial slices, and written back.

Whatever orientation a scan is stored in, `Orientation.axial` shows it as [slice, row, column] with slices from the
feet up, rows from the front back (anterior up in a picture) and columns from the patient's right to the left; and
`Orientation.stored` undoes it voxel for voxel. Both only permute and flip axes: nothing is resampled.
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
from smg.sites import dicom, itk, nifti
from smg.sites.formats import NIFTI, NRRD, SUFFIXES, Array, Header
from smg.sites.itk_headers import meta_files, nrrd_files

LIMIT = 2 << 30  # bytes of one scan, unpacked


@dataclass(frozen=True)
class Orientation:
    """Which stored axis runs to the head, to the back and to the left, and whether it runs backwards."""

    axes: tuple[int, int, int]  # of the stored array [k, j, i], in the order slice, row, column
    flips: tuple[int, ...]  # axes of the axial array that run against the stored one

    @classmethod
    def of(cls, affine: Array) -> Orientation:
        """The assignment of axes closest to the scan's directions, so an oblique scan keeps its own grid."""
        towards = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)  # rows L, P, S; columns i, j, k
        best = max(itertools.permutations(range(3)), key=lambda ijk: sum(abs(towards[w, ijk[w]]) for w in range(3)))
        left, back, head = best
        backwards = [towards[world, axis] < 0 for world, axis in ((2, head), (1, back), (0, left))]
        return cls((2 - head, 2 - back, 2 - left), tuple(a for a in range(3) if backwards[a]))

    def axial(self, array: Array) -> Array:
        """A view of the stored array as axial slices."""
        return np.flip(array.transpose(self.axes), self.flips)

    def stored(self, array: Array) -> Array:
        """A view of axial slices as the array they came from."""
        return np.flip(array, self.flips).transpose(np.argsort(self.axes))


@dataclass(frozen=True, eq=False)
class Volume:
    """A scan or mask: voxels as stored, [k, j, i], and the affine from (i, j, k) to millimetres (LPS)."""

    array: Array
    affine: Array

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between voxels along i, j, k."""
        i, j, k = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return i, j, k

    @property
    def steps(self) -> Array | None:
        """Where axes are not at right angles: the millimetres, as rows, that a step along k, j and i goes."""
        steps = self.affine[:3, :3].T[::-1]
        unit = steps / np.linalg.norm(steps, axis=1, keepdims=True)
        return steps if np.abs(unit @ unit.T - np.eye(3)).max() > 1e-4 else None

    @property
    def voxel(self) -> float:
        """Cubic millimetres of a voxel."""
        return float(np.prod(self.spacing)) if self.steps is None else float(abs(np.linalg.det(self.affine[:3, :3])))

    @cached_property
    def orientation(self) -> Orientation:
        return Orientation.of(self.affine)

    def axial(self) -> Array:
        """The voxels as axial slices, anterior up: a view."""
        return self.orientation.axial(self.array)

    @property
    def axial_spacing(self) -> tuple[float, float, float]:
        """Millimetres between axial slices, rows and columns."""
        slices, rows, columns = (self.spacing[2 - axis] for axis in self.orientation.axes)
        return slices, rows, columns


def scan_suffix(path: Path) -> str | None:
    """The suffix that tells a scan's format, or None where the file is no scan (hidden `._*` files are none)."""
    name = path.name.lower()
    if name.startswith("."):
        return None
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(s)), None)


def is_scan(path: Path) -> bool:
    """A file in a format we read, or a folder that holds a DICOM series."""
    return dicom.is_dicom_folder(path) if path.is_dir() else scan_suffix(path) is not None


def read_header(path: Path) -> Header:
    """Shape, geometry and unpacked size of a scan; no voxel is read."""
    with _naming(path):
        if path.is_dir():
            header = dicom.read_header(path)
        elif not path.exists():
            raise SmgError("no such file")
        elif (suffix := scan_suffix(path)) is None:
            raise SmgError(f"not a scan: its name ends in none of {' '.join(SUFFIXES)}")
        else:
            header = nifti.read_header(path) if suffix in NIFTI else itk.read_header(path)
        if len(header.shape) != 3:
            raise SmgError(f"has {_counted(len(header.shape))} dimensions; a scan has three")
        if not _usable(header.affine):
            raise SmgError("its geometry is unusable: a spacing is zero, infinite or not a number")
    return header


def read_volume(path: Path, limit: int = LIMIT) -> Volume:
    """Read a scan of any format, unless it would unpack to more than `limit` bytes."""
    header = read_header(path)
    with _naming(path):
        if header.bytes > limit:
            raise SmgError(f"unpacks to {header.bytes / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB")
        if path.is_dir():
            array = dicom.read_array(path, header)
        elif scan_suffix(path) in NIFTI:
            array = nifti.read_array(path, header)
        else:
            array = itk.read_array(path, header)
    return Volume(array, header.affine)


def source_files(path: Path) -> list[Path]:
    """Every file whose bytes make up the scan: a change in any of them is a change of the scan."""
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if path.suffix.lower() in (".mhd", *NRRD):
        named = meta_files(path) if path.suffix.lower() == ".mhd" else nrrd_files(path)
        return [path, *(file for file in named if file.is_file())]
    return [path]


def write_volume(path: Path, volume: Volume, like: Path | None = None) -> None:
    """Write a volume, format by suffix, with a fresh header: no field of any source is carried over.

    The file appears whole or not at all. `like` is the scan on whose grid the volume lies: where both are NIfTI, its
    geometry is told in the same words.
    """
    suffix = scan_suffix(path)
    if suffix is None:
        raise SmgError(f"{path}: cannot tell a format from this name; end it in one of {' '.join(SUFFIXES)}")
    array = np.ascontiguousarray(volume.array)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _naming(path), folder_in(path.parent) as folder:
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
    """The suffix for a mask of this scan: its own format, and NIfTI for DICOM."""
    return ".nii.gz" if scan.is_dir() else scan_suffix(scan) or ".nii.gz"


def same_grid(one: Volume, other: Volume) -> str | None:
    """None if two volumes lie on one grid; else the sentence that tells how they differ."""
    if one.array.shape != other.array.shape:
        return f"sizes differ: {_size(one.array.shape)} and {_size(other.array.shape)}"
    corners = np.array([[*c, 1] for c in itertools.product(*((0, n - 1) for n in one.array.shape[::-1]))], dtype=float)
    apart = np.linalg.norm((corners @ (one.affine - other.affine).T)[:, :3], axis=1).max()
    # A mask drawn elsewhere may carry rounded numbers; half a voxel at a corner is where it would miss its structure.
    return None if apart <= 0.5 * min(one.spacing) else f"same size, but positions differ by up to {apart:.1f} mm"


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape[::-1])


def _counted(n: int) -> str:
    return {1: "one", 2: "two", 4: "four", 5: "five"}.get(n, str(n))


def _usable(affine: Array) -> bool:
    return bool(np.isfinite(affine).all() and abs(np.linalg.det(affine[:3, :3])) > 1e-9)


class _naming:
    """Every error in the block becomes one line that begins with the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SmgError):
            raise type(error)(f"{self.path}: {error}") from None
        if isinstance(error, OSError):
            raise SmgError(f"{self.path}: {error.strerror or error}") from None
        if isinstance(error, MemoryError):
            raise SmgError(f"{self.path}: not enough memory for it") from None
        if isinstance(error, Exception):  # of a library, about this file, and it must not stop the others
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise SmgError(f"{self.path}: cannot be read or written ({line})") from error
