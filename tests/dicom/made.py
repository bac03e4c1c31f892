"""DICOM series made for tests, as scanners and archives write them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.uid import EnhancedMRImageStorage, ExplicitVRLittleEndian, MRImageStorage, generate_uid

NAME, PATIENT = "ROSENKRANTZ^GUILDEN", "PID-774411"
PLAIN = np.eye(3)
PERMUTED = np.eye(3)[:, [1, 2, 0]]  # rows and columns in a sagittal plane
ANONYMISED = (
    "PatientBirthDate", "PatientSex", "StudyID", "AccessionNumber", "StudyDate", "StudyTime", "SliceThickness",
    "ReferringPhysicianName", "Manufacturer",
)  # fmt: skip


def oblique(degrees: float = 17.0) -> np.ndarray:
    """Return directions turned about two axes, so that no entry is zero."""
    a, b = np.radians([degrees, degrees / 2])
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    return about_x @ about_z


def image(shape: tuple[int, int, int] = (6, 20, 24), seed: int = 0) -> np.ndarray:
    """Return an image with a bright blob on noise."""
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 200, shape)
    array[1:-1, 5:14, 7:18] += 400
    return array


def head(study: str, series: str, frame: str) -> pydicom.Dataset:
    """Return what all slices of a series share."""
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.PatientName, data.PatientID, data.PatientBirthDate, data.PatientSex = NAME, PATIENT, "19480219", "M"
    data.StudyInstanceUID, data.SeriesInstanceUID, data.FrameOfReferenceUID = study, series, frame
    data.StudyID, data.AccessionNumber, data.StudyDate, data.StudyTime = "5", "A77", "20240503", "101500"
    data.ReferringPhysicianName, data.Manufacturer, data.Modality, data.SeriesNumber = "DUCK^D", "Scanner", "MR", 4
    data.PositionReferenceIndicator = ""
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
    return data


def write_series(
    folder: Path,
    array: np.ndarray | None = None,
    direction: np.ndarray = PLAIN,
    without: tuple[str, ...] = (),
    series: str = "",
    study: str = "",
    spacing: tuple[float, float, float] = (0.5, 0.7, 3.0),
    **fields: Any,
) -> Path:
    """Write a series of one file a slice, under names that say nothing of their order; spacing is along i, j, k."""
    array = image() if array is None else array
    folder.mkdir(parents=True, exist_ok=True)
    shared = head(study or generate_uid(), series or generate_uid(), generate_uid())
    normal = np.cross(direction[:, 0], direction[:, 1])
    order = np.random.default_rng(1).permutation(len(array))
    for number, pixels in enumerate(array):
        data = copy.deepcopy(shared)
        data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = MRImageStorage
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        data.ImageOrientationPatient = [round(float(c), 9) for c in (*direction[:, 0], *direction[:, 1])]
        data.ImagePositionPatient = [round(float(c), 6) for c in np.array([5.0, 6, 7]) + normal * spacing[2] * number]
        data.PixelSpacing, data.SliceThickness = [spacing[1], spacing[0]], spacing[2]
        data.InstanceNumber = number + 1
        data.Rows, data.Columns = pixels.shape
        data.PixelData = pixels.astype(np.uint16).tobytes()
        for keyword in without:
            if keyword in data:
                delattr(data, keyword)
        for keyword, value in fields.items():
            setattr(data, keyword, value)
        data.save_as(folder / f"{order[number]:03d}-{data.SeriesInstanceUID[-4:]}.dcm", enforce_file_format=True)
    return folder


def write_enhanced(folder: Path, array: np.ndarray, direction: np.ndarray = PLAIN, reverse: bool = False) -> Path:
    """Write a series as one enhanced multi-frame file; with `reverse`, its last slice first."""
    folder.mkdir(parents=True, exist_ok=True)
    data = head(generate_uid(), generate_uid(), generate_uid())
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    data.Rows, data.Columns, data.NumberOfFrames = *array.shape[1:], len(array)
    normal = np.cross(direction[:, 0], direction[:, 1])
    shared, measures, plane = pydicom.Dataset(), pydicom.Dataset(), pydicom.Dataset()
    measures.PixelSpacing, measures.SliceThickness = [0.7, 0.5], 3.0
    plane.ImageOrientationPatient = [round(float(c), 9) for c in (*direction[:, 0], *direction[:, 1])]
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [plane]
    data.SharedFunctionalGroupsSequence = [shared]
    frames = []
    order = range(len(array))[::-1] if reverse else range(len(array))
    for number in order:
        frame, position, content = pydicom.Dataset(), pydicom.Dataset(), pydicom.Dataset()
        position.ImagePositionPatient = [round(float(c), 6) for c in np.array([5.0, 6, 7]) + normal * 3.0 * number]
        content.DimensionIndexValues = [number + 1]
        frame.PlanePositionSequence, frame.FrameContentSequence = [position], [content]
        frames.append(frame)
    data.PerFrameFunctionalGroupsSequence = frames
    data.PixelData = np.stack([array[number] for number in order]).astype(np.uint16).tobytes()
    data.save_as(folder / "enhanced.dcm", enforce_file_format=True)
    return folder


def rewrite(file: Path, *without: str, **fields: Any) -> None:
    """Change attributes of a file."""
    data = pydicom.dcmread(file)
    for keyword in without:
        delattr(data, keyword)
    for keyword, value in fields.items():
        setattr(data, keyword, value)
    data.save_as(file)


def in_order(folder: Path) -> list[Path]:
    """Return the files of a series in the order of their slices."""
    return sorted(folder.glob("*.dcm"), key=lambda file: pydicom.dcmread(file, stop_before_pixels=True).InstanceNumber)
