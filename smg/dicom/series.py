"""A DICOM series as one volume: every file of it is used, or the file that cannot be is named.

A folder holds the files of one series, in any order and under any names; `FOLDER/UID` is one series of a folder that
holds several. Every slice must give PixelSpacing, ImageOrientationPatient and ImagePositionPatient; all slices must
have one spacing, one orientation, one size and an even distance. Nothing is guessed and no slice is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smg import patience
from smg.dicom.dicom_files import (
    Array,
    dicom_files,
    folder_files,
    has_mark,
    in_file,
    open_dicom,
)
from smg.dicom.pixels import read_frames, value_kind
from smg.dicom.planes import GROUPS, Plane, check_alike, check_instances, even_step, frame_count, planes_of
from smg.errors import SmgError

UID = re.compile(r"[0-9]+(\.[0-9]+)+")
KEYWORDS = (
    "SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "Modality", "Rows",
    "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated", "BitsStored",
    "HighBit", "PixelRepresentation", "PixelSpacing", "ImageOrientationPatient", "ImagePositionPatient",
    "SliceThickness", "SpacingBetweenSlices", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", *GROUPS,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Series:
    """The slices of a series, from one end to the other along the normal of their planes."""

    uid: str
    study: str
    frame_of_reference: str | None
    modality: str
    sop_class: str
    size: tuple[int, int]  # rows, columns
    kind: np.dtype[Any]  # of the values
    planes: tuple[Plane, ...]
    step: Array  # mm from a slice to the next, LPS

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.planes), *self.size

    @property
    def bytes(self) -> int:
        """Return the size of the values in memory."""
        return math.prod(self.shape) * self.kind.itemsize

    @property
    def files(self) -> list[Path]:
        return sorted({plane.file for plane in self.planes})

    @cached_property
    def normal(self) -> Array:
        row, column = self.planes[0].orientation
        return np.cross(row, column)

    @property
    def affine(self) -> Array:
        """Return the matrix from (column, row, slice) to millimetres, LPS."""
        first = self.planes[0]
        affine = np.eye(4)
        affine[:3, 0] = first.orientation[0] * first.spacing[1]
        affine[:3, 1] = first.orientation[1] * first.spacing[0]
        affine[:3, 2] = self.step
        affine[:3, 3] = first.position
        return affine

    def read(self) -> Array:
        """Return the values, [slice, row, column]."""
        places: dict[Path, list[tuple[int, int]]] = {}  # file -> (frame from 0, slice)
        for index, plane in enumerate(self.planes):
            places.setdefault(plane.file, []).append(((plane.frame or 1) - 1, index))
        array = np.empty(self.shape, self.kind)
        for file, pairs in places.items():
            rescales = [self.planes[index].rescale for _, index in sorted(pairs)]
            with in_file(file):
                frames = read_frames(file, rescales)
            patience.advance()
            for frame, index in pairs:
                if not np.can_cast(frames[frame].dtype, self.kind) and (frames[frame] % 1).any():
                    raise SmgError(
                        f"{file.name}: its values are fractions, but its header says whole numbers; export it again"
                    )
                array[index] = frames[frame]
        return array


def split_path(path: Path) -> tuple[Path, str | None]:
    """Return a series' folder, and the UID where the path is `FOLDER/UID`."""
    if UID.fullmatch(path.name) and not path.exists() and path.parent.is_dir():
        return path.parent, path.name
    return path, None


def is_series(path: Path) -> bool:
    """Return whether a path is a folder with a DICOM file in it, or `FOLDER/UID` of such a folder."""
    folder, _ = split_path(path)
    return folder.is_dir() and any(has_mark(file) for file in folder_files(folder))


def read_series(path: Path) -> Series:
    """Return the one series at a path; no pixel is read."""
    folder, uid = split_path(path)
    heads = [(file, _head(file)) for file in dicom_files(folder)]
    groups: dict[str, list[tuple[Path, Any]]] = {}
    for file, head in heads:
        groups.setdefault(str(head.SeriesInstanceUID), []).append((file, head))
    if not groups:
        raise SmgError("holds no DICOM file; give the folder of a series")
    if uid is not None and uid not in groups:
        raise SmgError(f"holds no series of that UID, but {_listed(groups)}; give the UID of one of them")
    if uid is None and len(groups) > 1:
        raise SmgError(
            f"holds {len(groups)} series: {_listed(groups)}; choose one, by --series UID or as the path FOLDER/UID, "
            "or give each series a folder of its own"
        )
    chosen = uid or next(iter(groups))
    return _stacked(chosen, groups[chosen])


def _head(file: Path) -> Any:
    """Return a file's attributes that decide where its pixels lie."""
    patience.advance()
    with in_file(file):
        head = open_dicom(file, KEYWORDS)
        for keyword in ("SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID"):
            if not head.get(keyword):
                raise SmgError(
                    f"has no {keyword}: cut short, or no file of a series; copy it again or move it elsewhere"
                )
        return head


def _listed(groups: dict[str, list[tuple[Path, Any]]]) -> str:
    """Return the series of a folder, with kind and number of slices; no description, which may name the patient."""
    return ", ".join(
        f"{uid} ({members[0][1].get('Modality') or '?'}, {sum(frame_count(h) for _, h in members)} slices)"
        for uid, members in sorted(groups.items())
    )


def _stacked(uid: str, members: Sequence[tuple[Path, Any]]) -> Series:
    """Return the series of these files, checked."""
    planes: list[Plane] = []
    for file, head in members:
        with in_file(file):
            planes += planes_of(file, head)
    check_instances(planes)
    first_file, first = members[0]
    for file, head in members[1:]:
        for keyword in ("Rows", "Columns", "SOPClassUID", "StudyInstanceUID", "FrameOfReferenceUID"):
            if head.get(keyword) != first.get(keyword):
                raise SmgError(f"{file.name}: its {keyword} is not that of {first_file.name}; "
                               "remove the file that does not belong to the series")  # fmt: skip
    for plane in planes[1:]:
        check_alike(planes[0], plane)
    row, column = planes[0].orientation
    normal = np.cross(row, column)
    planes.sort(key=lambda plane: float(plane.position @ normal))
    head_of = dict(members)
    kinds = {value_kind(head_of[plane.file], *plane.rescale) for plane in planes}
    return Series(
        uid=uid,
        study=str(first.get("StudyInstanceUID", "")),
        frame_of_reference=str(first.get("FrameOfReferenceUID") or "") or None,
        modality=str(first.get("Modality") or "OT"),
        sop_class=str(first.SOPClassUID),
        size=(int(first.Rows), int(first.Columns)),
        kind=np.result_type(*kinds),
        planes=tuple(planes),
        step=even_step(planes, normal),
    )
