"""Slices of a DICOM series: where each lies, and whether they make one evenly spaced volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smg.dicom.dicom_files import Array, no_header_values
from smg.dicom.pixels import check_decodable
from smg.errors import SmgError

UNEVEN = 0.05  # largest error of a position, as a share of the distance between slices
TURNED = 1e-3  # largest difference of a direction's cosines
ROUNDED = 1e-3  # what spacings may differ by, relatively
GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")


@dataclass(frozen=True, eq=False)
class Plane:
    """One slice: a file, or a frame of a file, and its place in the patient (mm, LPS)."""

    file: Path
    frame: int | None  # from 1, as DICOM counts; None in a file of one slice
    instance: str  # SOPInstanceUID
    position: Array  # of the first pixel's centre
    orientation: Array  # the directions of a row and of a column, [2, 3], each of length 1
    spacing: tuple[float, float]  # between rows, between columns
    thickness: float | None
    between: float | None  # SpacingBetweenSlices
    rescale: tuple[float, float]  # slope, intercept

    @property
    def name(self) -> str:
        return self.file.name if self.frame is None else f"{self.file.name}, frame {self.frame}"


def frame_count(head: Any) -> int:
    try:
        return int(head.get("NumberOfFrames") or 1)
    except (TypeError, ValueError):
        return 1


def planes_of(file: Path, head: Any) -> list[Plane]:
    """Return the slices of one file."""
    if not head.get("Rows") or not head.get("Columns"):
        raise SmgError(f"holds no image (modality {head.get('Modality') or 'unknown'}); move it elsewhere")
    with no_header_values("its header is damaged: an attribute cannot be read; copy the file again"):
        check_decodable(head)
        if GROUPS[1] not in head:
            if frame_count(head) > 1:
                raise SmgError("many slices in one file, without the positions of an enhanced object; convert it first")
            return [_plane(file, None, head, [head])]
        frames = list(head[GROUPS[1]].value)
        shared = list(head[GROUPS[0]].value) if GROUPS[0] in head else []
        if len(frames) != (count := frame_count(head)):
            raise SmgError(f"announces {count} frames and gives the position of {len(frames)}; export it again")
        return [_plane(file, number, head, [frame, *shared]) for number, frame in enumerate(frames, start=1)]


def _plane(file: Path, frame: int | None, head: Any, groups: Sequence[Any]) -> Plane:
    """Return a slice; `groups` hold its functional groups, a frame's own before the shared ones."""

    def numbers(sequence: str, keyword: str, count: int) -> Array | None:
        for group in groups:
            within = group if frame is None else next(iter(group.get(sequence) or []), {})
            if within.get(keyword) not in (None, ""):
                return _numbers(keyword, within.get(keyword), count)
        return None

    def required(sequence: str, keyword: str, count: int) -> Array:
        found = numbers(sequence, keyword, count)
        if found is None:
            where = "" if frame is None else f" of frame {frame}"
            raise SmgError(f"has no {keyword}{where}, without which a slice has no place; export the series again")
        return found

    def optional(sequence: str, keyword: str) -> float | None:
        found = numbers(sequence, keyword, 1)
        return None if found is None else float(found[0])

    between = required("PixelMeasuresSequence", "PixelSpacing", 2)
    if between.min() <= 0:
        raise SmgError(f"its PixelSpacing is {between[0]:g} x {between[1]:g} mm; export the series again")
    orientation = required("PlaneOrientationSequence", "ImageOrientationPatient", 6).reshape(2, 3)
    lengths = np.linalg.norm(orientation, axis=1)
    if np.abs(lengths - 1).max() > 0.01 or abs(orientation[0] @ orientation[1]) > 0.01:
        raise SmgError("its ImageOrientationPatient is not two directions at right angles; export the series again")
    slope = optional("PixelValueTransformationSequence", "RescaleSlope")
    intercept = optional("PixelValueTransformationSequence", "RescaleIntercept")
    return Plane(
        file=file,
        frame=frame,
        instance=str(head.SOPInstanceUID),
        position=required("PlanePositionSequence", "ImagePositionPatient", 3),
        orientation=orientation / lengths[:, None],
        spacing=(float(between[0]), float(between[1])),
        thickness=optional("PixelMeasuresSequence", "SliceThickness"),
        between=optional("PixelMeasuresSequence", "SpacingBetweenSlices"),
        rescale=(1.0 if slope is None else slope, intercept or 0.0),
    )


def _numbers(keyword: str, value: Any, count: int) -> Array:
    values = np.atleast_1d(np.array(value, dtype=np.float64))
    if values.shape != (count,) or not np.isfinite(values).all():
        raise SmgError(f"its {keyword} is not {count} numbers; export the series again")
    return values


def check_instances(planes: Sequence[Plane]) -> None:
    """Refuse the same instance twice: a copy of a file under another name."""
    seen: dict[tuple[str, int | None], Plane] = {}
    for plane in planes:
        other = seen.setdefault((plane.instance, plane.frame), plane)
        if other is not plane:
            raise SmgError(f"{plane.name}: the same SOPInstanceUID as {other.name}; keep one of the two files")


def check_alike(first: Plane, plane: Plane) -> None:
    """Refuse a slice whose spacing or orientation is not that of the first."""
    if not np.allclose(plane.spacing, first.spacing, rtol=ROUNDED, atol=0):
        here, there = (" x ".join(f"{mm:g}" for mm in p.spacing) for p in (plane, first))
        raise SmgError(f"{plane.name}: its PixelSpacing is {here} mm, and {there} in {first.name}; "
                       "remove the file that does not belong to the series")  # fmt: skip
    if np.abs(plane.orientation - first.orientation).max() > TURNED:
        raise SmgError(f"{plane.name}: its ImageOrientationPatient is not that of {first.name}; "
                       "remove the file that does not belong to the series")  # fmt: skip


def even_step(planes: Sequence[Plane], normal: Array) -> Array:
    """Return the millimetres from a slice to the next, LPS; a gap or two slices at one place are errors."""
    if len(planes) == 1:
        between = planes[0].between or planes[0].thickness
        if not between or between <= 0:
            raise SmgError(f"{planes[0].name}: one slice of unknown thickness; export it with SliceThickness")
        return normal * between
    positions = np.array([plane.position for plane in planes])
    steps = np.diff(positions, axis=0)
    distances = steps @ normal
    usual = float(np.median(distances))
    for before, after, distance in zip(planes, planes[1:], distances, strict=False):
        if distance <= UNEVEN * usual:
            raise SmgError(f"{after.name}: at the position of {before.name}: a slice twice, or several volumes "
                           "(echoes, times, b-values) in one series; give each volume a folder of its own")  # fmt: skip
    for before, after, step in zip(planes, planes[1:], steps, strict=False):
        if np.abs(step - np.median(steps, axis=0)).max() > UNEVEN * usual:
            raise SmgError(f"{after.name}: {step @ normal:.2f} mm from {before.name}, where slices are {usual:.2f} mm "
                           "apart: not evenly spaced; a slice may be missing, or belong to another series")  # fmt: skip
    step = (positions[-1] - positions[0]) / (len(planes) - 1)
    even = positions[0] + np.arange(len(planes))[:, None] * step
    if np.abs(positions - even).max() > UNEVEN * usual:
        raise SmgError(f"its slices are not evenly spaced: between {distances.min():.3f} and {distances.max():.3f} mm; "
                       "resample the series to an even distance first")  # fmt: skip
    return step
