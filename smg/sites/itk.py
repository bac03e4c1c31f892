"""Read and write MetaImage and NRRD by SimpleITK."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.sites.formats import FEWER, META, NRRD, Array, Header, Truncated, drop_single
from smg.sites.itk_headers import check_nrrd, meta_array, meta_fields, meta_files, meta_is_sound, nrrd_array


def read_header(path: Path) -> Header:
    """Return the header of a MetaImage or NRRD file."""
    import SimpleITK as sitk

    no_scan = "not a scan that can be read, or cut short; copy the file again"
    if path.suffix.lower() in META and not meta_is_sound(meta_fields(path)[0]):
        raise Truncated(no_scan)
    if path.suffix.lower() in META:
        meta_files(path)
    if path.suffix.lower() in NRRD:
        check_nrrd(path)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    with itk_error(no_scan):
        reader.ReadImageInformation()
    if reader.GetNumberOfComponents() > 1:
        raise SmgError(f"holds {reader.GetNumberOfComponents()} values a voxel; give a scan with one")
    size = drop_single(reader.GetSize())
    if min(size, default=0) < 1:
        raise Truncated(no_scan)
    spacing, origin = np.array(reader.GetSpacing()), np.array(reader.GetOrigin())
    direction = np.array(reader.GetDirection()).reshape(len(spacing), len(spacing))
    affine = _affine(direction, spacing, origin)
    voxel = sitk.GetArrayViewFromImage(sitk.Image([1, 1, 1], reader.GetPixelID())).dtype
    return Header(size[::-1], affine, math.prod(size) * int(voxel.itemsize), voxel)


def read_array(path: Path, header: Header) -> Array:
    """Return the voxels of a MetaImage or NRRD file, [k, j, i]."""
    import SimpleITK as sitk

    array = meta_array(path, header) if path.suffix.lower() in META else nrrd_array(path, header)
    if array is not None:
        return array
    with itk_error(FEWER):
        return sitk.GetArrayFromImage(sitk.ReadImage(str(path))).reshape(header.shape)


def write(path: Path, array: Array, affine: Array) -> None:
    """Write a compressed file in the format of the path's suffix."""
    import SimpleITK as sitk

    matrix = affine[:3, :3]
    spacing = np.linalg.norm(matrix, axis=0)
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(affine[:3, 3].tolist())
    image.SetDirection((matrix / spacing).ravel().tolist())
    sitk.WriteImage(image, str(path), useCompression=True)


def _affine(direction: Array, spacing: Array, origin: Array) -> Array:
    """Return the affine from (i, j, k) to millimetres."""
    affine = np.eye(4)
    n = min(3, len(spacing))
    affine[:n, :n] = direction[:n, :n] * spacing[:n]
    affine[:n, 3] = origin[:n]
    return affine


@contextlib.contextmanager
def itk_error(message: str) -> Iterator[None]:
    """Replace ITK's exception by an error with this message, and silence what ITK prints on standard error."""
    import SimpleITK as sitk

    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    except RuntimeError:
        raise Truncated(message) from None
