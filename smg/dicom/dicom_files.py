"""DICOM files: recognised, opened for the attributes that are named, and written.

pydicom and highdicom come with the extra `[dicom]`. An exception of theirs may quote a value of the header, such as the
patient's name: it is replaced by a sentence that says only what failed.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from smg.errors import SmgError

Array = np.ndarray[Any, Any]

DIRECTORY = "DICOMDIR"  # lists the files of a disc, and is none of its images
SLICE_NAME = re.compile(r"[^.]+|.*\.(dcm|dicom|ima|[0-9]+)", re.IGNORECASE)  # as scanners and archives name slices
LOGGERS = ("pydicom", "highdicom", "openjpeg", "pylibjpeg")
EXTRA = "pip install 'smg-learning[dicom]'"


def has_mark(file: Path) -> bool:
    """Return whether a file has DICOM's mark: `DICM` at byte 128."""
    with file.open("rb") as opened:
        return opened.read(132)[128:] == b"DICM"


def folder_files(folder: Path) -> list[Path]:
    """Return the files in a folder that may be DICOM, in the order of their names."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [path for path in files if path.name.upper() != DIRECTORY]


@cache
def pydicom_module() -> Any:
    """Return pydicom, set to print neither warnings, which may quote a value, nor what its decoders log."""
    try:
        import pydicom
    except ImportError:
        raise SmgError(f"DICOM is read by pydicom, which is not installed; {EXTRA}") from None
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    warnings.filterwarnings("ignore", module=r"(pydicom|highdicom)(\.|$)")
    for name in LOGGERS:
        if not logging.getLogger(name).handlers:
            logging.getLogger(name).addHandler(logging.NullHandler())
    return pydicom


def highdicom_module() -> Any:
    """Return highdicom."""
    pydicom_module()
    try:
        import highdicom
        import highdicom.seg
    except ImportError:
        raise SmgError(f"DICOM SEG is written by highdicom, which is not installed; {EXTRA}") from None
    return highdicom


def open_dicom(file: Path, keywords: Sequence[str] | None = None, pixels: bool = False) -> Any:
    """Return a file's attributes, only those named by `keywords` where given; not its pixels unless asked for."""
    pydicom = pydicom_module()
    marked = has_mark(file)
    with no_header_values("cannot be parsed as DICOM: cut short or corrupt; copy the file again"):
        tags = None if keywords is None else list(keywords)
        data = pydicom.dcmread(file, force=not marked, stop_before_pixels=not pixels, specific_tags=tags)
        for _ in data.iterall():  # values are parsed here, where an exception that quotes one is caught
            pass
        if not data.file_meta.get("TransferSyntaxUID"):  # as in old files; then it is not compressed
            data.file_meta.TransferSyntaxUID = _syntax(*data.original_encoding)
        return data


def _syntax(implicit: bool, little_endian: bool) -> str:
    """Return the UID of the transfer syntax of a file that does not name it."""
    if not little_endian:
        return "1.2.840.10008.1.2.2"
    return "1.2.840.10008.1.2" if implicit else "1.2.840.10008.1.2.1"


def dicom_files(folder: Path) -> list[Path]:
    """Return every DICOM file of a folder; a file that is named as a slice and cannot be parsed is an error.

    Other files (a text, a picture) are ignored.
    """
    files = []
    for file in folder_files(folder):
        if has_mark(file) or _parses(file):
            files.append(file)
        elif SLICE_NAME.fullmatch(file.name):
            raise SmgError(f"{file.name}: named as a slice, but no DICOM file; copy it again or move it elsewhere")
    return files


def _parses(file: Path) -> bool:
    """Return whether a file without the mark is DICOM all the same, as old scanners wrote it."""
    try:
        return str(open_dicom(file, ["SOPClassUID"]).get("SOPClassUID", "")).startswith("1.2.840.10008.")
    except SmgError:
        return False


@contextmanager
def no_header_values(sentence: str) -> Iterator[None]:
    """Replace an exception of a DICOM library by a sentence: its own words may quote the patient's name."""
    try:
        yield
    except (SmgError, OSError, MemoryError):
        raise
    except Exception as error:
        raise SmgError(f"{sentence} ({type(error).__name__})") from None


@contextmanager
def in_file(file: Path) -> Iterator[None]:
    """Begin the sentence of an error with the file's name."""
    try:
        yield
    except SmgError as error:
        raise SmgError(f"{file.name}: {error}") from None
