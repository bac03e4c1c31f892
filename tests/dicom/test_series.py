"""DICOM series are read whole and in place, or refused with the file that is at fault."""

from __future__ import annotations

import locale
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

from smg.dicom.dicom_files import pydicom_module
from smg.dicom.series import is_series, read_series
from smg.errors import SmgError
from smg.sites import in_process
from smg.sites.volume import is_scan, read_header, read_volume, source_files
from tests.dicom.made import (
    NAME,
    PATIENT,
    PERMUTED,
    PLAIN,
    image,
    in_order,
    oblique,
    rewrite,
    write_enhanced,
    write_series,
)

DIRECTIONS = {"plain": PLAIN, "oblique": oblique(), "permuted": PERMUTED}


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
def test_a_series_agrees_with_simpleitk(tmp_path: Path, direction: np.ndarray) -> None:
    folder = write_series(tmp_path / "series", image(), direction)
    (folder / "notes.txt").write_text("no slice")
    names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder))
    oracle = sitk.ReadImage(names)
    volume = read_volume(folder)
    assert np.array_equal(volume.array, image())
    assert np.array_equal(volume.array, sitk.GetArrayFromImage(oracle))
    matrix = np.array(oracle.GetDirection()).reshape(3, 3) * oracle.GetSpacing()
    assert np.allclose(volume.affine[:3, :3], matrix, atol=1e-5)
    assert np.allclose(volume.affine[:3, 3], oracle.GetOrigin(), atol=1e-6)


def test_values_are_rescaled_as_simpleitk_does(tmp_path: Path) -> None:
    for name, slope, intercept, kind in (("ct", 1, -1024, np.int16), ("pet", 0.37, 2.5, np.float64)):
        folder = write_series(tmp_path / name, RescaleSlope=slope, RescaleIntercept=intercept)
        first = in_order(folder)[0]
        rewrite(first, RescaleSlope=2 * slope)
        volume = read_volume(folder)
        assert volume.array.dtype == kind
        oracle = [sitk.GetArrayFromImage(sitk.ReadImage(str(file)))[0] for file in in_order(folder)]
        assert np.array_equal(volume.array, np.stack(oracle).astype(kind))
        assert np.allclose(volume.array[0], 2 * slope * image()[0] + intercept)


def test_bits_above_those_stored_are_dropped(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    file = in_order(folder)[2]
    pixels = image()[2].astype(np.uint16)
    pixels[3:6] |= 0x8000  # an overlay, as old scanners drew it
    rewrite(file, PixelData=pixels.tobytes())
    assert np.array_equal(read_volume(folder).array, image())
    signed = write_series(
        tmp_path / "signed", PixelRepresentation=1, PixelData=np.full((20, 24), 0x0FFF, "<u2").tobytes()
    )
    assert (read_volume(signed).array == -1).all()


# --- transfer syntaxes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
def test_compressed_by_pydicom(tmp_path: Path, syntax: str) -> None:
    array = image((4, 64, 80))
    folder = write_series(tmp_path / "series", array)
    for file in folder.iterdir():
        data = pydicom.dcmread(file)
        data.compress(syntax)
        data.save_as(file)
    assert np.array_equal(read_volume(folder).array, array)
    file = in_order(folder)[-1]
    file.write_bytes(file.read_bytes()[:-200])
    assert file.name in fault(folder)


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian])
def test_not_compressed(tmp_path: Path, syntax: str) -> None:
    folder = write_series(tmp_path / "series")
    for file in folder.iterdir():
        read = pydicom.dcmread(file)
        if syntax == ExplicitVRBigEndian:
            read.PixelData = read.pixel_array.astype(">u2").tobytes()
        data = pydicom.Dataset({element.tag: element for element in read})
        data.file_meta, data.preamble = read.file_meta, bytes(128)
        data.file_meta.TransferSyntaxUID = syntax
        data.save_as(file, implicit_vr=syntax == ImplicitVRLittleEndian, little_endian=syntax != ExplicitVRBigEndian)
    assert np.array_equal(read_volume(folder).array, image())


@pytest.fixture
def _locale() -> Iterator[None]:
    """Put the process's locale back: SimpleITK's writer of DICOM sets it to C, and text files would be ASCII."""
    before = locale.setlocale(locale.LC_ALL)
    yield
    locale.setlocale(locale.LC_ALL, before)


@pytest.mark.usefixtures("_locale")
def test_lossless_jpeg(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", RescaleIntercept=-100, RescaleSlope=1)
    for file in folder.iterdir():
        one = sitk.ReadImage(str(file))
        writer = sitk.ImageFileWriter()
        writer.KeepOriginalImageUIDOn()
        writer.SetUseCompression(True)
        writer.SetCompressor("JPEG")
        writer.SetFileName(str(file))
        writer.Execute(one)
        assert pydicom.dcmread(file).file_meta.TransferSyntaxUID == "1.2.840.10008.1.2.4.70"
    assert np.array_equal(read_volume(folder).array, image() - 100)


def test_a_syntax_that_nothing_decodes_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    file = in_order(folder)[0]
    data = pydicom.dcmread(file)
    data.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.100"
    data.PixelData = pydicom.encaps.encapsulate([b"no video"])
    data.save_as(file)
    with pytest.raises(SmgError, match=rf"{file.name}: compressed as MPEG2 Main Profile.*not supported; decompress"):
        read_volume(folder)


# --- many slices in one file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
def test_an_enhanced_file_is_its_slices(tmp_path: Path, direction: np.ndarray, reverse: bool) -> None:
    one = read_volume(write_series(tmp_path / "one", image(), direction))
    many = read_volume(write_enhanced(tmp_path / "many", image(), direction, reverse))
    assert np.array_equal(one.array, many.array)
    assert np.allclose(one.affine, many.affine, atol=1e-9)


def test_an_enhanced_file_with_two_volumes_is_refused(tmp_path: Path) -> None:
    folder = write_enhanced(tmp_path / "many", image())
    data = pydicom.dcmread(folder / "enhanced.dcm")
    groups = data.PerFrameFunctionalGroupsSequence
    groups[3].PlanePositionSequence = groups[2].PlanePositionSequence
    data.save_as(folder / "enhanced.dcm")
    with pytest.raises(SmgError, match=r"enhanced.dcm, frame 4: at the position of enhanced.dcm, frame 3"):
        read_header(folder)
    del groups[5]
    data.save_as(folder / "enhanced.dcm")
    with pytest.raises(SmgError, match="announces 6 frames and gives the position of 5"):
        read_header(folder)


# --- faults -----------------------------------------------------------------------------------------------------------


def fault(folder: Path) -> str:
    with pytest.raises(SmgError) as error:
        read_volume(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert not re.search(f"{NAME}|{PATIENT}|ROSENKRANTZ", str(error.value))
    return str(error.value)


@pytest.mark.parametrize("keyword", ["PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient"])
@pytest.mark.parametrize("every", [False, True])
def test_geometry_is_required(tmp_path: Path, keyword: str, every: bool) -> None:
    folder = write_series(tmp_path / "series")
    for file in in_order(folder) if every else in_order(folder)[-1:]:
        rewrite(file, keyword)
    assert f"has no {keyword}" in fault(folder)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("PixelSpacing", [0.7, 0.6]),
        ("ImageOrientationPatient", [1, 0, 0, 0, 0.99, 0.141]),
        ("FrameOfReferenceUID", "1.2.3.4"),
        ("PixelSpacing", [0, 0.5]),
        ("ImageOrientationPatient", [1, 0, 0, 1, 0, 0]),
    ],
)
def test_one_slice_with_another_geometry_is_named(tmp_path: Path, keyword: str, value: object) -> None:
    folder = write_series(tmp_path / "series")
    last = in_order(folder)[-1]
    rewrite(last, **{keyword: value})
    said = fault(folder)
    assert keyword in said
    assert last.name in said


def test_a_slice_of_another_size_is_named(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    last = in_order(folder)[-1]
    rewrite(last, Rows=10, PixelData=bytes(10 * 24 * 2))
    assert last.name in fault(folder)
    assert "Rows" in fault(folder)


def test_a_gap_and_a_doubled_position(tmp_path: Path) -> None:
    gap = write_series(tmp_path / "gap")
    files = in_order(gap)
    files[2].unlink()
    said = fault(gap)
    assert "6.00 mm" in said
    assert "3.00 mm" in said
    assert files[1].name in said
    assert files[3].name in said
    double = write_series(tmp_path / "double")
    files = in_order(double)
    position = pydicom.dcmread(files[4]).ImagePositionPatient
    rewrite(files[5], ImagePositionPatient=position)
    assert "several volumes (echoes, times, b-values)" in fault(double)
    copied = write_series(tmp_path / "copied")
    shutil.copy(in_order(copied)[0], copied / "copy.dcm")
    assert "the same SOPInstanceUID as" in fault(copied)


@pytest.mark.parametrize("place", [0, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.95, 0.999])
def test_a_slice_cut_short_is_never_left_out(tmp_path: Path, place: int, share: float) -> None:
    folder = write_series(tmp_path / "series")
    file = in_order(folder)[place]
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert file.name in fault(folder)


def test_fuzzed_series_are_read_whole_or_refused(tmp_path: Path) -> None:
    """A changed byte in the header of an end slice: all slices in their places, or an error."""
    folder = write_series(tmp_path / "series")
    whole, file = read_volume(folder), in_order(folder)[-1]
    original = file.read_bytes()
    rng = np.random.default_rng(0)
    said: list[str] = []
    for _ in range(80):
        raw = bytearray(original)
        raw[int(rng.integers(128, len(raw) - 20 * 24 * 2))] = int(rng.integers(256))
        file.write_bytes(raw)
        try:
            volume = read_volume(folder)
        except SmgError as error:
            said.append(str(error))
            continue
        assert volume.array.shape == whole.array.shape
        assert np.array_equal(volume.array[:-1], whole.array[:-1])
        assert np.abs(volume.affine - whole.affine).max() < 0.05 * 3.0
    assert len(said) > 20
    assert not any("ROSENKRANTZ" in line for line in said)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    series = read_series(folder)
    stray = folder / "IM0007"
    stray.write_bytes(b"")
    assert "IM0007: named as a slice, but no DICOM file" in fault(folder)
    data = pydicom.dcmread(in_order(folder)[0])
    for keyword in ("Rows", "Columns", "PixelData"):
        delattr(data, keyword)
    data.Modality, data.SOPInstanceUID = "SR", generate_uid()
    data.save_as(stray, enforce_file_format=False)
    assert "IM0007: holds no image (modality SR)" in fault(folder)
    stray.unlink()
    assert len(read_series(folder).planes) == len(series.planes)


def test_a_file_without_the_mark_belongs_to_the_series_too(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    file = in_order(folder)[-1]
    data = pydicom.dcmread(file)
    del data.file_meta
    data.preamble = None
    data.save_as(file, implicit_vr=True, little_endian=True, enforce_file_format=False)
    assert file.read_bytes()[128:132] != b"DICM"
    assert np.array_equal(read_volume(folder).array, image())


def test_one_slice_needs_a_thickness(tmp_path: Path) -> None:
    one = write_series(tmp_path / "one", image()[:1])
    assert read_volume(one).spacing == pytest.approx((0.5, 0.7, 3.0))
    rewrite(in_order(one)[0], "SliceThickness")
    assert "SliceThickness" in fault(one)


# --- several series ---------------------------------------------------------------------------------------------------


def test_several_series_are_listed_and_one_can_be_chosen(tmp_path: Path) -> None:
    folder, one, other = tmp_path / "study", generate_uid(), generate_uid()
    write_series(folder, image(), series=one)
    write_series(folder, image()[:4] + 1, series=other)
    said = fault(folder)
    assert "holds 2 series" in said
    assert f"{one} (MR, 6 slices)" in said
    assert f"{other} (MR, 4 slices)" in said
    assert "--series UID" in said
    for uid, array in ((one, image()), (other, image()[:4] + 1)):
        assert is_series(folder / uid)
        assert is_scan(folder / uid)
        assert np.array_equal(read_volume(folder / uid).array, array)
        assert len(source_files(folder / uid)) == len(array)
    assert f"{one} (MR, 6 slices)" in fault(folder / "1.2.3")
    assert not is_scan(tmp_path / "1.2.3")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_header_that_announces_gigabytes_is_not_believed(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series")
    for file in in_order(folder):
        rewrite(file, Rows=16000, Columns=16000)
    assert "over the limit of 2.0 GiB" in fault(folder)
    for file in in_order(folder):
        rewrite(file, Rows=1000, Columns=1000)
    assert "where its header announces 2,000,000" in fault(folder)


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_series(tmp_path / "series")
    pydicom_module.cache_clear()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    try:
        assert is_scan(folder)
        with pytest.raises(SmgError, match=r"pip install 'smg-learning\[dicom\]'"):
            in_process.read_header(folder)
    finally:
        pydicom_module.cache_clear()
