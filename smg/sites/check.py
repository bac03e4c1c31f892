"""Check sites: facts of each site, and every fault of a subject with its file and reason."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from smg.cores import cores
from smg.errors import SmgError
from smg.sites.formats import Array
from smg.sites.labels import Labels, present
from smg.sites.masks import read_subject_mask, structures_of
from smg.sites.outliers import MaskShape, outliers
from smg.sites.site import Fault, Site, Subject
from smg.sites.volume import Volume, geometry_note, is_oblong, read_volume, same_grid

One = TypeVar("One")
Other = TypeVar("Other")
Span = list[list[float]]

FEW_VALUES, MOST_VALUES = 16, 256  # different values of a file that may be a mask, and that can still be one
LARGEST, SMALLEST = 1e15, 1e-15  # of voxels: in single precision the sum of their squares must exist


@dataclass
class Examined:
    """One subject read and checked: its volumes where they could be read, and its faults."""

    subject: Subject
    image: Volume | None = None  # of the first channel
    images: list[Volume] = field(default_factory=list)  # of every channel, in order; empty if any cannot be read
    mask: Volume | None = None
    structures: tuple[str, ...] = ()  # names in the mask, where it is a SEG or RTSTRUCT
    classes: Array | None = None  # the mask as class indices
    values: tuple[float, ...] = ()  # in the mask, but for those of the background
    shape: MaskShape | None = None  # of the foreground, seen as axial slices
    content: str = ""  # a hash of the voxels of all channels as they are stored
    turned: str = ""  # a hash that is the same in any orientation of storage
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)  # no faults: what someone should know of its files


def examine(
    subject: Subject, labels: Labels, limit: int | None = None, label_values: frozenset[int] | None = None
) -> Examined:
    """Read a subject's images and mask and find every fault that shows without other subjects."""
    found = Examined(subject)

    def fault(file: Path, reason: str) -> None:
        found.faults.append(Fault(subject.site, subject.case, str(file), reason))

    def read(file: Path) -> Volume | None:
        try:
            return read_volume(file, limit)
        except SmgError as error:
            fault(file, str(error).removeprefix(f"{file}: "))
            return None

    for path in (*subject.images, subject.mask):
        if note := geometry_note(path):
            found.notes.append(Fault(subject.site, subject.case, str(path), note))
    channels = [read(path) for path in subject.images]
    found.image = channels[0]
    try:
        found.structures = structures_of(subject.mask)
        if found.image is not None or not found.structures:  # else the fault is the image's
            found.mask = read_subject_mask(subject, limit)
    except SmgError as error:
        fault(subject.mask, str(error).removeprefix(f"{subject.mask}: "))
    for path, channel in zip(subject.images, channels, strict=True):
        if channel is None:
            continue
        if reason := image_fault(channel.array):
            fault(path, reason)
        if found.image is not None and (reason := same_grid(found.image, channel)):
            fault(path, f"channel grids differ: {reason}; resample it to the grid of {subject.image.name}")
    if all(channel is not None for channel in channels):
        found.images = [channel for channel in channels if channel is not None]
        found.content, found.turned = stored(found.images), turned(found.images)
        _, rows, columns = found.images[0].axial_spacing
        if is_oblong(rows, columns):
            reason = (
                f"pixels of its axial slices are {columns:.2g} x {rows:.2g} mm: it was probably taken in another plane"
            )
            found.notes.append(Fault(subject.site, subject.case, str(subject.image), reason))
    if found.mask is not None:
        found.classes, there = labels.index(found.mask.array), present(found.mask.array)
        if reason := _no_mask(there, found.image):
            fault(subject.mask, reason)
            return found
        found.values = tuple(float(v) for v in there if v not in labels.background)
        found.shape = MaskShape.of(found.mask.orientation.axial(found.classes), found.mask.axial_spacing)
        if unexpected := labels.unexpected(found.mask.array, label_values):
            values = ", ".join(f"{v:.8g}" for v in unexpected[:5])
            advice = "give them to a class or the background" if labels.classes else "correct the mask"
            if not all(v.is_integer() for v in unexpected):  # nor are NaN and infinity
                advice = "not whole numbers; correct the mask"
            fault(subject.mask, f"label values that were not expected: {values}; {advice}")
        elif not found.classes.any():
            fault(subject.mask, "empty mask: no voxel is foreground; draw the structure or remove the subject")
    if found.image is not None and found.mask is not None:
        if reason := same_grid(found.image, found.mask):
            fault(subject.mask, f"image and mask grids differ: {reason}; resample the mask to the grid of its image")
    return found


def _no_mask(values: Array, image: Volume | None) -> str | None:
    """Return why a file with these values is not a mask, or None."""
    if len(values) <= FEW_VALUES:
        return None
    if image is not None and len(in_image := present(image.array)) <= FEW_VALUES:
        return (
            f"image and mask look swapped: the mask has {len(values):,} different values and the image "
            f"{len(in_image)}; exchange the two files"
        )
    if len(values) > MOST_VALUES:
        return f"has {len(values):,} different values, as an image has; give the scan's mask"
    return None


def stored(images: Sequence[Volume]) -> str:
    """Return a hash of the voxels of a subject's images as they are stored."""
    whole = hashlib.sha256()
    for image in images:
        whole.update(np.ascontiguousarray(image.array).data)
    return whole.hexdigest()


def turned(images: Sequence[Volume]) -> str:
    """Return a hash of the voxels as axial slices, equal under any order of storage and kind of number."""
    whole = hashlib.sha256()
    for image in images:
        axial = image.axial()
        whole.update(repr(axial.shape).encode())
        for one in axial:
            with np.errstate(over="ignore"):  # `image_fault` names values that are too large
                whole.update(np.ascontiguousarray(one, np.float32).data)
    return whole.hexdigest()


def image_fault(array: Array) -> str | None:
    """Return why no network can learn from these voxels, or None."""
    bad = 0 if array.dtype.kind != "f" else int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        return f"{bad} voxels are NaN or infinite; export the scan again"
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if low == high:
        return "constant image: every voxel has the same value; export the scan again"
    if max(-low, high) > LARGEST:
        return f"its values reach {max(-low, high, key=abs):.1e}, too far to compute with; export the scan again"
    if high - low < SMALLEST:
        return f"its values differ by {high - low:.1e}, too little to compute with; export the scan again"
    return None


def doubled(scans: Iterable[tuple[Subject, str, str]]) -> list[Fault]:
    """Return a fault for each scan whose voxels are those of an earlier scan of any site.

    Such a scan could be trained and tested on. `scans` are (subject, hash as stored, hash as axial slices); one equal
    hash is enough, since a copy may be stored in another orientation or without its header.
    """
    first: dict[str, Subject] = {}
    faults = []
    for subject, *hashes in scans:
        others = [first.setdefault(one, subject) for one in hashes if one]
        other = next((one for one in others if one is not subject), None)
        if other:
            reason = f"the same scan twice: its voxels are those of {other.image}; remove one of them"
            faults.append(Fault(subject.site, subject.case, str(subject.image), reason))
    return faults


@dataclass
class SiteFacts:
    """Facts of one site, as `smg sites check` prints them."""

    subjects: int
    channels: list[str]  # their names, in order
    slices: int = 0
    foreground_slices: int = 0
    size: Span = field(default_factory=list)  # columns, rows of the axial slices: smallest, largest
    spacing: Span = field(default_factory=list)  # mm between columns, rows, slices: smallest, largest
    intensity: list[float] = field(default_factory=list)  # the smallest and the largest voxel of all channels
    structures: dict[str, int] = field(default_factory=dict)  # names in SEG and RTSTRUCT masks -> how many have it
    mask_values: dict[str, int] = field(default_factory=dict)  # foreground values -> how many masks have it

    def add(self, images: Sequence[Volume], mask: Array) -> None:
        """Add a subject: its channels, and its mask as axial slices of class indices."""
        slices, rows, columns = images[0].axial().shape
        between, down, across = images[0].axial_spacing
        self.slices += slices
        self.foreground_slices += int(mask.any(axis=(1, 2)).sum())
        self.size = _widen(self.size, [columns, rows])
        self.spacing = _widen(self.spacing, [round(across, 3), round(down, 3), round(between, 3)])
        for array in (image.array for image in images):
            voxels = array if array.dtype.kind != "f" else array[np.isfinite(array)]
            if voxels.size:
                values = [*self.intensity, float(voxels.min()), float(voxels.max())]
                self.intensity = [min(values), max(values)]


def _widen(span: Span, *points: list[float]) -> Span:
    """Return the smallest box, [lowest corner, highest corner], that contains the span and the points."""
    rows = list(zip(*span, *points, strict=True))
    return [[min(row) for row in rows], [max(row) for row in rows]]


@dataclass
class Check:
    """Facts by site and every fault, as `smg sites check --json` prints them."""

    sites: dict[str, SiteFacts]
    faults: list[Fault]
    outliers: list[Fault] = field(default_factory=list)  # no faults: masks that someone should look at
    notes: list[Fault] = field(default_factory=list)  # no faults: headers that give the geometry in two ways

    def as_json(self) -> dict[str, object]:
        """Return the facts, faults, outliers and notes as plain dictionaries."""
        listed = {"faults": self.faults, "outliers": self.outliers, "notes": self.notes}
        return {"sites": {n: asdict(f) for n, f in self.sites.items()}} | {
            name: [asdict(one) for one in ones] for name, ones in listed.items()
        }


def check_sites(
    sites: Iterable[Site], labels: Labels, limit: int | None = None, progress: Callable[[str], None] | None = None
) -> Check:
    """Examine every subject of every site on all cores; return facts and faults.

    A few subjects are in memory at a time. `progress` is called with the site's name after each subject.
    """
    sites = list(sites)
    facts = {site.name: SiteFacts(len(site.subjects), list(site.channels)) for site in sites}
    check = Check(facts, [fault for site in sites for fault in site.faults])
    values = {site.name: site.label_values for site in sites}
    scans: list[tuple[Subject, str, str]] = []
    shapes: dict[str, list[tuple[Subject, MaskShape | None]]] = {site.name: [] for site in sites}

    def facts_of(subject: Subject) -> Examined:
        return examine(subject, labels, limit, values[subject.site])

    for found in on_all_cores(facts_of, [subject for site in sites for subject in site.subjects]):
        if found.image is not None and found.classes is not None and found.image.array.shape == found.classes.shape:
            mask = found.image.orientation.axial(found.classes)
            check.sites[found.subject.site].add(found.images or [found.image], mask)
        shapes[found.subject.site].append((found.subject, found.shape))
        for value in found.values:
            word, of = f"{value:.8g}", facts[found.subject.site].mask_values
            of[word] = 1 + of.get(word, 0)
        for name in found.structures:
            check.sites[found.subject.site].structures[name] = 1 + facts[found.subject.site].structures.get(name, 0)
        scans.append((found.subject, found.content, found.turned))
        check.faults += found.faults
        check.notes += found.notes
        if progress:
            progress(found.subject.site)
    check.faults += doubled(scans)
    for described in shapes.values():
        check.outliers += unlike_others(described)
    return check


def unlike_others(described: Sequence[tuple[Subject, MaskShape | None]]) -> list[Fault]:
    """Return the masks of one site that are unlike the others, each with the reason; the farthest first."""
    found = [(described[one.subject][0], one.reason) for one in outliers([shape for _, shape in described])]
    return [Fault(s.site, s.case, str(s.mask), f"{reason}; look at it") for s, reason in found]


def on_all_cores(do: Callable[[One], Other], items: Iterable[One]) -> Iterator[Other]:
    """Yield `do(item)` in the order of the items, computed in threads, a few items ahead.

    Threads are enough: unpacking, hashing and numpy release the interpreter lock.
    """
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Other]] = deque()
        for item in items:
            ahead.append(pool.submit(do, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
