"""Prepare a site: examine every subject, turn it into arrays of slices, and keep them in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smg.errors import SmgError
from smg.prepare import nnunet_preparation
from smg.prepare.cache import Prepared, cache_folder, entry_about, key_of, open_entry, write_entry
from smg.prepare.encrypted import encrypted_path, open_encrypted, write_encrypted
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.sites.check import Examined, doubled, examine, on_all_cores
from smg.sites.formats import Array
from smg.sites.site import Fault, Site, Subject
from smg.sites.size_limit import scan_limit
from smg.sites.volume import Volume, is_oblong
from smg.vault.vault import Vault

FAR = 2.0  # factor between a scan's pixels and the spacing from which on the user gets a note
GROWTH = 4  # a scan may take this many times the limit of its file when it is prepared, in single precision
ROUNDING = 1e-6  # of the largest value: a bound on the rounding error of a resized slice


@dataclass(frozen=True)
class PreparedSite:
    """The subjects of a site as they were prepared, to be passed on: reading and hashing a scan again takes long."""

    subjects: Sequence[Prepared]
    options: Preparation


class Unusable(SmgError):
    """Error for voxels from which no finite slices can be prepared; the caller names the file."""


def prepare_site(
    site: Site,
    options: Preparation,
    leave_out: bool = False,
    cache: Path | None = None,
    limit: int | None = None,
    progress: Callable[[str], None] | None = None,
    vault: Vault | None = None,
) -> list[Prepared]:
    """Return every subject of the site as memory-mapped slices, from the cache where nothing has changed.

    A site with faults is refused; with `leave_out`, its subjects with faults are left out instead. `progress` is called
    with the site's name after each subject. With the vault of an encrypted model, entries of the cache are encrypted.
    """
    _check_channels(site, options)
    folder = cache or cache_folder()
    stored = options.stored()

    def prepare(subject: Subject) -> Prepared | list[Fault]:
        try:
            path = _entry(folder, key_of(subject, stored), vault)
        except OSError as error:
            return [Fault(site.name, subject.case, str(error.filename), error.strerror or str(error))]
        if (ready := _open(path, subject, vault)) is not None and _as_described(ready, site, options):
            return ready
        found = examine(subject, options.labels, limit, site.label_values)
        if not found.faults:
            try:
                _make(path, subject, found, options, vault)
            except Unusable as error:
                return [Fault(site.name, subject.case, str(subject.image), str(error))]
        return found.faults or _open(path, subject, vault) or [_vanished(subject, path)]

    prepared: list[Prepared] = []
    faults = list(site.faults)
    for done in on_all_cores(prepare, site.subjects):
        if isinstance(done, Prepared):
            prepared.append(done)
        else:
            faults += done
        if progress:
            progress(site.name)
    twins = doubled((p.subject, p.content, p.turned) for p in prepared)
    faulty = {fault.subject for fault in twins}
    _refuse(site, faults + twins, leave_out)
    return [p for p in prepared if p.subject.case not in faulty]


def prepared_once(
    ready: PreparedSite | None,
    site: Site,
    options: Preparation,
    leave_out: bool = False,
    progress: Callable[[str], None] | None = None,
    vault: Vault | None = None,
) -> list[Prepared]:
    """Return the site's subjects from `ready` if they were prepared with equal options; prepare them if not."""
    if ready is None or ready.options.stored() != options.stored():
        return prepare_site(site, options, leave_out, progress=progress, vault=vault)
    cases = {subject.case for subject in site.subjects}
    return [p for p in ready.subjects if p.subject.case in cases]


def _check_channels(site: Site, options: Preparation) -> None:
    """Raise an error if the site's channels are not the configured ones; a single channel may have any name."""
    wanted = options.channels or ("image",)
    if len(site.channels) != len(wanted) or (len(wanted) > 1 and site.channels != wanted):
        raise SmgError(
            f"site {site.name}: its channels are {', '.join(site.channels)}, and preparation.channels has "
            f"{', '.join(wanted)}; give the same images in the same order"
        )


def check_field(subjects: Sequence[Prepared], options: Preparation) -> None:
    """Raise an error if the field cuts off foreground of a subject; it names the field that would hold all."""
    if options.field is None or options.pixel is None:
        return
    outside = [p for p in subjects if p.needed > options.field + max(options.pixel)]  # a pixel is rounding
    if outside:
        worst = max(outside, key=lambda p: p.needed)
        raise SmgError(
            f"{worst.subject.mask}: foreground lies outside the central field of {options.field:g} mm "
            f"({len(outside)} of {len(subjects)} subjects); set preparation.field={math.ceil(worst.needed)} to hold it"
        )


def plane_note(subjects: Sequence[Prepared]) -> str | None:
    """Return a note if scans of a site were probably not taken in axial slices; None if all were."""
    pixels = [p.grid.pixel for p in subjects if p.grid.crop is None and is_oblong(*p.grid.pixel)]
    if not pixels:
        return None
    rows, columns = pixels[0]
    return (
        f"{len(pixels)} of its {len(subjects)} scans were probably taken in another plane: pixels of axial slices are "
        f"{columns:.2g} x {rows:.2g} mm; a model that learns axial slices does not fit them"
    )


def scale_note(subjects: Sequence[Prepared], options: Preparation) -> str | None:
    """Return a note if pixels of some subjects are far from the spacing of the preparation; None if not."""
    if options.pixel is None:
        return None
    pixels, (low, high) = [max(p.grid.pixel) for p in subjects], sorted(options.pixel)
    coarse, fine = max(pixels), min(pixels)
    if coarse > FAR * high:
        return f"its pixels are up to {coarse:.2f} mm and are interpolated to {high:g}: they lack detail"
    if fine < low / (2 * FAR):
        return f"its pixels are down to {fine:.2f} mm and are averaged to {low:g}: details are lost"
    return None


def prepare_scan(channels: Sequence[Volume], options: Preparation) -> tuple[Array, Grid]:
    """Return a scan's slices [slices, channels, rows, columns] and its grid, which maps masks back to the scan.

    Each channel is cut to the field and then normalised on its own, so that what the network sees has zero mean.
    """
    if options.nnunet is not None:
        return nnunet_preparation.prepare_scan(channels, options)
    shape = channels[0].array.shape
    grid = Grid((shape[0], shape[1], shape[2]), channels[0].affine, options.size, options.spacing, options.field)
    size, limit = 4 * grid.axial_shape[0] * math.prod(grid.whole) * len(channels), GROWTH * scan_limit()
    if size > limit:
        raise Unusable(
            f"its {grid.axial_shape[0]} slices would take {size / 2**30:.1f} GiB when prepared, over "
            f"{limit / 2**30:.0f} GiB; crop the scan, set a smaller preparation.size or a coarser spacing, "
            "or allow it with --limit"
        )
    prepared = []
    for volume in channels:
        array = volume.array
        if options.clip is not None:
            array = np.clip(array, *np.percentile(array, options.clip))
        images = grid.image(array)
        for part in images if options.normalise == "slice" else [images]:
            normalise(part.reshape(-1))
        if not np.isfinite(images).all() or not images.any():
            raise Unusable("its values cannot be normalised in single precision; export the scan again")
        prepared.append(images)
    return prepared[0][:, None] if len(prepared) == 1 else np.stack(prepared, axis=1), grid


def normalise(values: Array) -> None:
    """Give values zero mean and unit variance, in place; values that are constant up to rounding become zero."""
    largest = max(values.max(), -values.min())
    values -= values.mean()
    deviation = np.sqrt(values @ values / len(values))
    if deviation > ROUNDING * largest:
        values /= deviation
    else:
        values[:] = 0


def _entry(folder: Path, key: str, vault: Vault | None) -> Path:
    return encrypted_path(vault, folder, key) if vault else folder / f"{key}.safetensors"


def _open(path: Path, subject: Subject, vault: Vault | None) -> Prepared | None:
    return open_encrypted(path, subject, vault) if vault else open_entry(path, subject)


def _make(path: Path, subject: Subject, found: Examined, options: Preparation, vault: Vault | None) -> None:
    """Prepare an examined subject and write its cache entry."""
    assert found.images  # a subject without images has faults
    assert found.classes is not None
    images, grid = prepare_scan(found.images, options)
    labels, needed = grid.classes(found.classes), grid.field_of(found.classes)
    try:
        more = found.content, found.turned, needed, found.values, found.shape
        if vault:
            about = entry_about(images, labels, grid, *more)
            write_encrypted(path, subject, {"images": images, "labels": labels}, about, vault)
        else:
            write_entry(path, subject, images, labels, grid, *more)
    except OSError as error:
        raise SmgError(
            f"{path.parent}: prepared scans cannot be written there: {error.strerror}; set SMG_CACHE to another folder"
        ) from None


def _as_described(prepared: Prepared, site: Site, options: Preparation) -> bool:
    """Return whether the data set's description lists every value of a mask; it may have changed since."""
    if site.label_values is None or options.labels.classes is not None:
        return True
    return site.label_values.issuperset(prepared.values)


def _vanished(subject: Subject, path: Path) -> Fault:
    """Return the fault of a cache entry that cannot be read after it was written."""
    reason = "this cache entry was written, but cannot be read; set SMG_CACHE to another folder"
    return Fault(subject.site, subject.case, str(path), reason)


def _refuse(site: Site, faults: list[Fault], leave_out: bool) -> None:
    """Raise an error that names the first fault, unless subjects with faults are left out."""
    if faults and not leave_out:
        count = f"{len(faults)} fault{'s' * (len(faults) > 1)}"
        raise SmgError(
            f"{faults[0]}; site {site.name} has {count}: `smg sites check` lists them, "
            "--leave-out goes on without those subjects"
        )
