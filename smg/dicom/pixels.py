"""Pixels of DICOM files: which transfer syntaxes are decoded, and by what; values after the rescale.

Uncompressed, RLE, JPEG-LS and JPEG 2000 are decoded by pydicom and its plugins; JPEG (baseline, extended, lossless) by
SimpleITK, a file of one slice at a time, since pydicom's plugin for it is under the GPL.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smg.dicom.dicom_files import EXTRA, Array, no_header_values, open_dicom
from smg.errors import SmgError

PLUGINS = {  # transfer syntax -> pydicom's plugin
    "1.2.840.10008.1.2.5": "pydicom",  # RLE
    "1.2.840.10008.1.2.4.80": "pyjpegls",  # JPEG-LS, without loss and nearly so
    "1.2.840.10008.1.2.4.81": "pyjpegls",
    "1.2.840.10008.1.2.4.90": "pylibjpeg",  # JPEG 2000, without loss and with
    "1.2.840.10008.1.2.4.91": "pylibjpeg",
    "1.2.840.10008.1.2.4.201": "pylibjpeg",  # high-throughput JPEG 2000
    "1.2.840.10008.1.2.4.202": "pylibjpeg",
    "1.2.840.10008.1.2.4.203": "pylibjpeg",
}
JPEG = tuple(f"1.2.840.10008.1.2.4.{n}" for n in (50, 51, 57, 70))  # baseline, extended, lossless (two)
KEYWORDS = (
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData", "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
)  # fmt: skip
CUT_SHORT = "its pixels cannot be decoded: cut short or corrupt; copy the file again"


def transfer_syntax(data: Any) -> str:
    """Return the UID of a file's transfer syntax."""
    return str(data.file_meta.TransferSyntaxUID)


def check_decodable(data: Any) -> None:
    """Refuse a transfer syntax that nothing here decodes, or a kind of pixel that scans do not have."""
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    syntax, frames = transfer_syntax(data), int(data.get("NumberOfFrames") or 1)
    if data.get("SamplesPerPixel", 1) != 1 or data.get("PhotometricInterpretation") == "PALETTE COLOR":
        raise SmgError("a colour image; a scan has one value a pixel")
    if data.get("BitsAllocated") not in (8, 16, 32):
        raise SmgError(f"BitsAllocated is {data.get('BitsAllocated')}; pixels of 8, 16 and 32 bits are read")
    if not 1 <= (data.get("BitsStored") or 0) <= data.BitsAllocated or data.get("HighBit") != data.BitsStored - 1:
        raise SmgError("BitsStored and HighBit do not fit together; export the series again")
    if "ModalityLUTSequence" in data:
        raise SmgError("its values go through a look-up table; export the scan without ModalityLUTSequence")
    name = UID(syntax).name
    if syntax in JPEG and frames > 1:
        raise SmgError(f"many slices in one file, compressed as {name}; decompress it first, as dcmdjpeg does")
    if syntax in PLUGINS and PLUGINS[syntax] not in get_decoder(UID(syntax)).available_plugins:
        raise SmgError(f"compressed as {name}, which needs {PLUGINS[syntax]}; {EXTRA}")
    if syntax not in (*PLUGINS, *JPEG) and UID(syntax).is_compressed and UID(syntax).is_encapsulated:
        raise SmgError(f"compressed as {name}, which is not supported; decompress it first, as gdcmconv --raw does")


def stored_kind(data: Any) -> np.dtype[Any]:
    """Return the kind of number that the pixels of a file are stored as."""
    return np.dtype(f"{'i' if data.get('PixelRepresentation') else 'u'}{data.BitsAllocated // 8}")


def value_kind(data: Any, slope: float, intercept: float) -> np.dtype[Any]:
    """Return the kind of number that holds every value after the rescale; whole numbers stay whole."""
    if (slope, intercept) == (1.0, 0.0):
        return stored_kind(data)
    if not (slope.is_integer() and intercept.is_integer()):
        return np.dtype(np.float64)
    bits, signed = data.BitsStored, bool(data.get("PixelRepresentation"))
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    ends = sorted((lowest * slope + intercept, highest * slope + intercept))
    for kind in (np.int16, np.uint16, np.int32):
        if np.iinfo(kind).min <= ends[0] and ends[1] <= np.iinfo(kind).max:
            return np.dtype(kind)
    return np.dtype(np.float64)


def read_frames(file: Path, rescales: Sequence[tuple[float, float]]) -> list[Array]:
    """Return the frames of a file in their order, [rows, columns], each after its rescale (slope, intercept)."""
    data = open_dicom(file, KEYWORDS, pixels=True)
    if "PixelData" not in data:
        raise SmgError("has no pixels: cut short; copy the file again")
    if transfer_syntax(data) in JPEG:
        return [_by_itk(file, data)]
    return [_rescaled(frame, data, *rescale) for frame, rescale in zip(decode(data), rescales, strict=True)]


def decode(data: Any) -> Array:
    """Return the pixels of an open file, [frames, rows, columns], as they are stored."""
    from pydicom.pixels import pixel_array

    syntax, frames = transfer_syntax(data), int(data.get("NumberOfFrames") or 1)
    if syntax not in PLUGINS:
        expected = -(-frames * data.Rows * data.Columns * data.BitsAllocated // 8)
        there = len(data.PixelData)
        if there not in (expected, expected + expected % 2):
            raise SmgError(f"holds {there:,} bytes of pixels where its header announces {expected:,}; copy it again")
    with no_header_values(CUT_SHORT):
        array = pixel_array(data, decoding_plugin=PLUGINS.get(syntax, ""))
        return array.reshape(frames, data.Rows, data.Columns)


def _rescaled(frame: Array, data: Any, slope: float, intercept: float) -> Array:
    """Return the values of stored pixels. Bits above those stored, where old scanners drew overlays, are dropped."""
    unused = data.BitsAllocated - data.BitsStored
    pixels = frame.astype(stored_kind(data), copy=False)
    pixels = (pixels << unused) >> unused if unused else pixels
    kind = value_kind(data, slope, intercept)
    return (
        pixels if kind == pixels.dtype and (slope, intercept) == (1.0, 0.0) else _linear(pixels, slope, intercept, kind)
    )


def _linear(pixels: Array, slope: float, intercept: float, kind: np.dtype[Any]) -> Array:
    return (pixels.astype(np.float64) * slope + intercept).astype(kind, copy=False)


def _by_itk(file: Path, data: Any) -> Array:
    """Return the values of a file of one slice, decoded and rescaled by SimpleITK."""
    import SimpleITK as sitk

    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    with no_header_values(CUT_SHORT):
        return sitk.GetArrayFromImage(sitk.ReadImage(str(file))).reshape(data.Rows, data.Columns)
