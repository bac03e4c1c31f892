"""Another anatomy: two classes, CT intensities, one slice, large slices, tiny organs, a class that is absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import smg

CLASSES = ("--labels", "organ=1", "--labels", "lesion=2")
TINY = "iterations=2 preparation.size=32 preparation.spacing=4 network.width=4 network.depth=2"
SETTINGS = [word for one in TINY.split() for word in ("--set", one)]


def ellipsoid(shape: tuple[int, ...], column: float, radius: float) -> np.ndarray:
    z, y, x = np.indices(shape).astype(float)
    middle = [(n - 1) / 2 for n in shape]
    depth = max(0.4 * shape[0], 1.0)
    flat = ((y - middle[1]) / radius) ** 2 + ((x - column * shape[2]) / radius) ** 2
    return ((z - middle[0]) / depth) ** 2 + flat < 1


def write_site(
    folder: Path, shape: tuple[int, int, int], spacing: tuple[float, ...], radius: float, lesions: tuple[bool, ...]
) -> None:
    """Write a subject for each entry of `lesions`, which says whether it has the second class; CT-like intensities."""
    rng = np.random.default_rng(len(folder.name))
    folder.mkdir(parents=True)
    for number, has_lesion in enumerate(lesions):
        organ, lesion = ellipsoid(shape, 0.42, radius), ellipsoid(shape, 0.58, 0.7 * radius)
        scan = rng.normal(-1000, 40, shape)
        scan[organ] += 1100
        scan[lesion] += 4000 * has_lesion
        mask = organ.astype(np.uint8)
        mask[lesion & has_lesion] = 2
        affine = np.diag([*spacing, 1.0])
        write_volume(folder / f"Case{number}.nii.gz", Volume(scan.astype(np.int16), affine))
        write_volume(folder / f"Case{number}_segmentation.nii.gz", Volume(mask, affine))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    sites = folder / "sites"
    write_site(sites / "ct", (6, 64, 64), (1.5, 1.5, 5.0), 9, (True,) * 4)
    write_site(sites / "one", (1, 48, 48), (2.0, 2.0, 8.0), 7, (True,) * 4)
    write_site(sites / "large", (2, 1024, 1024), (0.2, 0.2, 5.0), 90, (True,) * 3)
    write_site(sites / "tiny", (3, 40, 80), (2.0, 0.8, 9.0), 3.0, (True, False, True, False))
    write_site(sites / "gone", (3, 40, 80), (2.0, 0.8, 9.0), 1.4, (False,) * 4)
    write_site(sites / "never", (4, 48, 48), (2.0, 2.0, 5.0), 7, (False,) * 4)
    return folder


def test_check_names_sizes_and_absent_classes(desk: Path) -> None:
    result = smg("sites", "check", "sites", *CLASSES, cwd=desk)
    assert result.returncode == 0, result.stdout
    assert "1024²" in result.stdout
    assert "never: class lesion is in none of its 4 masks" in result.stdout
    assert "tiny: class lesion is in 2 of its 4 masks" in result.stdout
    assert "ct: class" not in result.stdout
    assert smg("sites", "show", "sites", *CLASSES, "--out", "sites.png", cwd=desk).returncode == 0


def test_a_model_goes_through_all_of_them_and_tells_classes_apart(desk: Path) -> None:
    """A round may be held, since so small a network learns nothing; a fault would be another exit code."""
    for name in ("ct", "one", "large", "tiny", "never"):
        first = CLASSES if name == "ct" else ()
        result = smg("learn", "model", f"sites/{name}", *first, *SETTINGS, "--quiet", cwd=desk)
        assert result.returncode in (0, 3), result.stderr
        assert "organ " in result.stdout
        assert "lesion " in result.stdout
    result = smg("learn", "model", "sites/gone", *SETTINGS, cwd=desk)
    assert (result.returncode, result.stdout) == (1, "")
    assert "site gone: no foreground is left in any training mask at this size" in result.stderr
    scans = [f"sites/{name}/Case0.nii.gz" for name in ("one", "large", "tiny")]
    result = smg("predict", "model", *scans, "--out", "masks", "--json", cwd=desk)
    assert result.returncode == 0, result.stderr
    for row, scan in zip(json.loads(result.stdout), scans, strict=True):
        mask = read_volume(desk / row["mask"])
        assert mask.array.shape == read_volume(desk / scan).array.shape
        each = [np.count_nonzero(mask.array == value) * mask.voxel / 1000 for value in (1, 2)]
        assert list(row["volumes_ml"].values()) == pytest.approx(each, abs=1e-3)
    result = smg("evaluate", "model", "sites/never", cwd=desk)
    assert result.returncode == 0, result.stderr
    assert "never lesion" in result.stdout
