"""A subject's mask on the grid of its image, whatever format it comes in."""

from __future__ import annotations

from pathlib import Path

from smg.dicom.masks import is_mask_file, mask_structures, read_mask
from smg.dicom.series import is_series, read_series
from smg.errors import SmgError
from smg.sites.site import Subject
from smg.sites.volume import LIMIT, Volume, naming, read_volume

__all__ = ["is_mask_file", "read_subject_mask", "structures_of"]


def read_subject_mask(subject: Subject, limit: int = LIMIT) -> Volume:
    """Read a subject's mask; of a SEG or RTSTRUCT the structures that `roi` names: 1 the first, 2 the second."""
    if not is_mask_file(subject.mask):
        mask = read_volume(subject.mask, limit)
        if subject.roi:
            raise SmgError(f"{subject.mask}: no SEG or RTSTRUCT, and holds no named structures; leave out --roi")
        return mask
    with naming(subject.mask):
        if not is_series(subject.image):
            raise SmgError(f"a DICOM mask needs the series that it was drawn on, and {subject.image.name} is none; "
                           "give the folder of the series as the image")  # fmt: skip
        series = read_series(subject.image)
        if series.bytes > limit:
            raise SmgError(f"its image decompresses to {series.bytes / 2**30:.1f} GiB, over the limit; crop the scan")
        return Volume(read_mask(subject.mask, series, subject.roi), series.affine)


def structures_of(mask: Path) -> tuple[str, ...]:
    """Return the names of the structures in a mask, each once; none where the format has no names."""
    if not is_mask_file(mask):
        return ()
    with naming(mask):
        return tuple(dict.fromkeys(mask_structures(mask).values()))
