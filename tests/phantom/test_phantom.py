"""Phantom sites: equal for equal seeds, in the data set's layout, each scan plausible."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from smg.errors import SmgError
from smg.phantom.phantom import PROTOCOLS, SIX, draw, write_phantom_sites
from smg.randomness import numpy_generator
from smg.sites.check import check_sites
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites
from smg.sites.volume import Volume, read_volume


@cache
def subject(letter: str, number: int, seed: int = 0) -> tuple[Volume, ...]:
    return draw(PROTOCOLS[letter], numpy_generator("phantom", seed, "ABCDEFGH".index(letter), number))


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return site F, small, written by two processes."""
    (folder,) = write_phantom_sites(tmp_path_factory.mktemp("sites"), small=True, workers=2, letters="F")
    return folder


def test_a_folder_of_the_users_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SmgError, match="holds no phantom sites"):
        write_phantom_sites(tmp_path, letters="F", subjects=1, workers=1)
    made = tmp_path / "made"
    write_phantom_sites(made, letters="F", subjects=1, workers=1)
    written = (made / "F" / "Case00.nii.gz").stat().st_mtime_ns
    write_phantom_sites(made, letters="F", subjects=1, workers=1)  # it finds all of them written
    assert (made / "F" / "Case00.nii.gz").stat().st_mtime_ns == written
    with pytest.raises(SmgError, match="of another seed"):
        write_phantom_sites(made, seed=1, letters="F", subjects=1, workers=1)


def test_the_sites_have_the_papers_numbers_of_subjects() -> None:
    assert {letter: PROTOCOLS[letter].subjects for letter in SIX} == {
        "A": 30, "B": 30, "C": 19, "D": 13, "E": 12, "F": 12,
    }  # fmt: skip


def test_layout_and_count_when_small(small_site: Path) -> None:
    expected = {f"Case{n:02d}{suffix}.nii.gz" for n in range(6) for suffix in ("", "_segmentation")}
    assert {path.name for path in small_site.iterdir()} == expected
    assert small_site.name == "F"


def test_a_subject_drawn_alone_equals_the_one_written_with_its_site(small_site: Path) -> None:
    for drawn, name in zip(subject("F", 3), ("Case03", "Case03_segmentation"), strict=True):
        written = read_volume(small_site / f"{name}.nii.gz")
        assert written.array.dtype == drawn.array.dtype
        np.testing.assert_array_equal(written.array, drawn.array)
        np.testing.assert_allclose(written.affine, drawn.affine, atol=1e-3)


def test_writing_again_changes_no_voxel_and_another_seed_does(small_site: Path, tmp_path: Path) -> None:
    written: list[str] = []
    write_phantom_sites(tmp_path, letters="F", subjects=2, workers=1, progress=written.append)
    assert written == ["F/Case00", "F/Case01"]
    for path in (tmp_path / "F").iterdir():
        np.testing.assert_array_equal(read_volume(path).array, read_volume(small_site / path.name).array)
    other, same = subject("F", 0, seed=1)[0].array, subject("F", 0)[0].array
    assert other.shape != same.shape or (other != same).mean() > 0.5


@pytest.mark.parametrize("letter", PROTOCOLS)
def test_geometry_is_within_the_protocol(letter: str) -> None:
    protocol, (image, mask) = PROTOCOLS[letter], subject(letter, 0)
    columns, rows, slices = image.spacing
    assert protocol.spacing[0] <= columns <= protocol.spacing[1]
    assert rows == pytest.approx(columns * protocol.aspect)
    assert protocol.thickness[0] - 1e-9 <= slices <= protocol.thickness[1] + 1e-9
    assert protocol.view[0] - 5 <= image.array.shape[2] * columns <= protocol.view[1] + 5
    assert image.array.shape == mask.array.shape
    np.testing.assert_array_equal(image.affine, mask.affine)
    assert image.orientation.axes == (0, 1, 2)  # axial, feet first
    assert image.orientation.flips == ()  # anterior up, the patient's right on the left
    assert image.array.dtype == np.int16
    assert mask.array.dtype == np.uint8


@pytest.mark.parametrize("letter", PROTOCOLS)
@pytest.mark.parametrize("number", [0, 1])
def test_the_gland_is_one_piece_inside_the_field_of_view(letter: str, number: int) -> None:
    _, mask = subject(letter, number)
    gland = mask.array > 0
    _, pieces = ndimage.label(gland)
    assert pieces == 1
    for axis in range(3):  # it touches no border, so both ends have slices without it
        assert not gland.take([0, -1], axis=axis).any()
    assert 10 < gland.sum() * np.prod(mask.spacing) / 1000 < 170  # millilitres
    assert 1 <= np.flatnonzero(gland.any(axis=(1, 2)))[0] <= 4


@pytest.mark.parametrize("letter", PROTOCOLS)
def test_only_a_and_b_have_masks_of_both_zones(letter: str) -> None:
    _, mask = subject(letter, 0)
    assert set(np.unique(mask.array)) == ({0, 1, 2} if letter in "AB" else {0, 1})


def glow(letter: str, number: int) -> float:
    """Return the ratio of the signal within 35 mm of the back of the gland to that elsewhere."""
    image, mask = subject(letter, number)
    middle = len(mask.array) // 2
    rows, columns = np.nonzero(mask.array[middle])
    j, i = np.indices(mask.array.shape[1:])
    near = np.hypot((j - rows.max()) * image.spacing[1], (i - columns.mean()) * image.spacing[0]) < 35
    return float(image.array[middle][near].mean() / image.array[middle][~near].mean())


def test_with_zones_every_site_has_two_classes_and_the_same_scans(tmp_path: Path) -> None:
    for zones in (False, True):
        write_phantom_sites(tmp_path / str(zones), letters="F", subjects=1, workers=1, zones=zones)
    plain, two = (read_volume(tmp_path / f"{zones}/F/Case00_segmentation.nii.gz").array for zones in (False, True))
    assert np.unique(two).tolist() == [0, 1, 2]
    assert np.array_equal(two > 0, plain > 0)
    scans = [read_volume(tmp_path / f"{zones}/F/Case00.nii.gz").array for zones in (False, True)]
    assert np.array_equal(*scans)
    with pytest.raises(SmgError, match="zones"):
        write_phantom_sites(tmp_path / "True", letters="F", subjects=1, workers=1)


def test_an_endorectal_coil_brightens_its_surroundings() -> None:
    mean = {letter: np.mean([glow(letter, number) for number in (0, 1)]) for letter in PROTOCOLS}
    assert min(mean[letter] for letter in "BEF") > max(mean[letter] for letter in "ACD")


def test_suppressed_fat_is_dark_and_the_gland_stays() -> None:
    def drawn(fat: float) -> list[np.ndarray]:
        return [v.array for v in draw(replace(PROTOCOLS["G"], fat=fat), numpy_generator("phantom", 0, 6, 0))]

    (dark, mask), (bright, same) = drawn(PROTOCOLS["G"].fat), drawn(1.0)
    np.testing.assert_array_equal(mask, same)
    with_fat, without = (image[mask > 0].mean() / image[mask == 0].mean() for image in (bright, dark))
    assert with_fat < 1.5 < 2 < without


def test_the_gland_fills_more_of_the_picture_where_the_field_of_view_is_small() -> None:
    def share(letter: str) -> float:
        return float(np.mean([(subject(letter, n)[1].array > 0).any(axis=0).mean() for n in (0, 1)]))

    assert share("E") > 1.2 * share("F")


@pytest.fixture(scope="module")
def two_channels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with F and A, two subjects each, T2 and ADC."""
    out = tmp_path_factory.mktemp("channels")
    write_phantom_sites(out, letters="FA", subjects=2, workers=1, channels=2)
    return out


def test_two_channels_are_written_as_nnunet_has_them(two_channels: Path) -> None:
    sites = find_sites(two_channels)
    assert {name: site.channels for name, site in sites.items()} == {"A": ("T2", "ADC"), "F": ("T2", "ADC")}
    assert {name: site.label_values for name, site in sites.items()} == {"A": {0, 1, 2}, "F": {0, 1}}
    result = check_sites(sites.values(), Labels())
    assert result.faults == []
    assert {name: facts.subjects for name, facts in result.sites.items()} == {"A": 2, "F": 2}


def test_a_second_channel_leaves_the_first_and_the_mask_as_they_are(two_channels: Path) -> None:
    for drawn, name in zip(subject("F", 1), ("imagesTr/Case01_0000", "labelsTr/Case01"), strict=True):
        written = read_volume(two_channels / "F" / f"{name}.nii.gz")
        np.testing.assert_array_equal(written.array, drawn.array)
        np.testing.assert_allclose(written.affine, drawn.affine, atol=1e-3)


def test_the_adc_map_shows_the_same_anatomy_with_its_own_contrast_and_noise(two_channels: Path) -> None:
    image, adc, mask = (
        read_volume(two_channels / "A" / f"{name}.nii.gz").array.astype(float)
        for name in ("imagesTr/Case00_0000", "imagesTr/Case00_0001", "labelsTr/Case00")
    )
    around = ndimage.binary_dilation(mask > 0, np.ones((1, 3, 3)), 12) & (mask == 0)
    assert 900 < adc[mask > 0].mean() < 2500  # 1e-6 mm2/s
    assert adc[mask > 0].mean() > 1.5 * adc[around].mean()  # fat is dark there, and bright in the scan
    assert image[mask > 0].mean() < 1.2 * image[around].mean()
    peripheral, central = ndimage.binary_erosion(mask == 1), ndimage.binary_erosion(mask == 2)
    assert adc[peripheral].mean() > adc[central].mean()
    air = adc[:, :8, :8]  # outside the body: noise alone
    assert air.std() > 10
    assert abs(np.corrcoef(air.ravel(), image[:, :8, :8].ravel())[0, 1]) < 0.2


def test_phantoms_of_one_channel_are_not_mixed_with_those_of_two(two_channels: Path) -> None:
    with pytest.raises(SmgError, match="of another seed or number of channels; give a new folder"):
        write_phantom_sites(two_channels, letters="F", subjects=1, workers=1)
    before = (two_channels / "F/imagesTr/Case00_0001.nii.gz").stat().st_mtime_ns
    write_phantom_sites(two_channels, letters="F", subjects=2, workers=1, channels=2)
    assert (two_channels / "F/imagesTr/Case00_0001.nii.gz").stat().st_mtime_ns == before


def test_the_phantom_needs_no_torch() -> None:
    code = "import sys, smg.phantom.phantom; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
