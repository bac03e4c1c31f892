"""Scans to predict: found from files, folders and patterns, grouped by subject, each with a path for its mask."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from smg.errors import SmgError
from smg.sites.formats import SUFFIXES
from smg.sites.layouts import MASK, case_of, is_mask
from smg.sites.nnunet_channels import numbered, split_case
from smg.sites.volume import is_scan, mask_suffix


def find_scans(words: Sequence[str]) -> tuple[list[Path], list[SmgError]]:
    """Return every scan that the words name, once, and an error for each bad word. `**` matches any folders.

    A folder stands for the scans in it except masks, NAME_segmentation; a folder with a DICOM series is a scan itself.
    """
    found: dict[str, Path] = {}
    errors = []
    for word in words:
        there = os.path.lexists(word)  # a file's name may look like a pattern: t[1].nii
        paths = [Path(word)] if there else [Path(p) for p in sorted(glob.glob(word, recursive=True))] or [Path(word)]
        for path in paths:
            try:
                scans = _in_folder(path) if path.is_dir() and not is_scan(path) else [path]
            except OSError as error:
                errors.append(SmgError(f"{error.filename or path}: {error.strerror}"))
                continue
            if not scans and len(paths) == 1:  # a pattern may match folders without scans
                errors.append(SmgError(f"{path}: no scan in this folder; give its files, or `{path}/**/*.nii.gz`"))
            found |= {os.path.abspath(scan): scan for scan in scans if os.path.abspath(scan) not in found}
    return list(found.values()), errors


def chosen_series(scan: Path, uid: str) -> Path:
    """Return the path of the series of that UID in a DICOM folder."""
    if not scan.is_dir():
        raise SmgError(f"{scan}: no folder of DICOM series, so that --series cannot choose one; leave it out")
    return scan / uid


def apart_from_masks(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the scans, and separately the masks that lie beside their scans: a pattern of files matches both."""
    masks = [path for path in paths if path.exists() and is_mask(Path(os.path.abspath(path)))]
    return [path for path in paths if path not in masks], masks


def group_channels(paths: Sequence[Path], n: int) -> tuple[list[tuple[Path, ...]], list[SmgError]]:
    """Return the scans of each subject, one for each of `n` channels, and an error for each bad path.

    With one channel every path is a subject. With more, NAME_0000, NAME_0001 and so on belong together; any one of them
    stands for all, and those that are not among the paths are looked for beside it.
    """
    if n == 1:
        return [(path,) for path in paths], []
    subjects: dict[tuple[str, str], dict[str, Path]] = {}  # folder, case -> number -> path
    errors = []
    numbers = [numbered(index) for index in range(n)]
    for path in paths:
        case, number = split_case(case_of(path))
        if number not in numbers:
            wanted = f"NAME_{numbers[0]} to NAME_{numbers[-1]}"
            errors.append(SmgError(f"{path}: not one of the {n} channels of a subject; name its files {wanted}"))
            continue
        known = subjects.setdefault((os.path.abspath(path.parent), case), {}).setdefault(number, path)
        if known is not path:
            errors.append(SmgError(f"{path}: {known} is the same channel of its subject; give one of them"))
    groups = []
    for given in subjects.values():
        first = next(iter(given.values()))
        group = [given.get(number) or _beside(first, number) for number in numbers]
        if missing := [path for path in group if not path.exists()]:
            errors.append(SmgError(f"{missing[0]}: no such file; {first} needs all {n} channels in one folder"))
        else:
            groups.append(tuple(group))
    return groups, errors


def _beside(scan: Path, number: str) -> Path:
    """Return the scan's channel of that number, in any format; where there is none, the file that should be it."""
    case = case_of(scan)
    suffixes = dict.fromkeys((scan.name[len(case) :], *SUFFIXES, ""))  # its own format first
    files = [scan.with_name(f"{split_case(case)[0]}_{number}{suffix}") for suffix in suffixes]
    return next((file for file in files if file.exists() and is_scan(file)), files[0])


def mask_files(
    scans: Sequence[Path],
    out: Path,
    overwrite: bool = False,
    n: int = 1,
    suffix: str | None = None,
    what: str = "mask",
) -> list[Path | SmgError]:
    """Return the file for each scan's mask, OUT/NAME in the scan's format, or the error that forbids it.

    `suffix`: another ending of the name than that of the scan's format.
    `what`: what the files are, for errors, such as `contact sheet`.
    `n`: channels of a subject; with more than one, `scans` are the first of each and NAME is without the number.
    If two names are the same, all masks keep their scans' folders below the common one. No mask replaces one of the
    scans or another mask; only with `overwrite` does it replace any other file.
    """
    places = [Path(os.path.abspath(scan)) for scan in scans]
    cases = [case_of(place) if n == 1 else split_case(case_of(place))[0] for place in places]
    names = [Path(case + (suffix or mask_suffix(place))) for case, place in zip(cases, places, strict=True)]
    if len(set(names)) < len(names):
        shared = os.path.commonpath([place.parent for place in places])
        names = [place.parent.relative_to(shared) / name for place, name in zip(places, names, strict=True)]
    originals = {place.resolve() for place in places}
    originals |= {_beside(place, numbered(index)).resolve() for place in places for index in range(1, n)}
    first: dict[Path, Path] = {}
    files: list[Path | SmgError] = []
    for scan, name in zip(scans, names, strict=True):
        if (out / name).resolve() in originals:
            files.append(SmgError(f"{scan}: the {what} would overwrite the scan {out / name}; give another folder"))
        elif (other := first.setdefault(name, scan)) is not scan:
            files.append(
                SmgError(
                    f"{scan}: its {what} would be the same file as that of {other}; predict it into another folder"
                )
            )
        elif (out / name).exists() and not overwrite:
            files.append(SmgError(f"{scan}: {out / name} exists already; --overwrite replaces it"))
        else:
            files.append(out / name)
    return files


def _in_folder(folder: Path) -> list[Path]:
    """Return the scans directly in a folder, without masks."""
    there = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and is_scan(path)]
    return [path for path in there if not MASK.search(case_of(path))]
