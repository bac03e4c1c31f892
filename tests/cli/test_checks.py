"""Mistakes in a site that no error shows by itself, and refusals that come before any scan is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from smg.files import locked
from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import TINY, assert_line, smg
from tests.conftest import affine, scan, write_site
from tests.dicom.made import write_series


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checks")
    write_site(made / "A", 6)
    assert smg("learn", "model", "A", *TINY, cwd=made).returncode == 0
    return made


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_image_and_mask_swapped(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    swap(tmp_path / "A/Case02.nii.gz", tmp_path / "A/Case02_segmentation.nii.gz")
    assert_line(smg("learn", "model", "A", *TINY, cwd=tmp_path), 1, "Case02_segmentation.nii.gz: ", "swapped")
    assert not (tmp_path / "model").exists()
    checked = smg("sites", "check", "A", "--json", cwd=tmp_path)
    assert checked.returncode == 1
    (fault,) = json.loads(checked.stdout)["faults"]
    assert "swapped" in fault["reason"]


def test_an_image_in_the_place_of_a_mask(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    array = np.arange(6 * 20 * 24, dtype=np.int16).reshape(6, 20, 24)
    write_volume(tmp_path / "A/Case02_segmentation.nii.gz", Volume(array, affine()))
    result = smg("sites", "check", "A", cwd=tmp_path)
    assert result.returncode == 1
    assert "2,880 different values, as an image has" in result.stdout


@pytest.mark.parametrize("names", [("images", "labels"), ("imagesTr", "labelsTr"), (".", ".")])
def test_a_folder_of_pictures_is_a_fault_and_leaves_no_model(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / "A" / name).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (tmp_path / "A" / name / f"{name.strip('.')}{number}.png").write_bytes(b"\x89PNG")
    checked = smg("sites", "check", "A", cwd=tmp_path)
    assert checked.returncode == 1
    assert "3 .png files" in checked.stdout + checked.stderr
    for more in ((), ("--leave-out",)):
        assert_line(smg("learn", "model", "A", *more, *TINY, cwd=tmp_path), 1, "3 .png files")
    assert not (tmp_path / "model").exists()


def test_few_subjects_are_mentioned_and_a_single_one_is_refused(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        write_site(tmp_path / f"S{count}", count)
    assert_line(smg("learn", "m1", "S1", *TINY, cwd=tmp_path), 1, "site S1", "1 subject", "--few")
    assert not (tmp_path / "m1").exists()
    for words in (("S1", "--few"), ("S2",), ("S3",)):
        result = smg("learn", f"m{words[0]}", *words, *TINY, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert f"{words[0]} has {words[0][1]} subject" in result.stderr
        assert "validation" in result.stderr


def test_values_of_masks_are_listed_where_they_are_merged(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    for number in range(2):
        path = tmp_path / f"A/Case{number:02d}_segmentation.nii.gz"
        mask = read_volume(path)
        array = mask.array.copy()
        array[2][array[2] > 0] = 2 + number
        write_volume(path, Volume(array, mask.affine))
    checked = smg("sites", "check", "A", cwd=tmp_path)
    assert checked.returncode == 0
    assert "1 (4 of 4), 2 (1 of 4), 3 (1 of 4); all are one class" in " ".join(checked.stdout.split())
    result = smg("learn", "model", "A", *TINY, cwd=tmp_path)
    assert "values 1, 2, 3: all are one class" in result.stderr
    named = [word for value in (1, 2, 3) for word in ("--labels", f"zone{value}={value}")]
    assert "one class" not in smg("learn", "other", "A", *named, *TINY, cwd=tmp_path).stderr


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_mask_that_is_not_finite_is_a_fault_also_with_named_classes(tmp_path: Path, value: float) -> None:
    write_site(tmp_path / "A", 3)
    path = tmp_path / "A/Case01_segmentation.nii.gz"
    mask = read_volume(path)
    write_volume(path, Volume(np.where(mask.array > 0, value, 0).astype(np.float32), mask.affine))
    checked = smg("sites", "check", "A", "--labels", "zone=1", "--labels", "other=2", cwd=tmp_path)
    assert checked.returncode == 1
    assert f"{path.name}: label values that were not expected" in checked.stdout
    assert "Traceback" not in checked.stderr


def with_stray_voxel(mask: np.ndarray) -> np.ndarray:
    mask[0, 0, 0] = 1
    return mask


CHANGES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "shifted back": (lambda mask: np.roll(mask, 15, axis=1), "nearer to the back"),
    "shifted right": (lambda mask: np.roll(mask, -18, axis=2), "nearer to the right"),
    "half": (lambda mask: mask * (np.arange(12) < 6)[:, None, None].astype(np.uint8), "along the slices"),
    "stray voxel": (with_stray_voxel, "its mask"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_mask_unlike_the_others_is_listed_and_drawn_first(tmp_path: Path, name: str) -> None:
    change, fact = CHANGES[name]
    rng, place = np.random.default_rng(0), np.diag([1.0, 1.0, 3.0, 1.0])
    for number in range(7):
        mask = np.zeros((12, 60, 60), np.uint8)
        top, left = 20 + rng.integers(-1, 2, 2)
        mask[3:9, top : top + 18, left : left + 20] = 1
        image = (rng.normal(100, 20, mask.shape) + 80 * mask).astype(np.int16)
        write_volume(tmp_path / f"A/Case{number:02d}.nii.gz", Volume(image, place))
        mask = change(mask) if number == 4 else mask
        write_volume(tmp_path / f"A/Case{number:02d}_segmentation.nii.gz", Volume(mask, place))
    checked = smg("sites", "check", "A", "--json", cwd=tmp_path)
    assert checked.returncode == 0  # it may be a patient
    (found,) = json.loads(checked.stdout)["outliers"]
    assert found["subject"] == "Case04"
    assert fact in found["reason"]
    shown = smg("sites", "show", "A", "--subjects", "2", cwd=tmp_path)
    assert "A Case04, in a frame" in shown.stdout
    assert "Case04" in smg("learn", "m", "A", *TINY, cwd=tmp_path).stderr


def test_a_dicom_slice_in_the_place_of_its_folder(tmp_path: Path, folder: Path) -> None:
    files = sorted(write_series(tmp_path / "series", scan(1)[0].array.clip(0)).iterdir())
    shutil.copy(files[0], tmp_path / "IM0001")
    for slice_ in (files[0], tmp_path / "IM0001"):
        result = smg("predict", folder / "model", slice_, "--out", tmp_path / "masks")
        assert_line(result, 1, slice_.name, "one DICOM file, not a scan", "folder")
    write_site(tmp_path / "B", 3)
    (tmp_path / "B/Case01.nii.gz").unlink()
    shutil.copy(files[0], tmp_path / "B/Case01.dcm")
    result = smg("sites", "check", "B", cwd=tmp_path)
    assert "B/Case01.dcm: one DICOM file, not a scan" in result.stdout


def test_every_command_that_reads_scans_has_a_way_past_the_limit(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMG_LIMIT", "0.000001")
    scans = folder / "A/Case00.nii.gz"
    commands: tuple[tuple[object, ...], ...] = (
        ("predict", folder / "model", scans, "--out", tmp_path / "masks"),
        ("evaluate", folder / "model", folder / "A"),
        ("learn", tmp_path / "new", folder / "A", *TINY),
        ("plan", folder / "A", "--minutes", "0.1"),
        ("sites", "show", folder / "A", "--out", tmp_path / "a.png"),
        ("sites", "check", folder / "A"),
    )
    for words in commands:
        monkeypatch.setenv("SMG_CACHE", str(tmp_path / "cache" / str(words[0])))
        result = smg(*words)
        assert result.returncode == 1, words
        said = result.stdout + result.stderr
        assert "--limit 1" in said
        assert "SMG_LIMIT=1" in said
        assert smg(*words, "--limit", "1").returncode == 0, words
    assert_line(smg(*commands[0], "--overwrite", "--limit", "-1"), 2, "--limit -1: not a size")


@pytest.mark.parametrize("command", ["predict", "evaluate", "learn"])
def test_arguments_in_the_wrong_order(folder: Path, command: str) -> None:
    more = ("--out", "masks") if command == "predict" else ()
    first = "A/Case00.nii.gz" if command == "predict" else "A"
    assert_line(smg(command, first, "model", *more, cwd=folder), 2, "give the model first", f"smg {command} MODEL")


def test_a_new_model_and_its_site_in_the_wrong_order(folder: Path) -> None:
    assert_line(smg("learn", "A", "newmodel", *TINY, cwd=folder), 2, "give the model first")
    assert not (folder / "newmodel").exists()


def test_what_needs_no_scan_is_refused_before_any_is_read(tmp_path: Path, folder: Path) -> None:
    """The scans here cannot be read: if one were, the message would be about it."""
    for name in "AB":
        for number in range(5 if name == "A" else 1):
            for suffix in ("", "_segmentation"):
                (tmp_path / name).mkdir(exist_ok=True)
                (tmp_path / name / f"Case{number}{suffix}.nii.gz").write_bytes(b"no scan")
    assert_line(smg("learn", folder / "model", tmp_path / "A"), 1, "site A was learned before (round 1)")
    assert_line(smg("learn", folder / "model", tmp_path / "B"), 1, "site B: has 1 subject")
    (tmp_path / "A").rename(tmp_path / "C")
    with locked(folder / "model"):
        assert_line(smg("learn", folder / "model", tmp_path / "C"), 1, "in use by process")
    (tmp_path / "split.json").write_text(
        json.dumps(
            {"seed": None, "sites": {"C": {"train": [], "validation": [], "test": [f"Case{n}" for n in range(5)]}}}
        )
    )
    result = smg("learn", folder / "model", tmp_path / "C", "--split", tmp_path / "split.json")
    assert_line(result, 1, "site C", "no subject")


def test_two_geometries_in_one_header_are_mentioned_by_every_command(tmp_path: Path) -> None:
    site = write_site(tmp_path / "A", 4)
    for name in ("Case01.nii.gz", "Case01_segmentation.nii.gz"):
        made = nib.load(site / name)
        other = made.affine.copy()
        other[0, 3] += 25
        image = nib.Nifti1Image(np.asarray(made.dataobj), made.affine, made.header)
        image.set_qform(other, code=1)
        nib.save(image, site / name)
    checked = smg("sites", "check", "A", "--json", cwd=tmp_path)
    assert checked.returncode == 0
    notes = json.loads(checked.stdout)["notes"]
    assert [Path(one["file"]).name for one in notes] == ["Case01.nii.gz", "Case01_segmentation.nii.gz"]
    assert all("25.0 mm apart" in one["reason"] for one in notes)
    assert "25.0 mm apart" in smg("sites", "check", "A", cwd=tmp_path).stdout
    learned = smg("learn", "m", "A", *TINY, cwd=tmp_path)
    assert (learned.returncode, learned.stderr.count("25.0 mm apart")) == (0, 1)
    predicted = smg("predict", "m", "A/Case00.nii.gz", "A/Case01.nii.gz", "--out", "o", "--json", cwd=tmp_path)
    assert [bool(row["note"]) for row in json.loads(predicted.stdout)] == [False, True]


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_distances_that_no_scan_has_are_a_fault(tmp_path: Path, scale: float) -> None:
    site = write_site(tmp_path / "A", 4)
    made = nib.load(site / "Case01.nii.gz")
    image = nib.Nifti1Image(np.asarray(made.dataobj), None)
    image.set_sform(made.affine * np.array([scale, scale, scale, 1]), code=1)
    nib.save(image, site / "Case01.nii.gz")
    found = json.loads(smg("sites", "check", "A", "--json", cwd=tmp_path).stdout)["faults"]
    assert [Path(one["file"]).name for one in found] == ["Case01.nii.gz"]
    assert_line(smg("learn", "m", "A", *TINY, cwd=tmp_path), 1, "Case01.nii.gz")
    assert not (tmp_path / "m").exists()
