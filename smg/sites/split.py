"""Which subjects train, validate and test: a function of seed and identity alone, by subject and never by slice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from smg.errors import SmgError
from smg.files import write_json
from smg.sites.site import Site

PARTS = {"train": 0.60, "validation": 0.15, "test": 0.25}
Split = dict[str, tuple[str, ...]]  # part -> cases
Name = TypeVar("Name", bound=Hashable)


def split_site(site: Site, seed: int, before: Mapping[str, str] | None = None) -> Split:
    """Subjects ranked by a hash of seed and identity: neither the order of files nor the machine matters.

    before: the part that a case was in when there were fewer; it stays there, and the new ones fill up the parts.
    """
    before = before or {}
    split = {part: [s.case for s in site.subjects if before.get(s.case) == part] for part in PARTS}
    new = [s.case for s in site.subjects if before.get(s.case) not in PARTS]
    ranked = sorted(new, key=lambda case: _rank(seed, f"{site.name}/{case}"))
    for part, count in sizes(len(site.subjects)).items():
        wanted = max(0, count - len(split[part]))
        split[part] += ranked[:wanted]
        ranked = ranked[wanted:]
    split["train"] += ranked  # where a part had more than its share
    return {part: tuple(sorted(cases)) for part, cases in split.items()}


def fold_site(site: Site, seed: int, folds: int) -> Split:
    """Split a site so that seeds 0 to folds - 1 test each of its subjects once, but for the validation part.

    The validation part is the same for every seed, so no subject that settings were chosen by is ever tested. The
    others are dealt into folds, of which seed s tests number s mod folds.
    """
    ranked = sorted((s.case for s in site.subjects), key=lambda case: _rank("folds", f"{site.name}/{case}"))
    validation, others = ranked[: (count := sizes(len(ranked))["validation"])], ranked[count:]
    test = others[seed % folds :: folds]
    train = [case for case in others if case not in test]
    return {part: tuple(sorted(cases)) for part, cases in zip(PARTS, (train, validation, test), strict=True)}


def sizes(n: int) -> dict[str, int]:
    """How many of `n` subjects each part gets: whole shares, the rest by largest remainder, none empty from 3 up.

    Of two subjects one trains and one tests; a single one trains.
    """
    counts = {part: int(share * n) for part, share in PARTS.items()}
    by_remainder = sorted(PARTS, key=lambda part: (-round(PARTS[part] * n - counts[part], 9), part != "test"))
    for part in by_remainder[: n - sum(counts.values())]:
        counts[part] += 1
    for part in ("train", "test", "validation")[:n]:
        if counts[part] == 0:
            counts[max(counts, key=lambda p: counts[p])] -= 1
            counts[part] = 1
    return counts


def save_splits(path: Path, splits: dict[str, Split], seed: int | None) -> None:
    """Write the split in use, so that it can be read again, or given to another run."""
    write_json(path, {"seed": seed, "sites": splits})


def load_splits(path: Path) -> dict[str, Split]:
    """Read a split file: `{"sites": {SITE: {"train": [...], "validation": [...], "test": [...]}}}`."""
    try:
        sites = json.loads(path.read_text())["sites"]
        splits = {site: {part: tuple(map(str, parts[part])) for part in PARTS} for site, parts in sites.items()}
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: not a split file: it needs 'sites', and for each {', '.join(PARTS)}") from None
    for site, split in splits.items():
        for case in twice(case for part in split.values() for case in part):
            raise SmgError(f"{path}: site {site}: case {case} stands twice; a subject belongs to one part only")
    return splits


def given_split(site: Site, splits: dict[str, Split], path: Path) -> Split:
    """The site's split from a file, which must speak of exactly the subjects there are."""
    if site.name not in splits:
        raise SmgError(f"{path}: says nothing of site {site.name}")
    listed = {case for part in splits[site.name].values() for case in part}
    there = {s.case for s in site.subjects}
    for case in sorted(listed - there):
        raise SmgError(f"{path}: case {case} of site {site.name} is in the file but not in the data")
    for case in sorted(there - listed):
        raise SmgError(f"{path}: case {case} of site {site.name} is in the data but in no part of the file")
    return splits[site.name]


def _rank(seed: int | str, identity: str) -> str:
    return hashlib.sha256(f"{seed}/{identity}".encode("utf-8", "surrogateescape")).hexdigest()


def twice(names: Iterable[Name]) -> list[Name]:
    """Those that stood before already."""
    seen: set[Name] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
