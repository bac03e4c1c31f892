"""Finding sites in the folders people have.

| layout | image | mask |
|---|---|---|
| the multi-site prostate data set | `SITE/Case00.nii.gz` | `SITE/Case00_segmentation.nii.gz` |
| nnU-Net v2 | `SITE/imagesTr/CASE_0000.nii.gz` | `SITE/labelsTr/CASE.nii.gz` |
| two folders | `SITE/images/CASE.nii.gz` | `SITE/labels/CASE.nii.gz` |
| a CSV file | column `image` | column `mask`; `site` and `case` if there are such columns |

Any format of scan serves in any of them, a folder with a DICOM series in the place of an image too. A folder is either
a site itself or holds sites. Hidden files are passed over.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path, PureWindowsPath

from smg.errors import SmgError
from smg.sites.formats import SUFFIXES
from smg.sites.site import Fault, Site, Subject, canonical
from smg.sites.volume import is_scan, scan_suffix

MASK = re.compile("_segmentation$", re.IGNORECASE)
CHANNEL = re.compile("_([0-9]{4})$")
Named = tuple[str, Path]  # a case, and a file of it


def find_sites(path: Path) -> dict[str, Site]:
    """Every site at `path`, by name, in the order of names."""
    try:
        if path.is_file():
            sites = _from_csv(path)
        elif path.is_dir():
            sites = _in_folder(path)
        else:
            raise SmgError(f"{path}: no such file or folder")
    except OSError as error:
        raise SmgError(f"{error.filename or path}: {error.strerror}") from None
    if not sites:
        raise SmgError(
            f"{path}: no site found; a site is a folder of scans with masks NAME_segmentation, "
            "with images/ and labels/, or with imagesTr/ and labelsTr/"
        )
    by_name: dict[str, Site] = {}
    for site in sites:
        if site.name in by_name:
            raise SmgError(f"{path}: two of its folders are site {site.name} (one under another name); keep one")
        by_name[site.name] = site
    return by_name


def _in_folder(path: Path) -> list[Site]:
    """The folder itself if it holds subjects, else the sites in the folders below, else a site that is all faults."""
    here = _from_folder(path)
    if here and here.subjects:
        return [here]
    below = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    return [site for p in below if (site := _from_folder(p))] or ([here] if here else [])


def _from_folder(folder: Path) -> Site | None:
    """The site this folder is, or None if it is none."""
    name = canonical(Path(os.path.abspath(folder)).name)  # a link's own name, not that of what it leads to
    if (folder / "imagesTr").is_dir():
        return _from_nnunet(name, folder)
    for labels in ("labels", "masks"):
        if (folder / "images").is_dir() and (folder / labels).is_dir():
            return _pair(name, _cases(folder / "images"), _cases(folder / labels))
    scans = _cases(folder)
    if not scans:
        return None
    masks = [(MASK.sub("", case), file) for case, file in scans if MASK.search(case)]
    return _pair(name, [scan for scan in scans if not MASK.search(scan[0])], masks)


def _from_nnunet(name: str, folder: Path) -> Site:
    images = [(CHANNEL.sub("", case), file) for case, file in _cases(folder / "imagesTr")]
    site = _pair(name, images, _cases(folder / "labelsTr") if (folder / "labelsTr").is_dir() else [])
    return Site(name, site.subjects, site.faults, _nnunet_values(folder / "dataset.json"))


def _nnunet_values(description: Path) -> frozenset[int] | None:
    """The label values that nnU-Net's dataset.json lists: `{"background": 0, "prostate": 1, "region": [1, 2]}`.

    Its `ignore` is no class: a mask that has such voxels is a fault, until someone says what they are.
    """
    if not description.is_file():
        return None
    try:
        labels = json.loads(description.read_text())["labels"]
        values = [v if isinstance(v, list) else [v] for name, v in labels.items() if name != "ignore"]
        return frozenset(int(v) for group in values for v in group)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{description}: not a dataset.json of nnU-Net v2 (no usable 'labels')") from None


def _from_csv(path: Path) -> list[Site]:
    """One row a subject; relative paths start at the CSV's own folder."""
    if path.suffix.lower() != ".csv":
        raise SmgError(f"{path}: a file, where a folder of sites or a .csv of image and mask paths is needed")
    images: dict[str, list[Named]] = defaultdict(list)
    masks: dict[str, list[Named]] = defaultdict(list)
    for line, row in _rows(path):
        for column in ("image", "mask"):
            if not row[column]:
                raise SmgError(f"{path}: line {line} lacks its {column}")
        name = canonical(row.get("site") or path.stem)
        image, mask = _listed(path, row["image"]), _listed(path, row["mask"])
        case = row.get("case") or case_of(image)
        if not row.get("case") and any(case == other for other, _ in images[name]):
            raise SmgError(f"{path}: line {line}: site {name} has two files {image.name}; add a column case")
        images[name].append((case, image))
        masks[name].append((case, mask))
    return [_pair(name, images[name], masks[name]) for name in sorted(images)]


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """A CSV's rows, each with its line, as spreadsheets write them: with a mark of Unicode, semicolons or tabs between
    cells, spaces around them, capitals in the first line, and rows that are empty."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    if "\ufffd" in text or "\0" in text:
        raise SmgError(f"{path}: not a CSV file in UTF-8")
    between = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=between, skipinitialspace=True, strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise SmgError(f"{path}: line {reader.line_num}: not CSV ({error})") from None
    columns = [name.lower() for name in lines[0][1]] if lines else []
    for name in ("image", "mask"):
        if columns.count(name) != 1:
            raise SmgError(f"{path}: needs a first line with the columns image and mask (and site, case if you like)")
    rows = []
    for line, cells in lines[1:]:
        if any(cells[len(columns) :]):
            raise SmgError(f"{path}: line {line} has {len(cells)} cells, and the first line {len(columns)}; "
                           f"quote a path that holds a separator")  # fmt: skip
        if any(cells):
            rows.append((line, dict(zip_longest(columns, cells[: len(columns)], fillvalue=""))))
    return rows


def _listed(table: Path, word: str) -> Path:
    """A path in a CSV; a relative one may be written with backslashes."""
    path = table.parent / word
    if "\\" in word and not PureWindowsPath(word).is_absolute() and not path.exists():
        return table.parent / word.replace("\\", "/")
    return path


def _pair(name: str, images: Iterable[Named], masks: Iterable[Named]) -> Site:
    """Match images and masks by case; what has no partner, or two, is a fault."""
    image_of, mask_of = _group(images), _group(masks)
    subjects, faults = [], []
    for case in sorted(image_of | mask_of):
        found = image_of.get(case, []), mask_of.get(case, [])
        for files, kind in zip(found, ("image", "mask"), strict=True):
            if len(files) > 1:
                reason = f"case {case} has {len(files)} {kind} files ({', '.join(f.name for f in files)}); keep one"
                faults.append(Fault(name, case, str(files[1]), reason))
        if not found[0] or not found[1]:
            present, lacking = ("image", "mask") if found[0] else ("mask", "image")
            faults.append(Fault(name, case, str((found[0] or found[1])[0]), f"{present} without {lacking}"))
        elif len(found[0]) == len(found[1]) == 1:
            subjects.append(Subject(name, case, (found[0][0],), found[1][0]))
    return Site(name, tuple(subjects), tuple(faults))


def _group(named: Iterable[Named]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = defaultdict(list)
    for case, file in named:
        groups[case].append(file)
    return dict(groups)


def _cases(folder: Path) -> list[Named]:
    """Every scan directly in the folder, with the case its name gives."""
    return [(case_of(p), p) for p in sorted(folder.iterdir()) if not p.name.startswith(".") and is_scan(p)]


def is_mask(path: Path) -> bool:
    """Whether a file is, by the layouts above, the mask of a scan that is there too."""
    case, folder = case_of(path), path.parent
    if MASK.search(case):
        scan = folder / MASK.sub("", case)
    elif folder.name in ("labels", "masks"):
        scan = folder.parent / "images" / case
    elif folder.name == "labelsTr":
        scan = folder.parent / "imagesTr" / f"{case}_0000"
    else:
        return False
    return any(found.exists() and is_scan(found) for found in (Path(f"{scan}{suffix}") for suffix in ("", *SUFFIXES)))


def case_of(path: Path) -> str:
    """What a scan's file name says of its case: the name without the format's suffix."""
    return path.name[: len(path.name) - len(scan_suffix(path) or "")]
