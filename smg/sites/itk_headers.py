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


def meta_files(path: Path) -> list[Path]:
    """Return the files that a MetaImage header names: one file, a list of one a slice, or a numbered pattern."""
    fields, _ = meta_fields(path)
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
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []


def meta_is_sound(fields: dict[str, str]) -> bool:
    """Return whether a MetaImage header has valid sizes, a type and a data file."""
    numbers = [fields.get("ndims", "3"), fields.get("headersize", "0").removeprefix("-")]
    named = fields.get("elementdatafile") and fields.get("elementtype", "").startswith("MET_")
    return bool(named and _meta_size(fields) and all(number.isdecimal() for number in numbers))


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
        data, whole = inflate(file, header.bytes, to_the_end=True)
    if len(data) < header.bytes or not whole:
        raise Truncated(FEWER)
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
        for line in file:
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
    if re.fullmatch(r"\S*%0?\d*d\S*( +-?\d+){3,4}", named):
        pattern, first, last, step, *_ = named.split()
        numbers = range(int(first), int(last) + (1 if int(step) > 0 else -1), int(step) or 1)
        listed = [pattern % number for number in numbers]
    elif named and not listed:
        listed = [named]
    return [path.parent / name for name in listed]


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
