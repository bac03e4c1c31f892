"""Masks as SEG and RTSTRUCT: written and read back voxel for voxel, valid, and faithful to the study."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pydicom
import pytest

from smg.dicom.codes import PERIPHERAL, PROSTATE, STRUCTURE, Code, code_of
from smg.dicom.dicom_masks import mask_structures, read_mask
from smg.dicom.outgoing import Origin, Structure
from smg.dicom.rtstruct import write_rtstruct
from smg.dicom.seg import write_seg
from smg.dicom.series import Series, read_series
from smg.errors import Misuse, SmgError
from tests.dicom.conftest import Validate
from tests.dicom.made import (
    ANONYMISED,
    NAME,
    PATIENT,
    PERMUTED,
    PLAIN,
    image,
    oblique,
    rewrite,
    write_enhanced,
    write_series,
)
from tests.dicom.test_polygons import ellipse

WRITERS = {"seg": write_seg, "rtstruct": write_rtstruct}
KINDS = ("plain", "oblique", "permuted", "anonymised", "empty", "enhanced")
ORIGIN = Origin("0.9.1", 3, "ab" * 32, False)
ONE = [Structure("prostate", PROSTATE)]
TWO = [Structure("pz", PERIPHERAL), Structure("lesion", STRUCTURE)]
MISSING = ("needed to build DICOMDIR", "present in one instance but not the other")  # what the anonymised series lacks


def two_classes(series: Series) -> np.ndarray:
    """Return a mask of two classes that touch, with a hole, pieces apart, and voxels that meet at a corner."""
    mask = np.zeros(series.shape, np.uint8)
    mask[1:-1, 5:14, 7:18] = 1
    mask[2:4, 7:9, 9:12] = 2
    mask[2, 11, 12] = 0
    mask[3, 16, 2] = mask[3, 17, 3] = 1
    mask[-1, 0, 0] = mask[-1, -1, -1] = 2
    return mask


def make(folder: Path, kind: str) -> tuple[Path, Series, np.ndarray]:
    """Write a series of a kind; return its folder, the series, and a mask of two classes."""
    if kind == "enhanced":
        write_enhanced(folder, image(), oblique(), reverse=True)
    else:
        direction = {"oblique": oblique(), "permuted": PERMUTED}.get(kind, PLAIN)
        write_series(folder, image(), direction, without=ANONYMISED if kind == "anonymised" else ())
    series = read_series(folder)
    return folder, series, two_classes(series) * (kind != "empty")


@pytest.mark.parametrize("written", WRITERS)
@pytest.mark.parametrize("kind", KINDS)
def test_written_and_read_back(tmp_path: Path, kind: str, written: str) -> None:
    _, series, mask = make(tmp_path / "series", kind)
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, mask, TWO, ORIGIN)
    assert mask_structures(made) == {1: "pz", 2: "lesion"}
    assert np.array_equal(read_mask(made, series, ["pz", "lesion"]), mask)
    assert np.array_equal(read_mask(made, series, ["lesion"]), mask == 2)
    assert np.array_equal(read_mask(made, series, ["Lesion", "PZ"]), np.array([0, 2, 1], np.uint8)[mask])


@pytest.mark.parametrize("written", WRITERS)
@pytest.mark.parametrize("structures", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_dicom3tools_find_nothing_wrong(
    tmp_path: Path, kind: str, structures: list[Structure], written: str, validate: Validate
) -> None:
    folder, series, mask = make(tmp_path / "series", kind)
    WRITERS[written](tmp_path / "made.dcm", series, np.minimum(mask, len(structures)), structures, ORIGIN)
    validate(tmp_path / "made.dcm", folder, *(MISSING if kind == "anonymised" else ()))


@pytest.mark.parametrize("written", WRITERS)
def test_one_class_needs_no_name(tmp_path: Path, written: str) -> None:
    _, series, mask = make(tmp_path / "series", "plain")
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, np.minimum(mask, 1), ONE, ORIGIN)
    assert np.array_equal(read_mask(made, series), np.minimum(mask, 1))


@pytest.mark.parametrize("written", WRITERS)
def test_names_that_are_not_there_or_too_many(tmp_path: Path, written: str) -> None:
    _, series, mask = make(tmp_path / "series", "plain")
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, mask, TWO, ORIGIN)
    with pytest.raises(SmgError, match=r"2 structures \(pz, lesion\); choose with --roi NAME"):
        read_mask(made, series)
    with pytest.raises(SmgError, match=r"no structure 'prostate', but pz, lesion"):
        read_mask(made, series, ["prostate"])
    with pytest.raises(SmgError, match=r"neither SEG nor RTSTRUCT \(modality MR\)"):
        read_mask(series.files[0], series)


@pytest.mark.parametrize("written", WRITERS)
def test_a_mask_of_another_series_is_refused(tmp_path: Path, written: str) -> None:
    _, series, mask = make(tmp_path / "series", "plain")
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, mask, TWO, ORIGIN)
    other = read_series(write_series(tmp_path / "other"))
    with pytest.raises(SmgError, match="give the series"):
        read_mask(made, other, ["pz"])
    smaller = read_series(write_series(tmp_path / "smaller", image()[:, :-2]))
    with pytest.raises(SmgError, match=r"another series|give the series"):
        read_mask(made, smaller, ["pz"])


@pytest.mark.parametrize("written", WRITERS)
def test_it_belongs_to_the_study_and_says_what_made_it(tmp_path: Path, written: str) -> None:
    folder, series, mask = make(tmp_path / "series", "oblique")
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, mask, TWO, Origin("0.9.1", 3, "cd" * 32, True))
    data, source = pydicom.dcmread(made), pydicom.dcmread(next(folder.iterdir()))
    assert (data.PatientName, data.PatientID) == (NAME, PATIENT)
    for keyword in ("PatientBirthDate", "StudyInstanceUID", "StudyDate", "AccessionNumber", "FrameOfReferenceUID"):
        assert data[keyword].value == source[keyword].value
    assert data.SeriesInstanceUID != source.SeriesInstanceUID
    assert "UNLIKE" in data.SeriesDescription
    assert data.DeviceSerialNumber == "cd" * 8
    if written == "seg":
        assert "UNLIKE" in data.ContentDescription
        assert data.SegmentationType == "BINARY"
        segment = data.SegmentSequence[0]
        assert segment.SegmentAlgorithmType == "AUTOMATIC"
        algorithm = segment.SegmentationAlgorithmIdentificationSequence[0]
        assert algorithm.AlgorithmVersion == "0.9.1, round 3"
        assert f"weights_sha256={'cd' * 32}" in algorithm.AlgorithmParameters
        assert "unlike=true" in algorithm.AlgorithmParameters
        assert segment.SegmentedPropertyTypeCodeSequence[0].CodeValue == "279706003"
        assert data.NumberOfFrames == 2 * len(mask)
        sources = {
            frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
            for frame in data.PerFrameFunctionalGroupsSequence
        }
        assert sources == {plane.instance for plane in series.planes}
    else:
        assert "cd" * 32 in data.StructureSetDescription
        assert data.RTROIObservationsSequence[0].RTROIIdentificationCodeSequence[0].CodeValue == "279706003"


@pytest.mark.parametrize("written", WRITERS)
@pytest.mark.parametrize("keyword", ["FrameOfReferenceUID", "StudyInstanceUID"])
def test_what_cannot_be_empty_is_asked_for(tmp_path: Path, written: str, keyword: str) -> None:
    series = read_series(write_series(tmp_path / "series", without=(keyword,)))
    with pytest.raises(SmgError, match=f"no {keyword}"):
        WRITERS[written](tmp_path / "made.dcm", series, np.zeros(series.shape, np.uint8), ONE, ORIGIN)
    assert not (tmp_path / "made.dcm").exists()


@pytest.mark.parametrize("written", WRITERS)
@pytest.mark.parametrize(
    ("name", "charset", "label"),
    [
        ("SECRETNAME", None, "prostate"),  # one part: highdicom would log it
        ("SECRET\\NAME^^^^^^^^", None, "prostate"),
        ("Sécrêt^Näme", "ISO_IR 100", "prostate"),
        ("Sécrêt^Näme", "ISO_IR 100", "前立腺"),
        ("Yamada^Tarou=山田^太郎", "ISO_IR 192", "prostate"),
    ],
)
def test_names_pass_from_file_to_file_and_nowhere_else(
    tmp_path: Path,
    written: str,
    name: str,
    charset: str | None,
    label: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    fields = {"SpecificCharacterSet": charset} if charset else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pydicom.config.settings, "_writing_validation_mode", pydicom.config.IGNORE)
        folder = write_series(tmp_path / "series", **fields, PatientName=name, PatientSex="male?", StudyDate="long ago")
    recwarn.clear()
    caplog.clear()  # what pydicom said of the test's own writing
    capfd.readouterr()
    caplog.set_level(logging.DEBUG)
    series = read_series(folder)
    made = tmp_path / "made.dcm"
    WRITERS[written](made, series, two_classes(series) * 0, [Structure(label, PROSTATE)], ORIGIN)
    assert mask_structures(made) == {1: label}
    assert str(pydicom.dcmread(made).PatientName) == str(pydicom.dcmread(series.files[0]).PatientName)
    printed = "".join([*capfd.readouterr(), caplog.text, *(str(w.message) for w in recwarn)])
    for secret in ("SECRET", "Sécrêt", "Yamada", PATIENT, "male?", "long ago"):
        assert secret not in printed


# --- SEG of others ----------------------------------------------------------------------------------------------------


def test_frames_of_a_seg_are_placed_by_reference_in_any_order(tmp_path: Path) -> None:
    _, series, mask = make(tmp_path / "series", "oblique")
    made = tmp_path / "made.dcm"
    write_seg(made, series, np.minimum(mask, 1), ONE, ORIGIN)
    data = pydicom.dcmread(made)
    pixels, groups = data.pixel_array, list(data.PerFrameFunctionalGroupsSequence)
    keep = [4, 2, 1, 3]  # without the first and the last, of which the first is empty
    data.PerFrameFunctionalGroupsSequence = [groups[n] for n in keep]
    data.NumberOfFrames = len(keep)
    data.PixelData = np.packbits(pixels[keep].ravel(), bitorder="little").tobytes()
    data.save_as(made)
    expected = np.minimum(mask, 1)
    expected[-1] = 0
    assert np.array_equal(read_mask(made, series), expected)
    for group in data.PerFrameFunctionalGroupsSequence:
        del group.DerivationImageSequence  # then by position
    data.save_as(made)
    assert np.array_equal(read_mask(made, series), expected)
    data.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].ImagePositionPatient = [5, 6, 7.9]
    data.save_as(made)
    with pytest.raises(SmgError, match="frame 1 lies on another grid"):
        read_mask(made, series)


def test_a_seg_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    _, series, mask = make(tmp_path / "series", "plain")
    made = tmp_path / "made.dcm"
    write_seg(made, series, mask, TWO, ORIGIN)
    whole = made.read_bytes()
    rewrite(made, SegmentationType="FRACTIONAL")
    with pytest.raises(SmgError, match="type FRACTIONAL"):
        read_mask(made, series, ["pz"])
    for share in (0.3, 0.9, 0.999):
        made.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(SmgError):
            read_mask(made, series, ["pz"])


# --- RTSTRUCT of others -----------------------------------------------------------------------------------------------


def contoured(path: Path, series: Series, points: list[np.ndarray], kind: str = "CLOSED_PLANAR") -> None:
    """Write an RTSTRUCT and put other contours, in millimetres, in the place of its own."""
    write_rtstruct(path, series, np.ones(series.shape, np.uint8), ONE, ORIGIN)
    data = pydicom.dcmread(path)
    contours = data.ROIContourSequence[0].ContourSequence
    del contours[len(points) :]
    for contour, of in zip(contours, points, strict=True):
        contour.ContourData = [f"{mm:.4f}" for mm in of.ravel()]
        contour.NumberOfContourPoints, contour.ContourGeometricType = len(of), kind
    data.save_as(path)


def on_plane(series: Series, index: int, xy: np.ndarray, off: float = 0.0) -> np.ndarray:
    """Return pixel coordinates in millimetres, on a slice's plane or off it."""
    plane = series.planes[index]
    across, down = xy[:, :1] * plane.spacing[1], xy[:, 1:] * plane.spacing[0]
    return plane.position + across * plane.orientation[0] + down * plane.orientation[1] + off * series.normal


@pytest.mark.parametrize("direction", [PLAIN, oblique(), PERMUTED])
def test_contours_of_ellipses_have_their_area(tmp_path: Path, direction: np.ndarray) -> None:
    series = read_series(write_series(tmp_path / "series", image((4, 120, 130)), direction))
    drawn = [ellipse((60.3 + n, 55.8), (41.0 - n, 30.0 + n), 0.3 * n) for n in range(4)]
    contoured(tmp_path / "rt.dcm", series, [on_plane(series, n, xy, 0.02) for n, xy in enumerate(drawn)])
    mask = read_mask(tmp_path / "rt.dcm", series)
    for n in range(4):
        assert mask[n].sum() == pytest.approx(np.pi * (41 - n) * (30 + n), rel=0.005)


def test_contours_off_every_plane_are_a_fault(tmp_path: Path) -> None:
    series = read_series(write_series(tmp_path / "series", image(), oblique()))
    square = np.array([[5.0, 5], [12, 5], [12, 12], [5, 12]])
    for off, index in ((1.5, 2), (-3.0, 0), (3.0, 5)):
        contoured(tmp_path / "rt.dcm", series, [on_plane(series, index, square, off)])
        with pytest.raises(SmgError, match=f"prostate: a contour lies {abs(off):.2f} mm off every slice"):
            read_mask(tmp_path / "rt.dcm", series)
    tilted = on_plane(series, 2, square)
    tilted[0] += 1.5 * series.normal
    contoured(tmp_path / "rt.dcm", series, [tilted])
    with pytest.raises(SmgError, match="off every slice"):
        read_mask(tmp_path / "rt.dcm", series)


def test_contours_within_contours_are_holes(tmp_path: Path) -> None:
    series = read_series(write_series(tmp_path / "series", image()))
    outer, inner = (np.array([[a, a], [b, a], [b, b], [a, b]], float) for a, b in ((3.5, 15.5), (6.5, 10.5)))
    contoured(tmp_path / "rt.dcm", series, [on_plane(series, 2, xy) for xy in (outer, inner)], "CLOSEDPLANAR_XOR")
    assert read_mask(tmp_path / "rt.dcm", series).sum() == 12 * 12 - 4 * 4
    contoured(tmp_path / "rt.dcm", series, [on_plane(series, 2, outer)], "OPEN_PLANAR")
    with pytest.raises(SmgError, match="type OPEN_PLANAR"):
        read_mask(tmp_path / "rt.dcm", series)


# --- codes ------------------------------------------------------------------------------------------------------------


def test_codes_come_from_the_settings_then_the_table() -> None:
    assert code_of("Prostate", {}) == Code("SCT", "41216001", "Prostate")
    assert code_of("Peripheral_Zone", {}).value == "279706003"
    assert code_of("TZ", {}).value == "399384005"
    assert code_of("foreground", {}) == STRUCTURE
    assert code_of("foreground", {"foreground": "SCT:64033007:Kidney"}) == Code("SCT", "64033007", "Kidney")
    with pytest.raises(Misuse, match="SCHEME:VALUE:MEANING"):
        code_of("a", {"a": "41216001"})
