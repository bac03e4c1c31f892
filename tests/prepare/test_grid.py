"""Scans are mapped to the prepared grid, and masks back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smg.prepare.grid import Grid, resize, resize_classes, resize_matrix
from smg.sites.layouts import find_sites
from smg.sites.volume import Volume, read_volume, write_volume
from tests.sites.test_volume import FORMATS, directions, placed, rotation

sides = st.integers(3, 70)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * np.logical_and(a, b).sum() / (a.sum() + b.sum()))


@given(source=sides, target=sides)
@settings(max_examples=60, deadline=None)
def test_resizing_is_torchs_antialiased_bilinear(source: int, target: int) -> None:
    image = np.random.default_rng(source * 100 + target).normal(size=(2, source, source + 1)).astype(np.float32)
    ours = resize(image, target, target + 2)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(image)[None].double(), (target, target + 2), mode="bilinear", antialias=True
    )[0]
    assert np.abs(ours - theirs.numpy()).max() < 1e-5


@given(source=sides, target=sides)
def test_rows_of_the_matrix_sum_to_one_and_equal_size_is_the_identity(source: int, target: int) -> None:
    assert np.allclose(resize_matrix(source, target).sum(axis=1), 1, atol=1e-6)
    assert (resize_matrix(source, source).toarray() == np.eye(source)).all()


def test_classes_by_the_largest_share() -> None:
    mask = np.zeros((1, 4, 4), np.uint8)
    mask[0, :2, :2] = 1
    mask[0, 2:, 2:] = 2
    small = resize_classes(mask, 2, 2)
    assert small.tolist() == [[[1, 0], [0, 2]]]
    assert np.array_equal(resize_classes(small, 4, 4), mask)
    assert resize_classes(mask * 0, 2, 2).tolist() == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize("direction", directions())
def test_at_the_scans_own_size_there_and_back_is_identical(direction: np.ndarray) -> None:
    in_plane = 18
    orientation = Grid((5, 6, 7), placed(direction), in_plane).orientation
    shape = tuple(np.array([5, in_plane, in_plane])[np.argsort(orientation.axes)].tolist())
    grid = Grid(shape, placed(direction), in_plane)
    mask = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)
    assert grid.classes(mask).shape == (5, in_plane, in_plane)
    assert np.array_equal(grid.back(grid.classes(mask)), mask)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("direction", [np.eye(3), np.diag([-1.0, 1, -1]), np.eye(3)[:, [2, 0, 1]], rotation(20)])
def test_through_every_format_and_back(tmp_path: Path, suffix: str, direction: np.ndarray) -> None:
    mask = np.random.default_rng(0).integers(0, 2, (16, 16, 16)).astype(np.uint8)
    write_volume(tmp_path / f"m{suffix}", Volume(mask, placed(direction)))
    read = read_volume(tmp_path / f"m{suffix}")
    grid = Grid(mask.shape, read.affine, 16)
    write_volume(tmp_path / f"back{suffix}", Volume(grid.back(grid.classes(read.array)), read.affine))
    back = read_volume(tmp_path / f"back{suffix}")
    assert np.array_equal(back.array, mask)
    assert np.allclose(back.affine, placed(direction), atol=1e-5)


def there_and_back(mask: np.ndarray, direction: np.ndarray, path: Path) -> None:
    """Check that a mask in any direction and format, prepared at its own size and written back, is the same."""
    orientation = Grid((2, 3, 4), placed(direction), 16).orientation
    stored = np.ascontiguousarray(orientation.stored(mask))
    write_volume(path, Volume(stored, placed(direction)))
    read = read_volume(path)
    grid = Grid(read.array.shape, read.affine, mask.shape[-1])
    prepared = grid.classes(read.array)
    assert np.array_equal(prepared, mask)
    write_volume(path, Volume(grid.back(prepared), read.affine))
    assert np.array_equal(read_volume(path).array, stored)


ODD = [
    np.eye(3),
    np.diag([1.0, -1, -1]),
    np.eye(3)[:, [1, 2, 0]] * [1, -1, 1],
    rotation(20),
    rotation(-35)[:, [2, 0, 1]],
]


@pytest.mark.parametrize("suffix", FORMATS)
def test_phantom_masks_in_every_format_and_direction(tmp_path: Path, suffix: str) -> None:
    from smg.phantom.phantom import PROTOCOLS, draw
    from smg.randomness import numpy_generator

    mask = draw(PROTOCOLS["F"], numpy_generator("phantom", 0, 5, 0))[1].axial()
    square = np.ascontiguousarray(mask[:, : min(mask.shape[1:]), : min(mask.shape[1:])])
    for direction in ODD:
        there_and_back(square, direction, tmp_path / f"m{suffix}")


@pytest.mark.parametrize("suffix", FORMATS)
def test_real_masks_in_every_format_and_direction(real_data: Path, tmp_path: Path, suffix: str) -> None:
    for site in find_sites(real_data).values():
        mask = np.ascontiguousarray(read_volume(site.subjects[0].mask).axial())
        for direction in ODD:
            there_and_back(mask, direction, tmp_path / f"m{suffix}")


def test_scores_are_resized_before_the_class_is_decided() -> None:
    grid = Grid((2, 12, 10), np.eye(4), 20)
    scores = np.zeros((2, 3, 20, 20), np.float32)
    scores[:, 2, :10] = 1
    scores[:, 0, 10:] = 1
    mask = grid.back(scores)
    assert mask.shape == (2, 12, 10)
    assert (mask[:, :6] == 2).all()
    assert (mask[:, 6:] == 0).all()


def test_real_masks_are_nearly_the_same_after_preparation_and_back(real_data: Path) -> None:
    for site in find_sites(real_data).values():
        for subject in site.subjects[:6]:
            volume = read_volume(subject.mask)
            mask = (volume.array != 0).astype(np.uint8)
            for size, least in ((192, 1.0), (384, 0.99), (256, 0.98)):
                grid = Grid(mask.shape, volume.affine, size)
                assert dice(grid.back(grid.classes(mask)), mask) >= least, (subject.identity, size)
