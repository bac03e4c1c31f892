"""DICOM RT Structure Set (RTSTRUCT): a mask as closed contours in the planes of its slices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from smg.dicom.dicom_files import Array, no_header_values, open_dicom, pydicom_module
from smg.dicom.outgoing import MAKER, Origin, Structure, check_series, copy_patient, save
from smg.dicom.polygons import fill, outlines
from smg.dicom.series import Series
from smg.errors import SmgError

SOP_CLASS = "1.2.840.10008.5.1.4.1.1.481.3"
STUDY_CLASS = "1.2.840.10008.3.1.2.3.1"  # Detached Study Management, retired and still what refers to a study here
NUMBER = 9002  # of the series that an RTSTRUCT is
OFF_PLANE = 0.1  # largest distance of a contour from its slice's plane, as a share of the distance between slices
KEYWORDS = ("SOPClassUID", "StructureSetROISequence", "ROIContourSequence")
CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
COLOURS = ((255, 127, 14), (31, 119, 180), (44, 160, 44), (214, 39, 40), (148, 103, 189))


# --- reading ----------------------------------------------------------------------------------------------------------


def structure_names(data: Any) -> dict[int, str]:
    """Return the structures of an open RTSTRUCT: number -> name."""
    return {
        int(roi.ROINumber): str(roi.get("ROIName") or f"ROI {roi.ROINumber}") for roi in data.StructureSetROISequence
    }


def read_rtstruct(path: Path, series: Series, numbers: Sequence[Sequence[int]]) -> Array:
    """Return a mask on the series' grid: 1 inside the first group of structures, 2 the second, later over earlier.

    A voxel is inside where its centre lies within an odd number of the structure's contours on its slice. A contour
    that lies on no slice's plane is an error.
    """
    data = open_dicom(path, KEYWORDS)
    with no_header_values("not an RTSTRUCT that can be read: cut short or corrupt; copy the file again"):
        names = structure_names(data)
        frames = {int(r.ROINumber): r.get("ReferencedFrameOfReferenceUID") for r in data.StructureSetROISequence}
        contours = {
            int(roi.ReferencedROINumber): list(roi.get("ContourSequence") or [])
            for roi in data.get("ROIContourSequence") or []
        }
        mask = np.zeros(series.shape, np.uint8)
        for value, group in enumerate(numbers, start=1):
            for number in group:
                if series.frame_of_reference and frames[number] not in (None, "", series.frame_of_reference):
                    raise SmgError(
                        f"{names[number]}: drawn in another frame of reference; give the series it was drawn on"
                    )
                for index, polygons in _by_slice(contours.get(number, []), series, names[number]).items():
                    mask[index][fill(polygons, series.size)] = value
    return mask


def _by_slice(contours: Sequence[Any], series: Series, name: str) -> dict[int, list[Array]]:
    """Return a structure's contours in pixels, by the slice that they lie on."""
    found: dict[int, list[Array]] = {}
    levels = np.array([plane.position @ series.normal for plane in series.planes])
    between = abs(float(series.step @ series.normal))
    for contour in contours:
        if contour.ContourGeometricType not in CLOSED:
            raise SmgError(f"{name}: has a contour of type {contour.ContourGeometricType}; closed ones are read")
        points = np.array(contour.ContourData, np.float64).reshape(-1, 3)
        off = np.abs((points @ series.normal)[:, None] - levels)  # [points, slices]
        index = int(off.max(axis=0).argmin())
        if len(points) < 3 or not np.isfinite(points).all():
            raise SmgError(f"{name}: a contour of {len(points)} points encloses nothing; remove it")
        if (farthest := float(off[:, index].max())) > OFF_PLANE * between:
            raise SmgError(f"{name}: a contour lies {farthest:.2f} mm off every slice's plane; "
                           "give the series that it was drawn on")  # fmt: skip
        plane = series.planes[index]
        found.setdefault(index, []).append(
            (points - plane.position) @ plane.orientation.T / (plane.spacing[1], plane.spacing[0])
        )
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def write_rtstruct(path: Path, series: Series, mask: Array, structures: Sequence[Structure], origin: Origin) -> None:
    """Write class indices, [slice, row, column], as an RTSTRUCT of the series: contours along the edges of voxels."""
    check_series(series, "RTSTRUCT")
    pydicom = pydicom_module()
    with no_header_values("cannot be written as RTSTRUCT"):
        made = _made(pydicom, series, mask, structures, origin)
    copy_patient(series, made, [structure.name for structure in structures])
    save(made, path)


def _made(pydicom: Any, series: Series, mask: Array, structures: Sequence[Structure], origin: Origin) -> Any:
    now = datetime.now()
    numbered = list(enumerate(structures, start=1))

    def item(**fields: Any) -> Any:
        data = pydicom.Dataset()
        for keyword, value in fields.items():
            setattr(data, keyword, value)
        return data

    def image(index: int) -> Any:
        plane = series.planes[index]
        referred = item(ReferencedSOPClassUID=series.sop_class, ReferencedSOPInstanceUID=plane.instance)
        if plane.frame is not None:
            referred.ReferencedFrameNumber = plane.frame
        return referred

    def contour(index: int, polygon: Array) -> Any:
        points = _points(series, index, polygon)
        return item(
            ContourImageSequence=[image(index)],
            ContourGeometricType=CLOSED[0],
            NumberOfContourPoints=len(polygon),
            ContourData=[f"{mm:.6f}" for mm in points.ravel()],
        )

    def contours(value: int) -> list[Any]:
        there = [index for index, plane in enumerate(mask) if (plane == value).any()]
        return [contour(index, polygon) for index in there for polygon in outlines(mask[index] == value)]

    made = item(
        SOPClassUID=SOP_CLASS,
        SOPInstanceUID=pydicom.uid.generate_uid(),
        InstanceCreationDate=now.strftime("%Y%m%d"),
        InstanceCreationTime=now.strftime("%H%M%S"),
        StudyInstanceUID=series.study,
        SeriesInstanceUID=pydicom.uid.generate_uid(),
        SeriesNumber=NUMBER,
        SeriesDescription=origin.description,
        Modality="RTSTRUCT",
        OperatorsName="",
        Manufacturer=MAKER,
        ManufacturerModelName="smg predict",
        DeviceSerialNumber=origin.digest[:16],
        SoftwareVersions=origin.version,
        InstanceNumber=1,
        FrameOfReferenceUID=series.frame_of_reference,
        PositionReferenceIndicator="",
        StructureSetLabel="SEGMENTATION",
        StructureSetDescription=f"{origin.description}; weights sha256 {origin.digest}, {origin.version_line}",
        StructureSetDate=now.strftime("%Y%m%d"),
        StructureSetTime=now.strftime("%H%M%S"),
        ApprovalStatus="UNAPPROVED",
    )
    images = [image(index) for index in range(len(series.planes))]
    referred = item(SeriesInstanceUID=series.uid, ContourImageSequence=images)
    study = item(
        ReferencedSOPClassUID=STUDY_CLASS, ReferencedSOPInstanceUID=series.study, RTReferencedSeriesSequence=[referred]
    )
    made.ReferencedFrameOfReferenceSequence = [
        item(FrameOfReferenceUID=series.frame_of_reference, RTReferencedStudySequence=[study])
    ]
    made.StructureSetROISequence = [
        item(
            ROINumber=number,
            ReferencedFrameOfReferenceUID=series.frame_of_reference,
            ROIName=structure.name[:64],
            ROIGenerationAlgorithm="AUTOMATIC",
            ROIGenerationDescription=f"{MAKER} {origin.version_line}"[:64],
        )
        for number, structure in numbered
    ]
    made.ROIContourSequence = [
        item(ReferencedROINumber=number, ROIDisplayColor=list(COLOURS[(number - 1) % len(COLOURS)]))
        for number, _ in numbered
    ]
    for (number, _), roi in zip(numbered, made.ROIContourSequence, strict=True):
        if there := contours(number):
            roi.ContourSequence = there
    made.RTROIObservationsSequence = [
        item(
            ObservationNumber=number,
            ReferencedROINumber=number,
            RTROIInterpretedType="ORGAN",
            ROIInterpreter="",
            RTROIIdentificationCodeSequence=[
                item(
                    CodeValue=structure.code.value,
                    CodingSchemeDesignator=structure.code.scheme,
                    CodeMeaning=structure.code.meaning,
                )
            ],
        )
        for number, structure in numbered
    ]
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = SOP_CLASS
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    return made


def _points(series: Series, index: int, polygon: Array) -> Array:
    """Return a polygon's corners in millimetres, on the plane of its slice."""
    plane = series.planes[index]
    steps = plane.orientation * np.array([[plane.spacing[1]], [plane.spacing[0]]])
    return plane.position + polygon @ steps
