"""Each kind of fault is found once, with its file and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from smg.errors import SmgError
from smg.sites.check import Check, check_sites, on_all_cores
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import affine, scan, write_site


def check(folder: Path, labels: Labels | None = None, limit: int = 2 << 30) -> Check:
    return check_sites(find_sites(folder).values(), labels or Labels(), limit)


def image(folder: Path, array: np.ndarray) -> None:
    write_volume(folder / "Case01.nii.gz", Volume(array, affine()))


def mask(folder: Path, array: np.ndarray, at: np.ndarray | None = None) -> None:
    write_volume(folder / "Case01_segmentation.nii.gz", Volume(array, affine() if at is None else at))


def truncate(folder: Path) -> None:
    whole = (folder / "Case01.nii.gz").read_bytes()
    (folder / "Case01.nii.gz").write_bytes(whole[: len(whole) // 2])


def elsewhere() -> np.ndarray:
    moved = affine()
    moved[0, 3] += 9.0
    return moved


IMAGE, MASK = (volume.array for volume in scan(1))
FOUR = nib.Nifti1Image(np.zeros((3, 4, 5, 2), np.int16), np.eye(4))

FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no mask": (lambda f: (f / "Case01_segmentation.nii.gz").unlink(), "Case01.nii.gz", "image without mask"),
    "no image": (lambda f: (f / "Case01.nii.gz").unlink(), "Case01_segmentation.nii.gz", "mask without image"),
    "truncated": (truncate, "Case01.nii.gz", "cut short: "),
    "corrupt": (lambda f: (f / "Case01.nii.gz").write_bytes(b"x" * 999), "Case01.nii.gz", "not a NIfTI file"),
    "sizes": (lambda f: mask(f, MASK[:-1]), "Case01_segmentation.nii.gz",
              "image and mask grids differ: sizes differ: 24 x 20 x 6 and 24 x 20 x 5"),
    "places": (lambda f: mask(f, MASK, elsewhere()), "Case01_segmentation.nii.gz",
               "image and mask grids differ: same size, but positions differ by up to 9.0 mm"),
    "empty": (lambda f: mask(f, MASK * 0), "Case01_segmentation.nii.gz", "empty mask"),
    "label": (lambda f: mask(f, MASK * np.float32(0.5)), "Case01_segmentation.nii.gz",
              "label values that were not expected: 0.5; not whole numbers; correct the mask"),
    "nan in a mask": (lambda f: mask(f, np.where(MASK > 0, np.nan, 0).astype(np.float32)), "Case01_segmentation.nii.gz",
                      "not whole numbers; correct the mask"),
    "infinite mask": (lambda f: mask(f, np.where(MASK > 0, np.inf, 0).astype(np.float32)), "Case01_segmentation.nii.gz",
                      "label values that were not expected: inf; not whole numbers; correct the mask"),
    "nan": (lambda f: image(f, np.where(IMAGE > 150, np.nan, IMAGE).astype(np.float32)), "Case01.nii.gz",
            "voxels are NaN or infinite"),
    "infinite": (lambda f: image(f, np.where(IMAGE.max() == IMAGE, np.inf, IMAGE).astype(np.float32)), "Case01.nii.gz",
                 "voxels are NaN or infinite"),
    "constant": (lambda f: image(f, IMAGE * 0 + 7), "Case01.nii.gz", "constant image"),
    "four": (lambda f: FOUR.to_filename(f / "Case01.nii.gz"), "Case01.nii.gz", "four dimensions"),
    "twice": (lambda f: image(f, scan(0)[0].array), "Case01.nii.gz", "the same scan twice"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_found_once_and_named(tmp_path: Path, kind: str) -> None:
    damage, file, sentence = FAULTS[kind]
    folder = write_site(tmp_path / "HK", 3)
    assert check(tmp_path).faults == []
    damage(folder)
    (fault,) = check(tmp_path).faults
    assert (fault.site, fault.subject) == ("HK", "Case01")
    assert fault.file == str(folder / file)
    assert sentence in fault.reason
    assert "\n" not in str(fault)


def test_a_scan_over_the_limit_is_a_fault(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 2)
    faults = check(tmp_path, limit=4000).faults
    assert len(faults) == 2
    assert all("over the limit" in fault.reason for fault in faults)


def test_a_file_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 2)
    sites = find_sites(tmp_path)
    (tmp_path / "HK" / "Case00.nii.gz").unlink()
    (fault,) = check_sites(sites.values(), Labels()).faults
    assert "no such file" in fault.reason


def test_label_values_that_were_not_expected(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK", 2)
    mask(folder, MASK * 3)
    assert check(tmp_path).faults == []
    (fault,) = check(tmp_path, Labels.model_validate([1, 2])).faults
    assert "not expected: 3; give them to a class" in fault.reason
    (fault,) = check(tmp_path, Labels.parse(["zone=1,2", "background=0,3"])).faults
    assert "empty mask" in fault.reason  # now that 3 is background
    with pytest.raises(SmgError, match="name a class too"):
        Labels.parse(["background=0,3"])  # without a class any value is foreground, 3 too


def test_the_same_scan_is_found_across_sites_and_formats(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 2)
    write_site(tmp_path / "UCL", 3, ".mha", first_seed=1)  # its Case00 is HK's Case01
    (fault,) = check(tmp_path).faults
    assert (fault.site, fault.subject) == ("UCL", "Case00")


def test_the_same_scan_is_found_in_another_orientation_or_without_one(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 1)
    for suffix in ("", "_segmentation"):
        volume = read_volume(tmp_path / "HK" / f"Case00{suffix}.nii.gz")
        turned = volume.affine.copy()
        turned[:3, 3] += turned[:3, 2] * (len(volume.array) - 1)
        turned[:3, 2] *= -1
        write_volume(tmp_path / "UCL" / f"turned{suffix}.mha", Volume(volume.array[::-1].astype("i4"), turned))
        write_volume(tmp_path / "X" / f"stripped{suffix}.nii", Volume(volume.array, np.diag([-1.0, -1.0, 1.0, 1.0])))
    faults = check(tmp_path).faults
    assert [(fault.site, fault.subject) for fault in faults] == [("UCL", "turned"), ("X", "stripped")]
    assert all("HK" in fault.reason for fault in faults)


def test_facts(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 3)
    write_volume(tmp_path / "HK" / "Case03.nii.gz", Volume(scan(5, (9, 30, 20))[0].array, affine((1.0, 1.0, 2.0))))
    write_volume(
        tmp_path / "HK" / "Case03_segmentation.nii.gz", Volume(scan(5, (9, 30, 20))[1].array, affine((1.0, 1.0, 2.0)))
    )
    facts = check(tmp_path).as_json()["sites"]["HK"]  # type: ignore[index]
    assert facts["subjects"] == 4
    assert facts["slices"] == 3 * 6 + 9
    assert facts["foreground_slices"] == 3 * 4 + 7
    assert facts["size"] == [[20, 20], [24, 30]]
    assert facts["spacing"] == [[0.6, 0.5, 2.0], [1.0, 1.0, 3.0]]


def test_work_on_all_cores_keeps_its_order_and_few_at_a_time() -> None:
    assert list(on_all_cores(lambda x: x * x, list(range(50)))) == [x * x for x in range(50)]
    assert list(on_all_cores(lambda x: x, [])) == []


def test_a_scan_with_nan_does_not_change_the_sites_range(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 2)
    image = read_volume(tmp_path / "A/Case00.nii.gz")
    array = image.array.astype(np.float32)
    array[0, 0, 0] = np.nan
    write_volume(tmp_path / "A/Case00.nii.gz", Volume(array, image.affine))
    result = check_sites([Site.find(tmp_path / "A")], Labels()).as_json()
    json.dumps(result, allow_nan=False)
    assert "NaN" in str(result["faults"])
