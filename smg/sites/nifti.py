"""NIfTI, by nibabel, from bytes that are inflated here.

It does not go through SimpleITK, which reads a file cut short as if the missing voxels were zero, refuses sheared
affines, and takes twice as long. A file is inflated in memory, up to the length its header announces, and nibabel makes
sense of the bytes.
"""

from __future__ import annotations

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
TO_MILLIMETRES = {1: 1e3, 2: 1.0, 3: 1e-3}  # by NIfTI's code; what it does not tell is taken for millimetres


def read_header(path: Path) -> Header:
    return _geometry(_parse(_bytes(path, 544)))


def read_array(path: Path, header: Header) -> Array:
    parsed: nib.Nifti1Header = header.own
    start = max(int(parsed.get_data_offset()), 544 if int(parsed["sizeof_hdr"]) == 540 else 352)  # behind the header
    data = _bytes(path, start + header.bytes, to_the_end=True)
    if len(data) < start + header.bytes:
        raise Truncated(f"cut short: {max(len(data) - start, 0)} of the {header.bytes} bytes its header announces")
    raw = np.frombuffer(data, parsed.get_data_dtype(), offset=start, count=int(np.prod(header.shape)))
    slope, intercept = _sensible(parsed.get_slope_inter)
    array = raw.reshape(header.shape)
    if (slope, intercept) in ((None, None), (1.0, 0.0)):
        return array
    return array * np.float64(1.0 if slope is None else slope) + np.float64(intercept or 0.0)


def write(path: Path, array: Array, affine: Array, like: Header | None = None) -> None:
    """A NIfTI file with a header made from nothing: geometry and data type are all it says.

    `like` is the header of the scan that the array lies on. A NIfTI file may tell its place twice, and programs differ
    in which they believe; so the mask tells both as the scan does.
    """
    import nibabel as nib

    told = like.own if like is not None else None
    if told is not None and int(told["xyzt_units"]) & 7 in (0, 2):  # in millimetres, or what passes for them
        image = nib.Nifti1Image(array.transpose(), None, dtype=array.dtype)
        for form in ("sform_code", "srow_x", "srow_y", "srow_z", "qform_code", "quatern_b", "quatern_c", "quatern_d",
                     "qoffset_x", "qoffset_y", "qoffset_z"):  # fmt: skip
            image.header[form] = told[form]
        image.header["pixdim"][:4] = told["pixdim"][:4]  # the first is a sign of the qform's
    else:
        image = nib.Nifti1Image(array.transpose(), RAS_TO_LPS @ affine, dtype=array.dtype)
        image.set_sform(RAS_TO_LPS @ affine, code="scanner")
        image.set_qform(RAS_TO_LPS @ affine, code="scanner", strip_shears=True)
    image.header.set_xyzt_units("mm")
    image.to_filename(path)


def _bytes(path: Path, length: int, to_the_end: bool = False) -> bytes:
    """The first `length` bytes of a file, unpacked if it is gzipped; fewer only where the file ends before."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        return inflate(file, length, to_the_end)[0] if packed else file.read(length)


def _parse(head: bytes) -> nib.Nifti1Header:
    import nibabel as nib

    if head[4:8] == b"n+2\0":
        kind, size = nib.Nifti2Header, 540
    elif head[344:348] == b"n+1\0":
        kind, size = nib.Nifti1Header, 348
    elif len(head) < 348:
        raise Truncated("too short for a NIfTI header")
    else:
        raise SmgError("not a NIfTI file")
    try:
        header = kind(head[:size], check=False)
        kept = header.get_data_dtype()
    except Exception:
        raise SmgError("its NIfTI header makes no sense") from None
    if kept.kind not in "iuf":
        raise SmgError(f"its voxels are {kept}, not plain numbers")
    return header


def _sensible(ask: Callable[[], Any]) -> Any:
    """What nibabel says of a header, whose every complaint is one of ours."""
    try:
        return ask()
    except Exception:
        raise SmgError("its NIfTI header makes no sense") from None


def _geometry(header: nib.Nifti1Header) -> Header:
    shape = drop_single(tuple(int(n) for n in _sensible(header.get_data_shape)))
    if min(shape, default=0) < 1:
        raise SmgError("its NIfTI header makes no sense")
    if header["sform_code"] > 0:
        affine = header.get_sform()
    elif header["qform_code"] > 0:
        sound = header.copy()
        sound["pixdim"][0] = -1 if header["pixdim"][0] < 0 else 1  # the standard takes 0, as old files have it, for 1
        affine = _sensible(sound.get_qform)
    else:  # spacing alone: the scan lies as it is stored, which is how ITK has it
        affine = RAS_TO_LPS @ np.diag([*header["pixdim"][1:4].astype(float), 1.0])
    scale = TO_MILLIMETRES.get(int(header["xyzt_units"]) & 7, 1.0)
    affine = np.diag([scale, scale, scale, 1.0]) @ affine
    size = int(np.prod(shape, dtype=np.int64)) * int(header.get_data_dtype().itemsize)
    return Header(shape[::-1], RAS_TO_LPS @ affine, size, header)
