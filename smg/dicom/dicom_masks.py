"""Masks that come as DICOM: a SEG or an RTSTRUCT file, whose structures are chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smg.dicom import rtstruct, seg
from smg.dicom.dicom_files import Array, has_mark, no_header_values, open_dicom
from smg.dicom.series import Series
from smg.errors import SmgError

SUFFIX = ".dcm"


def is_mask_file(path: Path) -> bool:
    """Return whether a path is named as a DICOM file and has its mark."""
    return path.suffix.lower() == SUFFIX and path.is_file() and has_mark(path)


def mask_structures(path: Path) -> dict[int, str]:
    """Return the structures that a SEG or RTSTRUCT file holds: number -> name."""
    data = open_dicom(path, ("SOPClassUID", "Modality", "SegmentSequence", "StructureSetROISequence"))
    with no_header_values("not a mask that can be read: cut short or corrupt; copy the file again"):
        kind = str(data.get("SOPClassUID", ""))
        if kind == seg.SOP_CLASS:
            return seg.segment_names(data)
        if kind == rtstruct.SOP_CLASS:
            return rtstruct.structure_names(data)
        raise SmgError(f"neither SEG nor RTSTRUCT (modality {data.get('Modality') or 'unknown'}); give one as the mask")


def read_mask(path: Path, series: Series, names: Sequence[str] = ()) -> Array:
    """Return the named structures on the series' grid: 1 where the first is, 2 the second, and so on, 0 elsewhere.

    Where two overlap the later one holds. Without names there must be a single one. Several structures of one name are
    taken together.
    """
    there = mask_structures(path)
    groups = [_numbers(there, name) for name in names or _only(there)]
    kind = str(open_dicom(path, ("SOPClassUID",)).SOPClassUID)
    read = seg.read_seg if kind == seg.SOP_CLASS else rtstruct.read_rtstruct
    return read(path, series, groups)


def _only(there: dict[int, str]) -> list[str]:
    if len(set(there.values())) != 1:
        raise SmgError(f"holds {len(set(there.values()))} structures ({listed(there)}); choose with --roi NAME")
    return list(there.values())[:1]


def _numbers(there: dict[int, str], name: str) -> list[int]:
    """Return the numbers of the structures of that name; in other capitals, where no name is the same to the letter."""
    exact = [number for number, found in there.items() if found == name]
    alike = [number for number, found in there.items() if found.strip().casefold() == name.strip().casefold()]
    if not exact and not alike:
        raise SmgError(f"holds no structure {name!r}, but {listed(there) or 'none'}; choose with --roi NAME")
    return exact or alike


def listed(there: dict[int, str]) -> str:
    return ", ".join(dict.fromkeys(there.values()))
