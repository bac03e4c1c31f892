"""MetaImage and NRRD, by SimpleITK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.sites.formats import FEWER, META, NRRD, Array, Header, Truncated, drop_single
from smg.sites.itk_headers import all_there, meta_array, meta_fields, meta_is_sound, nrrd_array, nrrd_files


def read_header(path: Path) -> Header:
    import SimpleITK as sitk

    no_scan = "not a scan that can be read, or cut short"
    if path.suffix.lower() in META and not meta_is_sound(meta_fields(path)[0]):
        raise Truncated(no_scan)  # MetaImage's library would print, too, what it misses
    if path.suffix.lower() in NRRD:
        all_there(nrrd_files(path))
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    with itk_says(no_scan):
        reader.ReadImageInformation()
    if reader.GetNumberOfComponents() > 1:
        raise SmgError(f"holds {reader.GetNumberOfComponents()} values a voxel; a scan has one")
    size = drop_single(reader.GetSize())
    spacing, origin = np.array(reader.GetSpacing()), np.array(reader.GetOrigin())
    direction = np.array(reader.GetDirection()).reshape(len(spacing), len(spacing))
    affine = _affine(direction, spacing, origin)
    voxel = sitk.GetArrayViewFromImage(sitk.Image([1, 1, 1], reader.GetPixelID())).dtype
    return Header(size[::-1], affine, int(np.prod(size, dtype=np.int64)) * int(voxel.itemsize), voxel)


def read_array(path: Path, header: Header) -> Array:
    import SimpleITK as sitk

    array = meta_array(path, header) if path.suffix.lower() in META else nrrd_array(path, header)
    if array is not None:
        return array
    with itk_says(FEWER):
        return sitk.GetArrayFromImage(sitk.ReadImage(str(path))).reshape(header.shape)


def write(path: Path, array: Array, affine: Array) -> None:
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
def itk_says(sentence: str) -> Iterator[None]:
    """One sentence in place of ITK's exception, and no word of its own on standard error."""
    import SimpleITK as sitk

    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        yield
    except RuntimeError:
        raise Truncated(sentence) from None
