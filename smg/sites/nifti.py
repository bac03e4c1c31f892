"""Read and write NIfTI by nibabel, from bytes that are decompressed here.

SimpleITK is not used: it reads a truncated file as if the missing voxels were zero, refuses sheared affines, and takes
twice as long. A file is decompressed in memory up to the length that its header announces, and nibabel parses the
bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smg.errors import SmgError
from smg.sites.formats import Array, Header, Truncated, drop_single
from smg.sites.inflate import GZIP, inflate

if TYPE_CHECKING:
    import nibabel as nib

RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
TO_MILLIMETRES = {1: 1e3, 2: 1.0, 3: 1e-3}  # by NIfTI's code of the unit; an unknown unit counts as millimetres
ALIKE = 0.7  # cosine of two axes that point in the same direction
OFF = 0.01  # share by which two spacings may differ
MOST_OFFSET = 256 << 20  # bytes of header extensions before the voxels
NONSENSE = "its NIfTI header is invalid; export the scan again"


def read_header(path: Path) -> Header:
    """Return the header of a NIfTI file."""
    return _geometry(_parse(_bytes(path, 544)[0]))


def read_array(path: Path, header: Header) -> Array:
    """Return the voxels of a NIfTI file, [k, j, i], with its slope and intercept applied."""
    parsed: nib.Nifti1Header = header.own
    start = _start(parsed)
    size = math.prod(header.shape) * parsed.get_data_dtype().itemsize
    data, whole, more = _bytes(path, start + size, to_the_end=True)
    if len(data) < start + size:
        raise Truncated(
            f"cut short: {max(len(data) - start, 0)} of the {size} bytes its header announces; copy the file again"
        )
    if not whole:
        raise Truncated("its gzip stream has no end, so that its bytes cannot be verified; copy the file again")
    if more >= size // header.shape[0]:  # less may be padding
        raise SmgError("holds at least a slice more than its header announces; export the scan again")
    raw = np.frombuffer(data, parsed.get_data_dtype(), offset=start, count=math.prod(header.shape))
    array = raw.reshape(header.shape)
    slope, intercept = _valid(parsed.get_slope_inter)
    if not _scaled(parsed):
        return array
    return array * np.float64(1.0 if slope is None else slope) + np.float64(intercept or 0.0)


def write(path: Path, array: Array, affine: Array, like: Header | None = None) -> None:
    """Write a NIfTI file with a new header that holds geometry and data type alone.

    `like` is the header of the scan on whose grid the array lies. A NIfTI header can give the geometry twice (sform and
    qform), and programs differ in which they read; so both are written as in the scan.
    """
    import nibabel as nib

    scan = like.own if like is not None else None
    if scan is not None and int(scan["xyzt_units"]) & 7 in (0, 2):  # millimetres, or unknown
        image = nib.Nifti1Image(array.transpose(), None, dtype=array.dtype)
        for form in ("sform_code", "srow_x", "srow_y", "srow_z", "qform_code", "quatern_b", "quatern_c", "quatern_d",
                     "qoffset_x", "qoffset_y", "qoffset_z"):  # fmt: skip
            image.header[form] = scan[form]
        image.header["pixdim"][:4] = scan["pixdim"][:4]  # the first is the qform's handedness
    else:
        image = nib.Nifti1Image(array.transpose(), RAS_TO_LPS @ affine, dtype=array.dtype)
        image.set_sform(RAS_TO_LPS @ affine, code="scanner")
        image.set_qform(RAS_TO_LPS @ affine, code="scanner", strip_shears=True)
    image.header.set_xyzt_units("mm")
    image.to_filename(path)


def _bytes(path: Path, length: int, to_the_end: bool = False) -> tuple[bytes, bool, int]:
    """Return the first `length` bytes of a file, decompressed if it is gzipped; fewer if the file ends early.

    With `to_the_end`, also whether its checksum was verified if it is gzipped, and how many bytes follow that are not
    padding.
    """
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        if packed:
            return inflate(file, length, to_the_end)
        there = path.stat().st_size
        data = file.read(min(length, there))
        rest = file.read(1 << 20) if to_the_end else b""
        return data, True, max(there - length, 0) if rest.strip(b"\0") else 0


def _start(parsed: nib.Nifti1Header) -> int:
    """Return the byte at which voxels begin, after the header and its extensions."""
    first, given = (544 if int(parsed["sizeof_hdr"]) == 540 else 352), parsed["vox_offset"]
    if not 0 <= given <= MOST_OFFSET:
        raise SmgError(NONSENSE)
    return max(int(given), first)


def _scaled(parsed: nib.Nifti1Header) -> bool:
    """Return whether stored voxels are not yet values: they have a slope or an intercept."""
    return _valid(parsed.get_slope_inter) not in ((None, None), (1.0, 0.0))


def _parse(head: bytes) -> nib.Nifti1Header:
    """Return the NIfTI-1 or NIfTI-2 header in a file's first bytes."""
    import nibabel as nib

    if head[4:8] == b"n+2\0":
        kind, size = nib.Nifti2Header, 540
    elif head[344:348] == b"n+1\0":
        kind, size = nib.Nifti1Header, 348
    elif len(head) < 348:
        raise Truncated("too short for a NIfTI header; copy the file again")
    else:
        raise SmgError("not a NIfTI file; convert it, or correct its suffix")
    try:
        header = kind(head[:size], check=False)
        kind_of_voxel = header.get_data_dtype()
    except Exception:
        raise SmgError(NONSENSE) from None
    if kind_of_voxel.kind not in "iuf":
        raise SmgError(f"its voxels are {kind_of_voxel}; give a scan of plain numbers")
    return header


def _valid(ask: Callable[[], Any]) -> Any:
    """Return nibabel's answer about a header; turn any error of nibabel into one of ours."""
    try:
        return ask()
    except Exception:
        raise SmgError(NONSENSE) from None


def _geometry(header: nib.Nifti1Header) -> Header:
    """Return shape, affine and size of a NIfTI header."""
    shape = drop_single(tuple(int(n) for n in _valid(header.get_data_shape)))
    if min(shape, default=0) < 1:
        raise SmgError(NONSENSE)
    if header["sform_code"] > 0:
        affine = header.get_sform()
    elif header["qform_code"] > 0:
        sound = header.copy()
        sound["pixdim"][0] = -1 if header["pixdim"][0] < 0 else 1  # the standard reads 0, as in old files, as 1
        affine = _valid(sound.get_qform)
    else:  # spacing alone: the axes are taken as they are stored, as in ITK
        affine = RAS_TO_LPS @ np.diag([*header["pixdim"][1:4].astype(float), 1.0])
    scale = TO_MILLIMETRES.get(int(header["xyzt_units"]) & 7, 1.0)
    affine = np.diag([scale, scale, scale, 1.0]) @ affine
    size = math.prod(shape) * (8 if _scaled(header) else int(header.get_data_dtype().itemsize))
    note = _disagreement(header, shape) if len(shape) == 3 else ""
    return Header(shape[::-1], RAS_TO_LPS @ affine, size, header, note)


def _disagreement(header: nib.Nifti1Header, shape: tuple[int, ...]) -> str:
    """Return how the header's other geometry places the scan, in words; nothing if it has one geometry.

    A header can give the geometry twice. The sform is read here; other programs read the qform, or take the spacing
    from `pixdim`.
    """
    if header["sform_code"] <= 0:
        return ""
    sform = header.get_sform()
    spacing, given = np.linalg.norm(sform[:3, :3], axis=0), np.abs(header["pixdim"][1:4].astype(float))
    if not (np.isfinite(sform).all() and spacing.min() > 0):
        return ""  # which is refused elsewhere
    if header["qform_code"] > 0:
        try:
            qform = header.get_qform()
        except Exception:
            return "its qform is invalid; its sform is read"
        if not np.isfinite(qform).all() or not (np.linalg.norm(qform[:3, :3], axis=0) > 0).all():
            return "its qform is invalid; its sform is read"
        cosines = (sform[:3, :3] * qform[:3, :3]).sum(axis=0) / spacing / np.linalg.norm(qform[:3, :3], axis=0)
        if cosines.min() < ALIKE:
            return "its sform and qform point in different directions; the sform is read, other programs may mirror it"
        corners = np.array([[*corner, 1.0] for corner in itertools.product(*((0, n - 1) for n in shape))])
        apart = float(np.linalg.norm(corners @ (sform - qform).T, axis=1).max())
        if apart > spacing.min() / 2:
            return f"its sform and qform place it up to {apart:.1f} mm apart; the sform is read"
    elif np.abs(given / spacing - 1).max() > OFF:
        listed = [" x ".join(f"{mm:.3g}" for mm in one) for one in (spacing, given)]
        return f"its sform has voxels of {listed[0]} mm and its pixdim of {listed[1]} mm; the sform is read"
    return ""
