"""Scans as a user names them, files, folders and patterns; and a place for each one's mask."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from smg.errors import SmgError
from smg.sites.layouts import MASK, case_of, is_mask
from smg.sites.volume import is_scan, mask_suffix


def find_scans(words: Sequence[str]) -> tuple[list[Path], list[SmgError]]:
    """Every scan named, once, and what is wrong with a word. `**` in a pattern stands for any folders.

    A folder stands for the scans in it, but those that are called masks; a folder with a DICOM series is a scan itself.
    """
    found: dict[str, Path] = {}
    errors = []
    for word in words:
        there = os.path.lexists(word)  # a name may hold what a pattern would, such as [1]
        paths = [Path(word)] if there else [Path(p) for p in sorted(glob.glob(word, recursive=True))] or [Path(word)]
        for path in paths:
            try:
                scans = _in_folder(path) if path.is_dir() and not is_scan(path) else [path]
            except OSError as error:
                errors.append(SmgError(f"{error.filename or path}: {error.strerror}"))
                continue
            if not scans and len(paths) == 1:  # a pattern may well match a folder without scans
                errors.append(SmgError(f"{path}: no scan in this folder; give its files, or `{path}/**/*.nii.gz`"))
            found |= {os.path.abspath(scan): scan for scan in scans if os.path.abspath(scan) not in found}
    return list(found.values()), errors


def apart_from_masks(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The scans, and the masks that lie beside their scans, which a pattern of files takes in as well."""
    masks = [path for path in paths if path.exists() and is_mask(Path(os.path.abspath(path)))]
    return [path for path in paths if path not in masks], masks


def mask_files(scans: Sequence[Path], out: Path, overwrite: bool = False) -> list[Path | SmgError]:
    """Where each scan's mask goes: OUT/NAME, in the scan's format; or why it cannot.

    If any two names are the same, all keep their folders too, from where the scans' folders part. No mask ever takes
    the place of one of the scans, or of another's mask; nor, unless `overwrite`, of any file.
    """
    places = [Path(os.path.abspath(scan)) for scan in scans]
    names = [Path(case_of(place) + mask_suffix(place)) for place in places]
    if len(set(names)) < len(names):
        shared = os.path.commonpath([place.parent for place in places])
        names = [place.parent.relative_to(shared) / name for place, name in zip(places, names, strict=True)]
    originals = {place.resolve() for place in places}
    first: dict[Path, Path] = {}
    files: list[Path | SmgError] = []
    for scan, name in zip(scans, names, strict=True):
        if (out / name).resolve() in originals:
            files.append(SmgError(f"{scan}: the mask would overwrite the scan {out / name}; give another folder"))
        elif (other := first.setdefault(name, scan)) is not scan:
            files.append(SmgError(f"{scan}: its mask would be the same file as that of {other}; predict it apart"))
        elif (out / name).exists() and not overwrite:
            files.append(SmgError(f"{scan}: {out / name} is there already; --overwrite replaces it"))
        else:
            files.append(out / name)
    return files


def _in_folder(folder: Path) -> list[Path]:
    there = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and is_scan(path)]
    return [path for path in there if not MASK.search(case_of(path))]
