"""DICOM series in the place of a scan, and DICOM SEG and RTSTRUCT in the place of a mask, by `smg.dicom`."""

from __future__ import annotations

from pathlib import Path

from smg.dicom.dicom_masks import is_mask_file as is_dicom_file
from smg.dicom.series import is_series, read_series
from smg.sites.formats import Array, Header

__all__ = ["is_dicom_file", "is_series", "read_array", "read_header", "series_files"]


def read_header(path: Path) -> Header:
    """Return shape and geometry of the series in a folder, or at `FOLDER/UID`, checked slice by slice."""
    series = read_series(path)
    return Header(series.shape, series.affine, series.bytes, series)


def read_array(header: Header) -> Array:
    """Return the voxels of a series whose header was read."""
    return header.own.read()


def series_files(path: Path) -> list[Path]:
    """Return the files that the series at a path is made of."""
    return read_series(path).files
