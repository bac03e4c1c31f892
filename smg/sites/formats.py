"""The file formats of scans: NIfTI by nibabel, MetaImage, NRRD and DICOM series by SimpleITK.

Every reader comes in two halves: the header, from which a scan's size is known, and then its voxels. An array is
indexed [k, j, i], slowest first, as it lies in the file; an affine maps (i, j, k) to millimetres in LPS, the convention
of DICOM and ITK (x to the left, y to the back, z to the head).

NIfTI does not go through SimpleITK: it reads a file cut short as if the missing voxels were zero, refuses sheared
affines, and takes twice as long. Here a NIfTI file is inflated in memory, up to the length its header announces and
no further (by ISA-L, in under half of zlib's time), and nibabel makes sense of the bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import IsalError, decompressobj

from smg.errors import SmgError

if TYPE_CHECKING:
    import nibabel as nib

Array = np.ndarray[Any, Any]

RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
TO_MILLIMETRES = {1: 1e3, 2: 1.0, 3: 1e-3}  # by NIfTI's code; what it does not tell is taken for millimetres
NIFTI = (".nii", ".nii.gz")
GZIP = b"\x1f\x8b"  # how a member of it begins
META = (".mha", ".mhd")
ITK = (*META, ".nrrd")
SUFFIXES = NIFTI + ITK


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


# --- NIfTI ------------------------------------------------------------------------------------------------------------


def nifti_header(path: Path) -> Header:
    return _nifti_geometry(_nifti_parse(_inflate(path, 544)))


def nifti_array(path: Path, header: Header) -> Array:
    parsed: nib.Nifti1Header = header.own
    start = max(int(parsed.get_data_offset()), 544 if int(parsed["sizeof_hdr"]) == 540 else 352)  # behind the header
    data = _inflate(path, start + header.bytes, to_the_end=True)
    if len(data) < start + header.bytes:
        raise Truncated(f"cut short: {max(len(data) - start, 0)} of the {header.bytes} bytes its header announces")
    raw = np.frombuffer(data, parsed.get_data_dtype(), offset=start, count=int(np.prod(header.shape)))
    slope, intercept = _sensible(parsed.get_slope_inter)
    array = raw.reshape(header.shape)
    if (slope, intercept) in ((None, None), (1.0, 0.0)):
        return array
    return array * np.float64(1.0 if slope is None else slope) + np.float64(intercept or 0.0)


def write_nifti(path: Path, array: Array, affine: Array, like: Header | None = None) -> None:
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


def _inflate(path: Path, length: int, to_the_end: bool = False) -> bytes:
    """The first `length` bytes of a file, unpacked if it is gzipped; fewer only where the file ends before.

    to_the_end: unpack what follows too, and forget it: the checksum stands behind it.
    """
    with path.open("rb") as file:
        if file.read(2) != GZIP:
            file.seek(0)
            return file.read(length)
        file.seek(0)
        unpacker, parts, have, packed = decompressobj(wbits=31), [], 0, b""
        try:
            while have < length and (packed := packed or file.read(min(1 << 20, length + 64))):
                parts.append(unpacker.decompress(packed, length - have))
                have += len(parts[-1])
                packed = unpacker.unconsumed_tail
                if unpacker.eof and have < length:  # some compressors write a member for every block
                    packed = unpacker.unused_data + file.read(2)
                    if packed[:2] != GZIP:
                        break
                    unpacker = decompressobj(wbits=31)
            while to_the_end and have == length and not unpacker.eof and (packed := packed or file.read(1 << 20)):
                unpacker.decompress(packed, 1 << 20)
                packed = unpacker.unconsumed_tail
        except IsalError:  # type: ignore[misc]
            raise Truncated("its bytes do not unpack: the file is corrupt") from None
    return b"".join(parts)


def _nifti_parse(head: bytes) -> nib.Nifti1Header:
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


def _nifti_geometry(header: nib.Nifti1Header) -> Header:
    shape = _drop_single(tuple(int(n) for n in _sensible(header.get_data_shape)))
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


def _drop_single(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(x, y, z, 1) is a volume too."""
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


# --- MetaImage, NRRD --------------------------------------------------------------------------------------------------


def itk_header(path: Path) -> Header:
    import SimpleITK as sitk

    no_scan = "not a scan that can be read, or cut short"
    if path.suffix.lower() in META and not _meta_is_sound(_meta_fields(path)[0]):
        raise Truncated(no_scan)  # MetaImage's library would print, too, what it misses
    if path.suffix.lower() == ".nrrd":
        _all_there(_nrrd_files(path))
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    with _itk_says(no_scan):
        reader.ReadImageInformation()
    if reader.GetNumberOfComponents() > 1:
        raise SmgError(f"holds {reader.GetNumberOfComponents()} values a voxel; a scan has one")
    size = _drop_single(reader.GetSize())
    spacing, origin = np.array(reader.GetSpacing()), np.array(reader.GetOrigin())
    direction = np.array(reader.GetDirection()).reshape(len(spacing), len(spacing))
    affine = _affine(direction, spacing, origin)
    voxel = sitk.GetArrayViewFromImage(sitk.Image([1, 1, 1], reader.GetPixelID())).dtype
    return Header(size[::-1], affine, int(np.prod(size, dtype=np.int64)) * int(voxel.itemsize), voxel)


def itk_array(path: Path, header: Header) -> Array:
    import SimpleITK as sitk

    array = _meta_array(path, header) if path.suffix.lower() in META else _nrrd_array(path, header)
    if array is not None:
        return array
    with _itk_says(FEWER):
        return sitk.GetArrayFromImage(sitk.ReadImage(str(path))).reshape(header.shape)


def write_itk(path: Path, array: Array, affine: Array) -> None:
    import SimpleITK as sitk

    matrix = affine[:3, :3]
    spacing = np.linalg.norm(matrix, axis=0)
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(affine[:3, 3].tolist())
    image.SetDirection((matrix / spacing).ravel().tolist())
    sitk.WriteImage(image, str(path), useCompression=True)


def _affine(direction: Array, spacing: Array, origin: Array) -> Array:
    affine = np.eye(4)
    n = min(3, len(spacing))
    affine[:n, :n] = direction[:n, :n] * spacing[:n]
    affine[:n, 3] = origin[:n]
    return affine


@contextlib.contextmanager
def _itk_says(sentence: str) -> Iterator[None]:
    """One sentence in place of ITK's exception, and no word of its own on standard error."""
    import SimpleITK as sitk

    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    except RuntimeError:
        raise Truncated(sentence) from None


# --- a folder that holds one DICOM series -----------------------------------------------------------------------------


def is_dicom_folder(path: Path) -> bool:
    """Whether a file in the folder has DICOM's mark (`DICM` at byte 128)."""
    files = (p for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith("."))
    return any(_head(file, 132)[128:] == b"DICM" for file in files)


def _head(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        return file.read(length)


def dicom_header(path: Path) -> Header:
    """Geometry from every slice's own position: a missing or doubled slice is an error, not a silent stretch."""
    slices = [itk_header(file) for file in dicom_files(path)]
    first = slices[0]
    if any(len(s.shape) > 2 and s.shape[0] > 1 for s in slices):  # where its frames lie, ITK does not tell
        raise SmgError("holds many slices in one file (multi-frame DICOM); convert it to NIfTI first, as dcm2niix does")
    if len(slices) == 1:
        return first
    if len({s.shape for s in slices}) > 1:
        raise SmgError("its slices differ in size")
    positions = np.array([s.affine[:3, 3] for s in slices])
    steps = np.diff(positions, axis=0)
    step = (positions[-1] - positions[0]) / (len(slices) - 1)
    length = float(np.linalg.norm(step))
    if length == 0 or np.abs(steps - step).max() > 0.05 * length:
        raise SmgError("its slices are not evenly spaced: one may be missing, or two series be mixed")
    affine = first.affine.copy()
    affine[:3, 2] = step
    return Header((len(slices), *first.shape[-2:]), affine, sum(s.bytes for s in slices))


def dicom_array(path: Path, header: Header) -> Array:
    import SimpleITK as sitk

    files = dicom_files(path)
    with _itk_says("its slices cannot be read: one is cut short or corrupt"):
        stack = [sitk.GetArrayFromImage(sitk.ReadImage(str(file))) for file in files]
    return np.concatenate([s.reshape(-1, *header.shape[1:]) for s in stack])


def dicom_files(path: Path) -> list[Path]:
    """The files of the folder's one series, in the order of their positions."""
    import SimpleITK as sitk

    with _itk_says("holds no DICOM series that can be read"):
        series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
        if len(series) != 1:
            raise SmgError(f"holds {len(series)} DICOM series; give each a folder of its own")
        return [Path(f) for f in sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0])]


# --- the bytes behind a scan ------------------------------------------------------------------------------------------


def source_files(path: Path) -> list[Path]:
    """Every file whose bytes make up the scan: a change in any of them is a change of the scan."""
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if path.suffix.lower() in (".mhd", ".nrrd"):
        named = _meta_files(path) if path.suffix.lower() == ".mhd" else _nrrd_files(path)
        return [path, *(file for file in named if file.is_file())]
    return [path]


def _meta_files(path: Path) -> list[Path]:
    """The files that a MetaImage header names: one, or a list of one a slice, or a pattern with its numbers."""
    fields, _ = _meta_fields(path)
    named = fields.get("elementdatafile", "")
    if named.upper().split()[:1] == ["LIST"]:
        names = [os.fsdecode(line).strip() for line in path.read_bytes().splitlines()]
        names = names[1 + max(n for n, line in enumerate(names) if line.lower().startswith("elementdatafile")) :]
    elif re.fullmatch(r"\S*%0?\d*d\S*( +\d+){0,3}", named):
        pattern, *numbers = named.split()
        slices = (_meta_size(fields) or [1])[-1]
        first, last, step = [*map(int, numbers), *(1, slices, 1)[len(numbers) :]]
        names = [pattern % number for number in range(first, last + 1, max(step, 1))[:slices]]
    else:
        names = [named]
    return [path.parent / name for name in names if name and name.upper() != "LOCAL"]


def _all_there(files: list[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise SmgError(f"its voxels are in {file.name}, which is not there; copy both")


def _meta_fields(path: Path) -> tuple[dict[str, str], int]:
    """A MetaImage header's fields, by their names in small letters, and its length."""
    fields, at = {}, 0
    for line in _head(path, 1 << 16).splitlines(keepends=True):
        at += len(line)
        key, separator, value = re.match(r"([^=:]*)([=:]?)(.*)", os.fsdecode(line).strip()).groups()  # type: ignore[union-attr]
        if key and not separator:
            break
        fields[key.strip().lower()] = value.strip()
        if key.strip().lower() == "elementdatafile":
            break
    return fields, at


def _meta_says(fields: dict[str, str], key: str, otherwise: str) -> bool:
    return fields.get(key, otherwise).lower() in ("true", "1", "yes")


def _meta_size(fields: dict[str, str]) -> list[int]:
    """Voxels along i, j, k; none where the header does not tell."""
    words = fields.get("dimsize", "").split()
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []


def _meta_is_sound(fields: dict[str, str]) -> bool:
    numbers = [fields.get("ndims", "3"), fields.get("headersize", "0").removeprefix("-")]
    named = fields.get("elementdatafile") and fields.get("elementtype", "").startswith("MET_")
    return bool(named and _meta_size(fields) and all(number.isdecimal() for number in numbers))


def _meta_array(path: Path, header: Header) -> Array | None:
    """The voxels of a MetaImage that is compressed, and a look at the length of one that is not.

    MetaImage's library hands out whatever was in memory where voxels are missing or do not unpack.
    """
    fields, length = _meta_fields(path)
    files, skipped = _meta_files(path), int(fields.get("headersize", "0"))
    _all_there(files)
    if not _meta_says(fields, "binarydata", "true"):
        told = b" ".join(file.read_bytes() for file in files) if files else path.read_bytes()[length:]
        if len(told.split()) < np.prod(header.shape):
            raise Truncated(FEWER)
        return None
    if not _meta_says(fields, "compresseddata", "false"):
        shortest = min((file.stat().st_size for file in files), default=path.stat().st_size - length)
        if (shortest - max(skipped, 0)) * max(len(files), 1) < header.bytes:
            raise Truncated(FEWER)
        return None
    if len(files) > 1 or skipped:
        raise SmgError("its voxels are compressed piece by piece; convert it to one file, as .mha or .nii.gz")
    big = _meta_says(fields, "binarydatabyteordermsb", fields.get("elementbyteordermsb", "false"))
    return _unpacked(files[0].read_bytes() if files else path.read_bytes()[length:], header, big)


def _unpacked(packed: bytes, header: Header, big_endian: bool) -> Array:
    """The voxels of a zlib or gzip stream that holds them and nothing else, by its checksum."""
    unpacker = decompressobj(wbits=47)
    try:
        data = unpacker.decompress(packed, header.bytes)
        if len(data) == header.bytes and not unpacker.eof:  # the checksum stands behind the last voxel
            unpacker.decompress(unpacker.unconsumed_tail, 1)
    except IsalError:  # type: ignore[misc]
        raise Truncated(FEWER) from None
    if len(data) < header.bytes or not unpacker.eof:
        raise Truncated(FEWER)
    stored = np.frombuffer(data, header.own.newbyteorder(">" if big_endian else "<")).reshape(header.shape)
    return stored.astype(header.own, copy=False)


def _nrrd_fields(path: Path) -> tuple[dict[str, str], list[str], int]:
    """An NRRD header's fields, by their names in small letters, the lines of files it may list, and its length."""
    fields: dict[str, str] = {}
    listed, at = [], 0
    for line in _head(path, 1 << 16).splitlines(keepends=True):
        at += len(line)
        text = os.fsdecode(line).strip()
        if not text:
            break
        key, colon, value = text.partition(":")
        if fields.get("data file", "").split()[:1] == ["LIST"]:
            listed.append(text)
        elif colon and not text.startswith("#") and not value.startswith("="):  # `key:=value` is the user's own
            name = key.strip().lower()
            fields["data file" if name == "datafile" else name] = value.strip()
    return fields, listed, at


def _nrrd_files(path: Path) -> list[Path]:
    """The files that an NRRD header names for its voxels: none, one, a list, or a pattern with its numbers."""
    fields, listed, _ = _nrrd_fields(path)
    named = fields.get("data file", "")
    if re.fullmatch(r"\S*%0?\d*d\S*( +-?\d+){3,4}", named):
        pattern, first, last, step, *_ = named.split()
        numbers = range(int(first), int(last) + (1 if int(step) > 0 else -1), int(step) or 1)
        listed = [pattern % number for number in numbers]
    elif named and not listed:
        listed = [named]
    return [path.parent / name for name in listed]


def _nrrd_array(path: Path, header: Header) -> Array | None:
    """The voxels of an NRRD that is gzipped in one piece, whose checksum ITK does not look at; None of any other."""
    fields, _, length = _nrrd_fields(path)
    files = _nrrd_files(path)
    plain = fields.get("sizes", "").split() == [str(n) for n in header.shape[::-1]]
    skips = any(fields.get(f"{unit} skip", "0") != "0" for unit in ("line", "byte"))
    if fields.get("encoding", "").lower() not in ("gz", "gzip") or len(files) > 1 or skips or not plain:
        return None
    packed = files[0].read_bytes() if files else path.read_bytes()[length:]
    return _unpacked(packed, header, fields.get("endian", "little").lower() == "big")
