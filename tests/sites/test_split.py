"""Splits are 60/15/25 by subject, and depend on seed and identity alone."""

from __future__ import annotations

import dataclasses
import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg.errors import SmgError
from smg.sites.site import Site, Subject
from smg.sites.split import PARTS, check_folds, fold_site, given_split, load_splits, save_splits, sizes, split_site


def site(n: int, name: str = "HK") -> Site:
    return Site(name, tuple(Subject(name, f"Case{i:02d}", (Path("i"),), Path("m")) for i in range(n)))


@given(st.integers(1, 500))
def test_sizes(n: int) -> None:
    counts = sizes(n)
    assert sum(counts.values()) == n
    assert counts["train"] > 0
    if n >= 3:
        assert min(counts.values()) >= 1
    if n >= 10:
        assert all(abs(counts[part] - share * n) < 1.01 for part, share in PARTS.items())


def test_sizes_of_the_papers_sites() -> None:
    assert [tuple(sizes(n).values()) for n in (30, 19, 13, 12)] == [(18, 4, 8), (11, 3, 5), (8, 2, 3), (7, 2, 3)]


def test_neither_file_order_nor_other_sites_matter_but_seed_and_name_do() -> None:
    whole = site(12)
    shuffled = list(whole.subjects)
    random.Random(0).shuffle(shuffled)
    split = split_site(whole, 0)
    assert split_site(dataclasses.replace(whole, subjects=tuple(shuffled)), 0) == split
    assert split_site(whole, 1) != split
    assert split_site(site(12, "UCL"), 0) != split
    assert sorted(case for part in split.values() for case in part) == [s.case for s in whole.subjects]


def test_the_split_of_a_known_site_never_changes() -> None:
    """A change of these splits would change every published number."""
    assert split_site(site(12), 0) == {
        "train": ("Case00", "Case01", "Case02", "Case03", "Case04", "Case07", "Case09"),
        "validation": ("Case08", "Case10"),
        "test": ("Case05", "Case06", "Case11"),
    }


def test_a_split_file_comes_back_as_it_was(tmp_path: Path) -> None:
    splits = {"HK": split_site(site(12), 3)}
    save_splits(tmp_path / "split.json", splits, 3)
    loaded = load_splits(tmp_path / "split.json")
    assert loaded == splits
    assert given_split(site(12), loaded, tmp_path / "split.json") == splits["HK"]


def test_folds_that_would_leave_a_part_empty_with_some_seed_are_refused_by_site() -> None:
    sites = [site(12), site(4, "UCL"), site(5, "BMC")]
    with pytest.raises(SmgError, match=r"^5 folds are too many: .*; set folds to at most 3, or") as error:
        check_folds(sites, 5)
    assert "outside its validation part site UCL has 3, site BMC has 4;" in str(error.value)
    check_folds(sites, 3)
    for one, seed in product(sites, range(3)):
        split = fold_site(one, seed, folds=3)
        assert split["train"]
        assert split["test"]


def test_folds_are_dealt_anew_when_every_subject_has_been_tested() -> None:
    whole = site(23)
    splits = [fold_site(whole, seed, folds=4) for seed in range(12)]
    (validation,) = {split["validation"] for split in splits}
    others = sorted({subject.case for subject in whole.subjects} - set(validation))
    for first in (0, 4, 8):
        assert sorted(case for split in splits[first : first + 4] for case in split["test"]) == others
    assert len({split["train"] for split in splits}) == 12
    assert splits[0]["test"] == ("Case03", "Case06", "Case18", "Case19", "Case20")  # as of published runs


def test_folds_of_a_site_with_nothing_left_to_train_with() -> None:
    with pytest.raises(SmgError, match=r"site HK has 1; unset folds"):
        check_folds([site(1)], 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not a split file: not JSON"),
        ("{}", "not a split file"),
        ('{"sites": {"HK": {"train": ["a"]}}}', "not a split file"),
        ('{"sites": {"HK": {"train": ["a"], "validation": ["a"], "test": []}}}', "case a is listed twice"),
        ('{"sites": {"UCL": {"train": [], "validation": [], "test": []}}}', "no split of site HK"),
        ('{"sites": {"HK": {"train": ["x"], "validation": [], "test": []}}}', "is in the file but not in the data"),
        ('{"sites": {"HK": {"train": ["Case00"], "validation": [], "test": []}}}', "is in the data but in no part"),
    ],
)
def test_split_files_that_cannot_be_used(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(SmgError, match=sentence) as error:
        given_split(site(2), load_splits(path), path)
    assert str(path) in str(error.value)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 5))
def test_subjects_stay_in_their_parts_when_a_site_grows(few: int, more: int, seed: int) -> None:
    first = split_site(site(few), seed)
    before = {case: part for part, cases in first.items() for case in cases}
    grown = split_site(site(few + more), seed, before)
    assert all(set(first[part]) <= set(grown[part]) for part in PARTS)
    assert sorted(case for cases in grown.values() for case in cases) == [f"Case{i:02d}" for i in range(few + more)]
    if few >= 10:
        assert all(abs(len(grown[part]) - count) <= 1 for part, count in sizes(few + more).items())
    assert split_site(site(few), seed, before) == first
