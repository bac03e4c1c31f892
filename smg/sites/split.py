"""Split a site's subjects into train, validation and test, by seed and identity alone, never by slice."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from smg.errors import SmgError
from smg.files import parse_json, write_json
from smg.sites.site import Site

PARTS = {"train": 0.60, "validation": 0.15, "test": 0.25}
Split = dict[str, tuple[str, ...]]  # part -> cases
Name = TypeVar("Name", bound=Hashable)


def split_site(site: Site, seed: int, before: Mapping[str, str] | None = None) -> Split:
    """Return the cases of each part. Subjects are ranked by a hash, so file order and machine do not matter.

    `before` gives the part of cases that were split earlier, when the site was smaller. They stay in their parts, and
    new cases fill the parts up.
    """
    before = before or {}
    split = {part: [s.case for s in site.subjects if before.get(s.case) == part] for part in PARTS}
    new = [s.case for s in site.subjects if before.get(s.case) not in PARTS]
    ranked = sorted(new, key=lambda case: _rank(seed, f"{site.name}/{case}"))
    for part, count in sizes(len(site.subjects)).items():
        wanted = max(0, count - len(split[part]))
        split[part] += ranked[:wanted]
        ranked = ranked[wanted:]
    split["train"] += ranked  # left over if a part already had more than its share
    return {part: tuple(sorted(cases)) for part, cases in split.items()}


def fold_site(site: Site, seed: int, folds: int) -> Split:
    """Return the cases of each part such that each `folds` seeds from 0 on test each subject once, but for validation.

    The validation part is the same for every seed, so no subject that settings were chosen by is ever tested. The other
    subjects are dealt into folds, and seed s tests fold s mod folds. Every `folds` seeds they are dealt again: seeds
    that train on the same subjects share what these do to the result, and a mean over them would seem too certain.
    """
    ranked = sorted((s.case for s in site.subjects), key=lambda case: _rank("folds", f"{site.name}/{case}"))
    validation, others = ranked[: (count := sizes(len(ranked))["validation"])], ranked[count:]
    if dealt := seed // folds:
        others.sort(key=lambda case: _rank(f"folds/{dealt}", f"{site.name}/{case}"))
    test = others[seed % folds :: folds]
    train = [case for case in others if case not in test]
    return {part: tuple(sorted(cases)) for part, cases in zip(PARTS, (train, validation, test), strict=True)}


def check_folds(sites: Iterable[Site], folds: int) -> None:
    """Raise an error that names each site with fewer subjects than folds: some seed would test none of them."""
    counts = {site.name: len(site.subjects) - sizes(len(site.subjects))["validation"] for site in sites}
    if found := [f"site {name} has {count}" for name, count in counts.items() if count < folds]:
        most = min(counts.values())
        advice = f"set folds to at most {most}" if most >= 2 else "unset folds"
        raise SmgError(
            f"{folds} folds are too many: outside its validation part {', '.join(found)}; {advice}, or give a split of "
            "your own (--split)"
        )


def sizes(n: int) -> dict[str, int]:
    """Return how many of `n` subjects each part gets, by the method of largest remainders.

    From three subjects on no part is empty. Of two subjects one trains and one tests; a single one trains.
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
    """Write the split in use to a file that `load_splits` reads, for this run or another."""
    write_json(path, {"seed": seed, "sites": splits})


def load_splits(path: Path) -> dict[str, Split]:
    """Return the splits in a file: `{"sites": {SITE: {"train": [...], "validation": [...], "test": [...]}}}`."""
    try:
        sites = parse_json(path.read_bytes())["sites"]
        splits = {site: {part: tuple(map(str, parts[part])) for part in PARTS} for site, parts in sites.items()}
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SmgError(f"{path}: not a split file: not JSON ({error}); correct it") from None
    except (KeyError, TypeError, AttributeError):
        raise SmgError(
            f"{path}: not a split file: it lacks 'sites', or a part of a site; list {', '.join(PARTS)} for each"
        ) from None
    for site, split in splits.items():
        for case in twice(case for part in split.values() for case in part):
            raise SmgError(f"{path}: site {site}: case {case} is listed twice; leave it in one part")
    return splits


def given_split(site: Site, splits: dict[str, Split], path: Path) -> Split:
    """Return the site's split from a file, which has to list exactly the site's subjects."""
    if site.name not in splits:
        raise SmgError(f"{path}: no split of site {site.name}; add it to the file")
    listed = {case for part in splits[site.name].values() for case in part}
    there = {s.case for s in site.subjects}
    for case in sorted(listed - there):
        raise SmgError(
            f"{path}: case {case} of site {site.name} is in the file but not in the data; remove it from the file"
        )
    for case in sorted(there - listed):
        raise SmgError(
            f"{path}: case {case} of site {site.name} is in the data but in no part of the file; add it to one"
        )
    return splits[site.name]


def _rank(seed: int | str, identity: str) -> str:
    """Return the hash that subjects are ordered by."""
    return hashlib.sha256(f"{seed}/{identity}".encode("utf-8", "surrogateescape")).hexdigest()


def twice(names: Iterable[Name]) -> list[Name]:
    """Return the names that repeat an earlier one, in order."""
    seen: set[Name] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
