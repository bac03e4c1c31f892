"""The inbox: a site made of scans whose masks a clinician has corrected, for `smg learn` to take as its next round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.volume import Volume, read_volume, same_grid, write_volume

IMAGES, LABELS = "images", "labels"  # the layout of two folders


class Inbox:
    """A site's folder: `images/CASE.nii.gz` and `labels/CASE.nii.gz`.

    A case's name is a hash of the scan, so it does not name the patient, and a scan that is corrected again replaces
    its mask. Headers are new: no field of the sender's file is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def count(self) -> int:
        """Return how many scans there are."""
        return sum(1 for path in (self.folder / IMAGES).glob("[!.]*.nii.gz"))

    def add(self, scan: Path, mask: Path, labels: Labels, segments: Sequence[Mapping[str, object]] | None) -> str:
        """Store a scan with its corrected mask, and return the case's name.

        `segments` say which value of the mask is which class, as {"name": ..., "idx": ...}; without them the values are
        the classes' numbers from 1.
        """
        image, drawn = read_volume(scan), read_volume(mask)
        if reason := same_grid(image, drawn):
            raise SmgError(f"the mask is not on the scan's grid: {reason}; export it with the scan as its reference")
        values = labels.values(_indices(drawn.array, labels, segments))
        if not (values != labels.values(np.zeros(1, np.uint8))[0]).any():
            raise SmgError("the mask is empty; draw the structure before it is sent")
        case = _case(image)
        # The mask before the scan: a scan without a mask would be a fault of the site.
        write_volume(self.folder / LABELS / f"{case}.nii.gz", Volume(values, image.affine))
        write_volume(self.folder / IMAGES / f"{case}.nii.gz", image)
        return case


def _indices(drawn: Array, labels: Labels, segments: Sequence[Mapping[str, object]] | None) -> Array:
    """Return class indices for the values of a mask."""
    names = segments if segments is not None else [{"name": n, "idx": i} for i, n in enumerate(labels.names, 1)]
    classes = {one.get("idx"): str(one.get("name")) for one in names}
    indexed = np.zeros(drawn.shape, np.uint8)
    for value in np.unique(drawn[drawn != 0]).tolist():
        name = classes.get(value)
        if name not in labels.names:
            shown = f"segment {name!r}" if name else f"value {value:g} of the mask"
            raise SmgError(
                f"{shown} is not a class of the model, which has {', '.join(labels.names)}; rename or remove it"
            )
        indexed[drawn == value] = 1 + labels.names.index(name)
    return indexed


def _case(image: Volume) -> str:
    whole = hashlib.sha256(np.ascontiguousarray(image.array).data)
    whole.update(np.round(image.affine, 4).tobytes())
    return f"case-{whole.hexdigest()[:16]}"
