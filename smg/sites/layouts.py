"""Find sites in the folder layouts that are in use.

| layout | image | further channels | mask |
|---|---|---|---|
| the multi-site prostate data set | `SITE/Case00.nii.gz` | - | `SITE/Case00_segmentation.nii.gz` |
| nnU-Net v2 | `SITE/imagesTr/CASE_0000.nii.gz` | `CASE_0001.nii.gz` ... | `SITE/labelsTr/CASE.nii.gz` |
| two folders | `SITE/images/CASE.nii.gz` | as nnU-Net's, see below | `SITE/labels/CASE.nii.gz` |
| a CSV file | column `image` | columns `image2` ... | column `mask`; `site` and `case` if there are such columns |

Every layout takes scans of every format; a folder with one DICOM series can stand for an image. A folder is either a
site itself or holds sites. Hidden files are ignored.

Channels are co-registered images of a subject, and every subject of a site has the same channels. In nnU-Net's layout
their names are the `channel_names` of dataset.json, or their numbers; in a CSV they are the columns. In `images/` a
number at the end of a name is a channel if every image has one and the masks are named without it; if not, it is part
of the case's name.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from smg.dicom.dicom_masks import SUFFIX as DICOM
from smg.dicom.dicom_masks import is_mask_file
from smg.dicom.series import split_path
from smg.errors import SmgError
from smg.sites.formats import SUFFIXES
from smg.sites.nnunet_channels import numbered, read_description, split_case
from smg.sites.site import Aliases, Fault, Site, Subject, canonical
from smg.sites.tables import channel_columns, listed_path, read_rows
from smg.sites.volume import is_scan, scan_suffix

Item = TypeVar("Item")

FORMATS = "NIfTI, MetaImage, NRRD or DICOM series"
MASK = re.compile("_segmentation$", re.IGNORECASE)
Named = tuple[str, Path]  # a case, and a file of it
Channels = Mapping[str, str]  # key in the files (`0001`, `image2`) -> name, in order
Absent = Callable[[str, str], tuple[Path, str]]  # case, key -> the file that should hold the channel, and the cause
ONE: Channels = {"image": "image"}


class Image(NamedTuple):
    """An image file, with the case and the key of the channel that it holds."""

    case: str
    channel: str
    path: Path


def find_sites(path: Path, aliases: Aliases | None = None) -> dict[str, Site]:
    """Return every site at `path`, by name, in the order of names; `aliases` lists other names of each site."""
    try:
        if path.is_file():
            sites = _from_csv(path, aliases)
        elif path.is_dir():
            sites = _in_folder(path, aliases)
        else:
            raise SmgError(f"{path}: no such file or folder; correct the path")
    except OSError as error:
        raise SmgError(f"{error.filename or path}: {error.strerror}") from None
    if not sites and path.is_file():
        raise SmgError(f"{path}: lists no scan; add a row for each subject")
    if not sites:
        raise SmgError(
            f"{path}: no site found{_other_files(path)}: a site is a folder of scans with masks NAME_segmentation, "
            "with images/ and labels/, or with imagesTr/ and labelsTr/; give such a folder, or one that holds some"
        )
    by_name: dict[str, Site] = {}
    for site in sites:
        if site.name in by_name:
            raise SmgError(f"{path}: two of its folders are site {site.name}, one by an alias; keep one of them")
        by_name[site.name] = site
    return by_name


def _in_folder(path: Path, aliases: Aliases | None) -> list[Site]:
    """Return the folder as a site if it holds subjects, else the sites in its folders, else a site of faults alone."""
    here = _from_folder(path, aliases)
    named = any((path / images).is_dir() for images in ("imagesTr", "images"))  # a site, even if every case has a fault
    if here and (here.subjects or (named and here.faults)):
        return [here]
    below = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    return [site for p in below if (site := _from_folder(p, aliases))] or ([here] if here else [])


def _from_folder(folder: Path, aliases: Aliases | None) -> Site | None:
    """Return the site in this folder, or None if it is none; folders of images without a scan are a fault."""
    site = _paired(folder, aliases)
    if site is None or site.subjects or site.faults:
        return site
    images = folder / ("imagesTr" if (folder / "imagesTr").is_dir() else "images")
    reason = f"no scan in this folder{_other_files(images)}; convert them to {FORMATS}"
    return replace(site, faults=(Fault(site.name, "-", str(images), reason),))


def _other_files(folder: Path) -> str:
    """Return in words which files a folder holds that are no scans, as ` (12 .png files)`; empty if there is none."""
    there = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    kinds = Counter(path.suffix.lower() or "unnamed" for path in there)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    return f" ({listed} file{'s' * (len(there) != 1)})" if there else ""


def _paired(folder: Path, aliases: Aliases | None) -> Site | None:
    """Return the site in this folder, or None if there is no scan in it."""
    name = canonical(Path(os.path.abspath(folder)).name, aliases)  # the name of a link, not of its target
    if (folder / "imagesTr").is_dir():
        return _from_nnunet(name, folder)
    for labels in ("labels", "masks"):
        if (folder / "images").is_dir() and (folder / labels).is_dir():
            scans, masks = _cases(folder / "images"), _cases(folder / labels)
            if _named_as_nnunet(scans, masks):
                return _from_nnunet(name, folder, "images", labels)
            return _pair(name, _one_channel(scans), masks)
    scans = _cases(folder)
    if not scans:
        return None
    masks = [(MASK.sub("", case), file) for case, file in scans if MASK.search(case)]
    images = [scan for scan in scans if not MASK.search(scan[0])]
    imaged = {case for case, _ in images}
    slices = [(case, folder / f"{case}{DICOM}") for case, _ in masks if case not in imaged]
    images += [(case, file) for case, file in slices if is_mask_file(file)]  # reading it says what it is
    return _pair(name, _one_channel(images), masks)


def _named_as_nnunet(scans: list[Named], masks: list[Named]) -> bool:
    """Return whether images end in a channel number and masks are named without it, none by an image's whole name."""
    masked = {case for case, _ in masks}
    parts = [split_case(case) for case, _ in scans]
    whole = any(case in masked for case, _ in scans)
    return not whole and all(number for _, number in parts) and any(case in masked for case, _ in parts)


def _from_nnunet(name: str, folder: Path, images: str = "imagesTr", labels: str = "labelsTr") -> Site:
    """Return the site whose images are `CASE_0000`, `CASE_0001` and so on; one without a number is channel 0000."""
    description = read_description(folder / "dataset.json")
    scans = []
    for whole, path in _cases(folder / images):
        case, number = split_case(whole)
        scans.append(Image(case, number or numbered(0), path))
    named = {numbered(index): channel for index, channel in enumerate(description.channels)}
    channels = named or _unnamed({scan.channel for scan in scans})
    suffixes = {scan.case: scan_suffix(scan.path) or "" for scan in scans}

    def absent(case: str, key: str) -> tuple[Path, str]:
        return folder / images / f"{case}_{key}{suffixes[case]}", "no such file"

    masks = _cases(folder / labels) if (folder / labels).is_dir() else []
    return _pair(name, scans, masks, channels, absent, description.label_values)


def _unnamed(numbers: set[str]) -> Channels:
    """Return channels without a dataset.json: named by their numbers, with the first that is missing in a gap."""
    missing = next(n for n in map(numbered, count()) if n not in numbers)
    keys = sorted(numbers | {missing} if numbers and missing < max(numbers) else numbers)
    return {key: key for key in keys} if len(keys) > 1 else dict.fromkeys(keys or [missing], "image")


def _from_csv(path: Path, aliases: Aliases | None) -> list[Site]:
    """Return the sites of a CSV file: one row a subject, relative paths from the file's own folder."""
    if path.suffix.lower() != ".csv":
        raise SmgError(f"{path}: neither a folder of sites nor a .csv file; give one of them")
    images: dict[str, list[Image]] = defaultdict(list)
    masks: dict[str, list[Named]] = defaultdict(list)
    lines: dict[tuple[str, str], int] = {}
    for line, row in read_rows(path):
        for column in ("image", "mask"):
            if not row[column]:
                raise SmgError(f"{path}: line {line} has no {column}; fill in the cell or remove the row")
        name = canonical(row.get("site") or path.stem, aliases)
        image, mask = listed_path(path, row["image"]), listed_path(path, row["mask"])
        case = row.get("case") or case_of(image)
        if not row.get("case") and (name, case) in lines:
            raise SmgError(f"{path}: line {line}: site {name} has two files {image.name}; add a column case")
        lines[name, case] = line
        columns = [column for column in channel_columns(row) if row[column]]
        images[name] += [Image(case, column, listed_path(path, row[column])) for column in columns]
        masks[name].append((case, mask))
    return [_from_rows(path, name, images[name], masks[name], lines) for name in sorted(images)]


def _from_rows(
    path: Path, name: str, images: list[Image], masks: list[Named], lines: dict[tuple[str, str], int]
) -> Site:
    """Return one site of a CSV file; its channels are the columns that any of its rows fills."""
    columns = channel_columns(image.channel for image in images)

    def absent(case: str, key: str) -> tuple[Path, str]:
        return path, f"line {lines[name, case]} has no {key}"

    return _pair(name, images, masks, {column: column for column in columns}, absent)


def _one_channel(scans: Iterable[Named]) -> list[Image]:
    """Return the scans as images of a site with one channel."""
    return [Image(case, "image", path) for case, path in scans]


def _pair(
    name: str,
    images: Iterable[Image],
    masks: Iterable[Named],
    channels: Channels = ONE,
    absent: Absent | None = None,
    label_values: frozenset[int] | None = None,
) -> Site:
    """Match the channels and the mask of each case; one that is missing, doubled or unknown to the site is a fault."""
    image_of = _group((image.case, image) for image in images)
    mask_of = _group(masks)
    subjects, faults = [], []
    for case in sorted(image_of.keys() | mask_of.keys()):
        files = _group((image.channel, image.path) for image in image_of.get(case, []))
        found = mask_of.get(case, [])
        wrong = list(_wrong_files(case, files, found, channels, absent))
        faults += [Fault(name, case, str(file), reason) for file, reason in wrong]
        if not wrong:
            subjects.append(Subject(name, case, tuple(files[key][0] for key in channels), found[0]))
    return Site(name, tuple(subjects), tuple(faults), label_values, tuple(channels.values()))


def _wrong_files(
    case: str, images: dict[str, list[Path]], masks: list[Path], channels: Channels, absent: Absent | None
) -> Iterator[tuple[Path, str]]:
    """Yield each file of a case that is wrong, and the reason. `images` has the case's files by channel."""
    kinds = {key: f"files of channel {name}" if len(channels) > 1 else "image files" for key, name in channels.items()}
    for files, kind in [*((images.get(key, []), kind) for key, kind in kinds.items()), (masks, "mask files")]:
        if len(files) > 1:
            yield files[1], f"case {case} has {len(files)} {kind} ({', '.join(f.name for f in files)}); keep one"
    for key in sorted(images.keys() - channels.keys()):
        names = ", ".join(channels.values())
        yield (
            images[key][0],
            f"channel {key} is not in dataset.json, which lists {names}; add it there or remove the file",
        )
    if not images or not masks:
        present, lacking = ("image", "mask") if images else ("mask", "image")
        file = (next(iter(images.values())) if images else masks)[0]
        yield file, f"{present} without {lacking}; add it or remove the file"
    for key, channel in channels.items():
        if images and key not in images and absent:
            file, cause = absent(case, key)
            yield file, f"{cause}: case {case} lacks channel {channel}, which the site has; add it or remove the case"


def _group(named: Iterable[tuple[str, Item]]) -> dict[str, list[Item]]:
    """Return the items by name, in their order."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for name, item in named:
        groups[name].append(item)
    return dict(groups)


def _cases(folder: Path) -> list[Named]:
    """Return every scan directly in the folder, with the case that its name gives."""
    there = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    return [(case_of(path), path) for path in there if is_scan(path) or _is_dicom_mask(path)]


def _is_dicom_mask(path: Path) -> bool:
    """Return whether a DICOM file is a mask by its place: NAME_segmentation.dcm, or in a folder of masks."""
    placed = MASK.search(path.stem) or path.parent.name in ("labels", "masks", "labelsTr")
    return bool(placed) and is_mask_file(path)


def is_mask(path: Path) -> bool:
    """Return whether a file is, by the layouts above, the mask of a scan that exists too."""
    case, folder = case_of(path), path.parent
    if MASK.search(case):
        scans = [folder / MASK.sub("", case)]
    elif folder.name in ("labels", "masks", "labelsTr"):
        images = folder.parent / ("imagesTr" if folder.name == "labelsTr" else "images")
        scans = [images / case, images / f"{case}_{numbered(0)}"]
    else:
        return False
    files = (Path(f"{scan}{suffix}") for scan in scans for suffix in ("", *SUFFIXES))
    return any(file.exists() and is_scan(file) for file in files)


def case_of(path: Path) -> str:
    """Return the case that a scan's file name gives: the name without the format's suffix; FOLDER's of `FOLDER/UID`."""
    path, _ = split_path(path)
    suffix = scan_suffix(path) or (path.suffix if path.suffix.lower() == DICOM and not path.is_dir() else "")
    return path.name[: len(path.name) - len(suffix)]
