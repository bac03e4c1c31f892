"""Scans are found from words, and each gets a path for its mask."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.sites.scans import apart_from_masks, find_scans, mask_files


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("one/a.nii.gz", "one/b.mha", "one/b_segmentation.mha", "one/.c.nii", "one/notes.txt", "two/a.nii.gz",
                 "two/deep/a.nii", "[3]/a.nii.gz", "none/notes.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["one"], ["one/a.nii.gz", "one/b.mha"]),  # without masks and hidden files
        (["one/b_segmentation.mha"], ["one/b_segmentation.mha"]),  # but by its own name
        (["*/a.nii.gz"], ["[3]/a.nii.gz", "one/a.nii.gz", "two/a.nii.gz"]),
        (["two/**/*.nii*"], ["two/a.nii.gz", "two/deep/a.nii"]),
        (["one/a.nii.gz", "one", "./one/a.nii.gz"], ["one/a.nii.gz", "one/b.mha"]),  # each once
        (["[3]"], ["[3]/a.nii.gz"]),  # a file of that name comes before the pattern
        (["gone.nii"], ["gone.nii"]),  # an error when it is read
    ],
)
def test_words(here: Path, words: list[str], names: list[str]) -> None:
    with contextlib.chdir(here):
        found, errors = find_scans(words)
    assert [str(path) for path in found] == names
    assert not errors


def test_a_folder_without_scans_is_an_error(here: Path) -> None:
    found, errors = find_scans([str(here / "none"), str(here / "one")])
    assert len(found) == 2
    assert [str(e).startswith(f"{here / 'none'}: no scan in this folder") for e in errors] == [True]


def test_masks_keep_their_folders_where_names_are_the_same(tmp_path: Path) -> None:
    scans = [tmp_path / "s" / name for name in ("one/a.nii.gz", "two/a.nii.gz", "two/b.mha", "c.nii")]
    out = tmp_path / "masks"
    assert mask_files(scans, out) == [out / name for name in ("one/a.nii.gz", "two/a.nii.gz", "two/b.mha", "c.nii")]
    assert mask_files(scans[1:], out) == [out / name for name in ("a.nii.gz", "b.mha", "c.nii")]


def test_no_mask_replaces_a_scan_or_another_mask(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()  # as a folder with a DICOM series
    one, other = mask_files([tmp_path / "a", tmp_path / "a.nii.gz"], tmp_path / "masks")
    assert one == tmp_path / "masks" / "a.nii.gz"
    assert isinstance(other, SmgError)
    assert str(other).startswith(
        f"{tmp_path / 'a.nii.gz'}: its mask would be the same file as that of {tmp_path / 'a'}"
    )
    same, another = mask_files([tmp_path / "x" / "a.nii", tmp_path / "y" / "b.nii"], tmp_path / "x")
    assert "the mask would overwrite the scan" in str(same)
    assert another == tmp_path / "x" / "b.nii"
    crossed = mask_files([tmp_path / "x" / "a.nii", tmp_path / "y" / "x" / "a.nii"], tmp_path)
    assert all(isinstance(c, SmgError) for c in crossed)


def test_a_mask_replaces_a_file_only_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.nii.gz").write_bytes(b"a scan, or a corrected mask")
    (error,) = mask_files([tmp_path / "a.nii.gz"], tmp_path / "b")
    assert isinstance(error, SmgError)
    assert "exists already; --overwrite replaces it" in str(error)
    assert mask_files([tmp_path / "a.nii.gz"], tmp_path / "b", overwrite=True) == [tmp_path / "b" / "a.nii.gz"]


def test_a_name_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    for name in ("t[1].nii.gz", "t1.nii.gz"):
        (tmp_path / name).write_bytes(b"")
    with contextlib.chdir(tmp_path):
        found, errors = find_scans(["t1.nii.gz", "t[1].nii.gz"])  # as a shell hands them over
    assert [path.name for path in found] == ["t1.nii.gz", "t[1].nii.gz"]
    assert not errors


def test_masks_beside_their_scans_are_separated(tmp_path: Path) -> None:
    names = ("s/a.nii.gz", "s/a_segmentation.nii", "s/b_Segmentation.nii.gz", "two/images/a.mha", "two/labels/a.nii.gz",
             "two/labels/b.nii.gz", "nn/imagesTr/a_0000.nii.gz", "nn/labelsTr/a.nii.gz", "labels/a.nii.gz")  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    scans, masks = apart_from_masks([tmp_path / name for name in names])
    assert masks == [tmp_path / name for name in names if name in (names[1], names[4], names[7])]
    assert scans == [tmp_path / name for name in names if tmp_path / name not in masks]
    with contextlib.chdir(tmp_path / "s"):
        assert apart_from_masks([Path("a_segmentation.nii"), Path("gone_segmentation.nii")])[1] == [
            Path("a_segmentation.nii")
        ]
