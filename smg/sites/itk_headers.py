"""Parse the text of MetaImage and NRRD headers: which files hold the voxels, and whether all of them are complete.

SimpleITK reads these formats, but it does not report which files it reads, returns uninitialised memory where voxels of
a MetaImage are missing, and does not verify the checksum of a gzipped NRRD. No library replaces this parser: we
found none but ITK's that reads MetaImage, and pynrrd 1.1.3 fails on a `LIST` or a pattern of data files, accepts a gzip
stream whose checksum is cut off, and decompressed 200 MB for a header that announces 48 bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.sites.formats import FEWER, Array, Header, Truncated, head
from smg.sites.inflate import inflate

MOST_HEADER = 16 << 20  # bytes of a header that are read: a list of files may be long
MOST_FILES = 65_536  # that one scan may be in
MOST_DIMENSIONS = 8
PATTERN = re.compile(r"[^%\s]*%0?[0-9]?d[^%\s]*")  # of numbered files, as C's printf writes it: slice%03d.raw
NUMBER = re.compile(r"-?[0-9]{1,9}")
INVALID = "its header is invalid; export the scan again"


def meta_files(path: Path) -> list[Path]:
    """Return the files that a MetaImage header names: one file, a list of one a slice, or a numbered pattern."""
    fields, _ = meta_fields(path)
    named = fields.get("elementdatafile", "")
    if named.upper().split()[:1] == ["LIST"]:
        names = [os.fsdecode(line).strip() for line in head(path, MOST_HEADER).splitlines()]
        names = names[1 + max(n for n, line in enumerate(names) if line.lower().startswith("elementdatafile")) :]
    elif "%" in named:
        pattern, numbers = _pattern(named, least=0, most=3)
        slices = (_meta_size(fields) or [1])[-1]
        first, last, step = [*numbers, *(1, slices, 1)[len(numbers) :]]
        names = _numbered(pattern, range(first, last + 1, max(step, 1))[:slices])
    else:
        names = [named]
    return inside(path.parent, [name for name in names if name and name.upper() != "LOCAL"])


def _pattern(named: str, least: int, most: int) -> tuple[str, list[int]]:
    """Return the pattern of numbered files that a header names, and the numbers that follow it."""
    pattern, *words = named.split(maxsplit=most + 1)
    sound = least <= len(words) <= most and all(NUMBER.fullmatch(word) for word in words)
    if not sound or not PATTERN.fullmatch(pattern):
        raise SmgError(f"{INVALID} (its files are named by a pattern that cannot be read)")
    return pattern, [int(word) for word in words]


def _numbered(pattern: str, numbers: range) -> list[str]:
    """Return the names of numbered files, unless there are more than a scan has slices."""
    if len(numbers) > MOST_FILES:
        raise SmgError(f"{INVALID} (it names {len(numbers):,} files)")
    return [pattern % number for number in numbers]


def inside(folder: Path, names: list[str]) -> list[Path]:
    """Return the files of these names in a scan's folder; refuse a name or a link that leads out of the folder.

    A header comes with a scan from elsewhere, and must not make any other file of this machine a scan.
    """
    if len(names) > MOST_FILES:
        raise SmgError(f"{INVALID} (it names {len(names):,} files)")
    real = folder.resolve()
    for name in names:
        try:
            leads_out = "\0" in name or not (real / name).resolve().is_relative_to(real)
        except (OSError, RuntimeError):  # a name too long, or a circle of links
            leads_out = True
        if leads_out:
            raise SmgError("its header names a data file outside the scan's folder; copy both files into one folder")
    return [folder / name for name in names]


def all_there(files: list[Path]) -> None:
    """Raise an error for the first file that does not exist."""
    for file in files:
        if not file.is_file():
            raise SmgError(f"its voxels are in {file.name}, which does not exist; copy both files")


def meta_fields(path: Path) -> tuple[dict[str, str], int]:
    """Return the fields of a MetaImage header, with names in lower case, and the header's length in bytes."""
    fields, at = {}, 0
    for line in head(path, 1 << 16).splitlines(keepends=True):
        at += len(line)
        key, separator, value = re.match(r"([^=:]*)([=:]?)(.*)", os.fsdecode(line).strip()).groups()  # type: ignore[union-attr]
        if key and not separator:
            break
        fields[key.strip().lower()] = value.strip()
        if key.strip().lower() == "elementdatafile":
            break
    return fields, at


def _meta_flag(fields: dict[str, str], key: str, default: str) -> bool:
    """Return a field that is true or false."""
    return fields.get(key, default).lower() in ("true", "1", "yes")


def _meta_size(fields: dict[str, str]) -> list[int]:
    """Return the voxels along i, j, k; an empty list if the header has no valid sizes."""
    words = fields.get("dimsize", "").split()
    return [int(word) for word in words] if all(re.fullmatch("[0-9]{1,9}", word) for word in words) else []


def meta_is_sound(fields: dict[str, str]) -> bool:
    """Return whether a MetaImage header has as many valid sizes as dimensions, a type and a data file."""
    size, dimensions = _meta_size(fields), fields.get("ndims", "3")
    named = fields.get("elementdatafile") and fields.get("elementtype", "").startswith("MET_")
    numbered = NUMBER.fullmatch(dimensions) and NUMBER.fullmatch(fields.get("headersize", "0"))
    alone = fields.get("elementnumberofchannels", "1") == "1"
    return bool(
        named and numbered and alone and 1 <= int(dimensions) <= MOST_DIMENSIONS and len(size) == int(dimensions)
        and min(size) > 0
    )  # fmt: skip


def meta_array(path: Path, header: Header) -> Array | None:
    """Return the voxels of a compressed MetaImage; None for another, whose length alone is checked here.

    MetaImage's library returns uninitialised memory where voxels are missing or do not decompress.
    """
    fields, length = meta_fields(path)
    files, skipped = meta_files(path), int(fields.get("headersize", "0"))
    all_there(files)
    if not _meta_flag(fields, "binarydata", "true"):
        text = b" ".join(file.read_bytes() for file in files) if files else path.read_bytes()[length:]
        if len(text.split()) < np.prod(header.shape):
            raise Truncated(FEWER)
        return None
    if not _meta_flag(fields, "compresseddata", "false"):
        shortest = min((file.stat().st_size for file in files), default=path.stat().st_size - length)
        if (shortest - max(skipped, 0)) * max(len(files), 1) < header.bytes:
            raise Truncated(FEWER)
        return None
    if len(files) > 1 or skipped:
        raise SmgError("its voxels are compressed in several pieces; convert it to one file, .mha or .nii.gz")
    big = _meta_flag(fields, "binarydatabyteordermsb", fields.get("elementbyteordermsb", "false"))
    return _unpacked(files[0], 0, header, big) if files else _unpacked(path, length, header, big)


def _unpacked(path: Path, start: int, header: Header, big_endian: bool) -> Array:
    """Return the voxels that are compressed in a file from byte `start` on, verified by their checksum."""
    with path.open("rb") as file:
        file.seek(start)
        data, whole, more = inflate(file, header.bytes, to_the_end=True)
    if len(data) < header.bytes or not whole:
        raise Truncated(FEWER)
    if more >= header.bytes // header.shape[0]:  # less may be padding
        raise SmgError("holds at least a slice more than its header announces; export the scan again")
    stored = np.frombuffer(data, header.own.newbyteorder(">" if big_endian else "<")).reshape(header.shape)
    return stored.astype(header.own, copy=False)


def _nrrd_fields(path: Path) -> tuple[dict[str, str], list[str], int | None]:
    """Return the fields of an NRRD header, the data files that it lists line by line, and its length in bytes.

    Names of fields are in lower case without spaces. The length is None if no empty line ends the header, as in a
    header whose voxels are in other files.
    """
    fields: dict[str, str] = {}
    listed: list[str] = []
    with path.open("rb") as file:
        if file.read(4) != b"NRRD":
            return fields, listed, None
        while file.tell() < MOST_HEADER and (line := file.readline(1 << 16)):
            text = os.fsdecode(line).strip()
            if not text:
                return fields, listed, file.tell()
            key, colon, value = text.partition(":")
            if fields.get("datafile", "").split()[:1] == ["LIST"]:
                listed.append(text)
            elif colon and not text.startswith("#") and not value.startswith("="):  # `key:=value` is a user's field
                fields[key.replace(" ", "").lower()] = value.strip()
    return fields, listed, None


def nrrd_files(path: Path) -> list[Path]:
    """Return the files that an NRRD header names for its voxels: none, one, a list, or a numbered pattern."""
    fields, listed, _ = _nrrd_fields(path)
    named = fields.get("datafile", "")
    if "%" in named:
        pattern, (first, last, step, *_) = _pattern(named, least=3, most=4)
        listed = _numbered(pattern, range(first, last + (1 if step > 0 else -1), step or 1))
    elif named and not listed:
        listed = [named]
    return inside(path.parent, listed)


def check_nrrd(path: Path) -> None:
    """Refuse an NRRD header without an end, without sizes, or whose files are not all there."""
    fields, _, length = _nrrd_fields(path)
    files = nrrd_files(path)
    sizes = fields.get("sizes", "").split()
    sound = all(re.fullmatch("[0-9]{1,9}", word) and int(word) > 0 for word in sizes) and sizes
    if not sound or not 1 <= len(sizes) <= MOST_DIMENSIONS or fields.get("dimension", "").strip() != str(len(sizes)):
        raise Truncated(f"{INVALID} (dimension and sizes)")
    if length is None and not files:
        raise Truncated(f"{INVALID} (no empty line ends it); copy the file again")
    all_there(files)


def nrrd_array(path: Path, header: Header) -> Array | None:
    """Return the voxels of an NRRD gzipped in one piece, whose checksum ITK does not verify; None for any other."""
    fields, _, length = _nrrd_fields(path)
    files = nrrd_files(path)
    plain = fields.get("sizes", "").split() == [str(n) for n in header.shape[::-1]]
    skips = any(fields.get(f"{unit}skip", "0") != "0" for unit in ("line", "byte"))
    if fields.get("encoding", "").lower() not in ("gz", "gzip") or len(files) > 1 or skips or not plain:
        return None
    big = fields.get("endian", "little").lower() == "big"
    if files:
        return _unpacked(files[0], 0, header, big)
    return None if length is None else _unpacked(path, length, header, big)
