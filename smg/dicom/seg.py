"""DICOM Segmentation (SEG): a segment a class, one bit a voxel, each frame with a reference to its slice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smg.dicom.codes import STRUCTURE, Code
from smg.dicom.dicom_files import Array, highdicom_module, no_header_values, open_dicom, pydicom_module
from smg.dicom.outgoing import MAKER, Origin, Structure, check_series, copy_patient, save
from smg.dicom.pixels import KEYWORDS as PIXELS
from smg.dicom.pixels import decode
from smg.dicom.planes import GROUPS, Plane
from smg.dicom.series import Series
from smg.errors import SmgError

SOP_CLASS = "1.2.840.10008.5.1.4.1.1.66.4"
NUMBER = 9001  # of the series that a SEG is
KEYWORDS = ("SOPClassUID", "SegmentationType", "SegmentSequence", "FrameOfReferenceUID", *GROUPS)


# --- reading ----------------------------------------------------------------------------------------------------------


def segment_names(data: Any) -> dict[int, str]:
    """Return the segments of an open SEG: number -> label."""
    return {
        int(s.SegmentNumber): str(s.get("SegmentLabel") or f"segment {s.SegmentNumber}") for s in data.SegmentSequence
    }


def read_seg(path: Path, series: Series, numbers: Sequence[Sequence[int]]) -> Array:
    """Return a mask on the series' grid: 1 where the first group of segments is, 2 the second, later over earlier."""
    data = open_dicom(path, (*KEYWORDS, *PIXELS), pixels=True)
    with no_header_values("not a SEG that can be read: cut short or corrupt; copy the file again"):
        if data.SegmentationType != "BINARY":
            raise SmgError(f"a SEG of type {data.SegmentationType}; one of type BINARY is read")
        if (data.Rows, data.Columns) != series.size:
            raise SmgError(f"its frames are {data.Columns} x {data.Rows}, and the slices of the series "
                           f"{series.size[1]} x {series.size[0]}: it is of another series; give that one")  # fmt: skip
        pixels = decode(data).astype(bool)
        shared = list(data.get(GROUPS[0]) or [])
        frames = list(data[GROUPS[1]].value)
        if len(frames) != len(pixels):
            raise SmgError(f"holds {len(pixels)} frames and describes {len(frames)}; export it again")
        places = _Places(series)
        found = [
            (_segment(frame, shared), places.slice_of(frame, shared, n)) for n, frame in enumerate(frames, start=1)
        ]
    mask = np.zeros(series.shape, np.uint8)
    for value, group in enumerate(numbers, start=1):
        for (segment, index), frame in zip(found, pixels, strict=True):
            if segment in group:
                mask[index][frame] = value
    return mask


def _segment(frame: Any, shared: Sequence[Any]) -> int:
    for group in (frame, *shared):
        if "SegmentIdentificationSequence" in group:
            return int(group.SegmentIdentificationSequence[0].ReferencedSegmentNumber)
    raise SmgError("a frame names no segment; export it again")


class _Places:
    """Finds the slice that a frame lies on: by its reference, and where it has none by its position."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.by_reference = {(plane.instance, plane.frame): n for n, plane in enumerate(series.planes)}
        self.instances = {plane.instance for plane in series.planes}
        self.positions = np.array([plane.position for plane in series.planes])
        first = series.planes[0]
        self.tolerance = 0.1 * min(*first.spacing, float(np.linalg.norm(series.step)))

    def slice_of(self, frame: Any, shared: Sequence[Any], number: int) -> int:
        """Return the index of the frame's slice; position, orientation and spacing must be the slice's, too."""
        references = _references(frame)
        named = {self.by_reference[key] for key in references if key in self.by_reference}
        known = any(instance in self.instances for instance, _ in references)
        position = _group(frame, shared, "PlanePositionSequence", "ImagePositionPatient")
        if references and not known:
            raise SmgError(f"frame {number} refers to no slice of the series; give the series that it was drawn on")
        if len(named) == 1:
            index = named.pop()
        elif position is not None:
            index = int(np.linalg.norm(self.positions - position, axis=1).argmin())
        else:
            raise SmgError(f"frame {number} has neither the reference of a slice nor a position; export it again")
        plane = self.series.planes[index]
        orientation = _group(frame, shared, "PlaneOrientationSequence", "ImageOrientationPatient")
        spacing = _group(frame, shared, "PixelMeasuresSequence", "PixelSpacing")
        off = (
            (position is not None and np.linalg.norm(position - plane.position) > self.tolerance)
            or (orientation is not None and np.abs(orientation - plane.orientation.ravel()).max() > 0.01)
            or (spacing is not None and not np.allclose(spacing, plane.spacing, rtol=1e-2))
        )
        if off:
            raise SmgError(
                f"frame {number} lies on another grid than its slice {plane.name}; resample it to the series"
            )
        return index


def _references(frame: Any) -> list[tuple[str, int | None]]:
    """Return the slices that a frame names as its sources: instance, and frame where it is one of many."""
    return [
        (str(source.ReferencedSOPInstanceUID), int(number) if number is not None else None)
        for derivation in frame.get("DerivationImageSequence") or []
        for source in derivation.get("SourceImageSequence") or []
        for number in np.atleast_1d(source.get("ReferencedFrameNumber"))
    ]


def _group(frame: Any, shared: Sequence[Any], sequence: str, keyword: str) -> Array | None:
    for group in (frame, *shared):
        for item in group.get(sequence) or []:
            if item.get(keyword) is not None:
                return np.array(item.get(keyword), np.float64)
    return None


# --- writing ----------------------------------------------------------------------------------------------------------


def write_seg(path: Path, series: Series, mask: Array, structures: Sequence[Structure], origin: Origin) -> None:
    """Write class indices, [slice, row, column], as a SEG of the series: every frame, also an empty one."""
    check_series(series, "SEG")
    hd, pydicom = highdicom_module(), pydicom_module()
    if len(series.files) > 1 and series.planes[0].frame is not None:
        raise SmgError("the series has several files with many slices each; write NIfTI (--as nifti)")
    with no_header_values("cannot be written as SEG"):
        algorithm = hd.AlgorithmIdentificationSequence(
            name=MAKER,
            family=pydicom.sr.codedict.codes.cid7162.ArtificialIntelligence,
            version=origin.version_line,
            parameters=origin.parameters,
        )
        segments = [
            hd.seg.SegmentDescription(
                segment_number=number,
                segment_label=structure.name[:64],
                segmented_property_category=_concept(STRUCTURE),
                segmented_property_type=_concept(structure.code),
                algorithm_type="AUTOMATIC",
                algorithm_identification=algorithm,
                tracking_uid=pydicom.uid.generate_uid(),
                tracking_id=f"{structure.name[:40]} {origin.digest[:12]}",
            )
            for number, structure in enumerate(structures, start=1)
        ]
        made = hd.seg.Segmentation(
            source_images=_sources(series),
            pixel_array=mask[_stored_order(series)].astype(np.uint8),
            segmentation_type="BINARY",
            segment_descriptions=segments,
            series_instance_uid=pydicom.uid.generate_uid(),
            series_number=NUMBER,
            sop_instance_uid=pydicom.uid.generate_uid(),
            instance_number=1,
            manufacturer=MAKER,
            manufacturer_model_name="smg predict",
            software_versions=origin.version,
            device_serial_number=origin.digest[:16],
            content_label="SEGMENTATION",
            content_description=origin.description,
            series_description=origin.description,
            omit_empty_frames=False,
        )
    copy_patient(series, made, [structure.name for structure in structures])
    save(made, path)


def _concept(code: Code) -> Any:
    return highdicom_module().sr.CodedConcept(code.value, code.scheme, code.meaning)


def _sources(series: Series) -> list[Any]:
    """Return what highdicom needs to know of the slices, without the patient: it would log a name that looks odd.

    The thickness is that of the slices, or their distance where the series does not say.
    """
    pydicom = pydicom_module()

    def data_set(**fields: Any) -> Any:
        data = pydicom.Dataset()
        for keyword, value in fields.items():
            setattr(data, keyword, value)
        return data

    def source(plane: Plane, **fields: Any) -> Any:
        made = data_set(
            SOPClassUID=series.sop_class,
            SOPInstanceUID=plane.instance,
            StudyInstanceUID=series.study,
            SeriesInstanceUID=series.uid,
            FrameOfReferenceUID=series.frame_of_reference,
            PositionReferenceIndicator="",
            Modality=series.modality,
            Rows=series.size[0],
            Columns=series.size[1],
            **dict.fromkeys(("PatientID", "PatientName", "PatientSex", "AccessionNumber", "StudyID"), ""),
            **dict.fromkeys(("PatientBirthDate", "StudyDate", "StudyTime")),
            **fields,
        )
        made.file_meta = pydicom.dataset.FileMetaDataset()
        made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        return made

    first, between = series.planes[0], abs(float(series.step @ series.normal))
    measures = {
        "PixelSpacing": [round(mm, 9) for mm in first.spacing],
        "SliceThickness": round(first.thickness or between, 6),
        "SpacingBetweenSlices": round(between, 6),
    }
    orientation = {"ImageOrientationPatient": [round(float(c), 9) for c in first.orientation.ravel()]}
    positions = [{"ImagePositionPatient": [round(float(mm), 6) for mm in plane.position]} for plane in series.planes]
    if first.frame is None:
        return [
            source(plane, **measures, **orientation, **position)
            for plane, position in zip(series.planes, positions, strict=True)
        ]
    shared = data_set(PixelMeasuresSequence=[data_set(**measures)], PlaneOrientationSequence=[data_set(**orientation)])
    frames = [data_set(PlanePositionSequence=[data_set(**positions[n])]) for n in _stored_order(series)]
    whole = {"NumberOfFrames": len(frames), GROUPS[0]: [shared], GROUPS[1]: frames}
    return [source(first, **whole)]


def _stored_order(series: Series) -> list[int]:
    """Return the slices in the order in which a file of many has them."""
    return sorted(range(len(series.planes)), key=lambda n: series.planes[n].frame or n)
