"""A subject's mask on the grid of its image, whatever format it comes in."""

from __future__ import annotations

from pathlib import Path

from smg.dicom.dicom_masks import is_mask_file
from smg.errors import SmgError
from smg.sites import in_process, readers
from smg.sites.site import Subject
from smg.sites.size_limit import scan_limit
from smg.sites.volume import Volume, read_volume

__all__ = ["is_mask_file", "read_subject_mask", "structures_of"]


def read_subject_mask(subject: Subject, limit: int | None = None) -> Volume:
    """Read a subject's mask; of a SEG or RTSTRUCT the structures that `roi` names: 1 the first, 2 the second."""
    if not is_mask_file(subject.mask):
        mask = read_volume(subject.mask, limit)
        if subject.roi:
            raise SmgError(f"{subject.mask}: no SEG or RTSTRUCT, and holds no named structures; leave out --roi")
        return mask
    read = readers.read_dicom_mask if readers.AVAILABLE else in_process.read_dicom_mask
    return Volume(*read(subject.mask, subject.image, subject.roi, scan_limit() if limit is None else limit))


def structures_of(mask: Path) -> tuple[str, ...]:
    """Return the names of the structures in a mask, each once; none where the format has no names."""
    if not is_mask_file(mask):
        return ()
    return readers.structure_names(mask) if readers.AVAILABLE else in_process.structure_names(mask)
