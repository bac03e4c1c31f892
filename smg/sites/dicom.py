"""Read a folder that holds one DICOM series."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.sites import itk
from smg.sites.formats import Array, Header, head


def is_dicom_folder(path: Path) -> bool:
    """Return whether a file in the folder has DICOM's mark (`DICM` at byte 128)."""
    files = (p for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith("."))
    return any(head(file, 132)[128:] == b"DICM" for file in files)


def read_header(path: Path) -> Header:
    """Return the header of the series, with its geometry from the position of every slice.

    A missing or repeated slice is an error. SimpleITK's series reader would stretch the volume silently.
    """
    slices = [itk.read_header(file) for file in series_files(path)]
    first = slices[0]
    if any(len(s.shape) > 2 and s.shape[0] > 1 for s in slices):  # ITK does not report the positions of its frames
        raise SmgError("holds many slices in one file (multi-frame DICOM); convert it to NIfTI first, as dcm2niix does")
    if len(slices) == 1:
        return first
    if len({s.shape for s in slices}) > 1:
        raise SmgError("its slices differ in size; give each series a folder of its own")
    positions = np.array([s.affine[:3, 3] for s in slices])
    steps = np.diff(positions, axis=0)
    step = (positions[-1] - positions[0]) / (len(slices) - 1)
    length = float(np.linalg.norm(step))
    if length == 0 or np.abs(steps - step).max() > 0.05 * length:
        raise SmgError("its slices are not evenly spaced: one is missing, or two series are mixed; export it again")
    affine = first.affine.copy()
    affine[:3, 2] = step
    return Header((len(slices), *first.shape[-2:]), affine, sum(s.bytes for s in slices))


def read_array(path: Path, header: Header) -> Array:
    """Return the voxels of the series, [slice, row, column]."""
    import SimpleITK as sitk

    files = series_files(path)
    with itk.itk_error("its slices cannot be read: one is cut short or corrupt; export the series again"):
        stack = [sitk.GetArrayFromImage(sitk.ReadImage(str(file))) for file in files]
    return np.concatenate([s.reshape(-1, *header.shape[1:]) for s in stack])


def series_files(path: Path) -> list[Path]:
    """Return the files of the folder's one series, in the order of their positions."""
    import SimpleITK as sitk

    with itk.itk_error("holds no DICOM series that can be read; export it again"):
        series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
        if len(series) != 1:
            raise SmgError(f"holds {len(series)} DICOM series; give each a folder of its own")
        return [Path(f) for f in sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0])]
