"""Polygons are filled as geometry says, and a mask's outlines give the mask back."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.path import Path as Polygon
from scipy import ndimage

from smg.dicom.polygons import fill, outlines


def ellipse(centre: tuple[float, float], axes: tuple[float, float], turned: float, corners: int = 720) -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    x, y = axes[0] * np.cos(t), axes[1] * np.sin(t)
    c, s = np.cos(turned), np.sin(turned)
    return np.stack([centre[0] + c * x - s * y, centre[1] + s * x + c * y], axis=1)


@pytest.mark.parametrize("turned", [0.0, 0.4, 1.1])
@pytest.mark.parametrize("axes", [(40.3, 28.7), (33.4, 33.4), (60.5, 22.25)])
@pytest.mark.parametrize("centre", [(80.0, 80.0), (77.31, 83.62)])
def test_the_area_of_an_ellipse(centre: tuple[float, float], axes: tuple[float, float], turned: float) -> None:
    area = fill([ellipse(centre, axes, turned)], (160, 170)).sum()
    assert area == pytest.approx(np.pi * axes[0] * axes[1], rel=0.005)


def test_a_circle_of_whole_radius_about_a_pixel_holds_the_centres_within_it() -> None:
    """The worst case of sampling at centres, 0.7 % too few: the count is that of the whole points within the circle."""
    y, x = np.mgrid[-35:36, -35:36]
    within = x**2 + y**2 < 31**2
    assert np.array_equal(fill([ellipse((35, 35), (31, 31), 0.4)], within.shape), within)


def test_the_area_of_a_ring_and_of_what_leaves_the_picture() -> None:
    ring = fill([ellipse((80, 80), (50, 40), 0.3), ellipse((82, 79), (20, 15), 0)], (160, 170))
    assert ring.sum() == pytest.approx(np.pi * (50 * 40 - 20 * 15), rel=0.005)
    half = fill([ellipse((-0.5, 80), (50, 40), 0)], (160, 170))
    assert half.sum() == pytest.approx(np.pi * 50 * 40 / 2, rel=0.005)
    assert not fill([ellipse((300, 80), (50, 40), 0)], (160, 170)).any()


def test_each_pixel_is_as_another_library_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        angles = np.sort(rng.uniform(0, 2 * np.pi, 12))
        lengths = rng.uniform(4, 14, 12)
        star = np.stack([15 + lengths * np.cos(angles), 16 + lengths * np.sin(angles)], axis=1)
        y, x = np.mgrid[:32, :30]
        oracle = Polygon(star).contains_points(np.stack([x.ravel(), y.ravel()], axis=1)).reshape(32, 30)
        assert np.array_equal(fill([star], (32, 30)), oracle)


def test_corners_on_pixel_centres_count_once() -> None:
    square = np.array([[2.0, 2.0], [5, 2], [5, 6], [2, 6]])
    assert fill([square], (9, 9)).sum() == 3 * 4
    diamond = np.array([[4.0, 0.0], [8, 4], [4, 8], [0, 4]])
    assert fill([diamond], (9, 9)).sum() == 32


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.9])
def test_outlines_give_the_mask_back(share: float) -> None:
    rng = np.random.default_rng(3)
    for smooth in (0, 1.5):
        noise = ndimage.gaussian_filter(rng.normal(size=(40, 50)), smooth)
        mask = noise < np.quantile(noise, share)
        polygons = outlines(mask)
        assert len(polygons) == ndimage.label(mask)[1]
        assert np.array_equal(fill(polygons, mask.shape), mask)
    assert outlines(np.zeros((5, 5), bool)) == []


def test_a_rectangle_has_four_corners() -> None:
    mask = np.zeros((9, 9), bool)
    mask[2:5, 3:8] = True
    (polygon,) = outlines(mask)
    assert sorted(map(tuple, polygon.tolist())) == [(2.5, 1.5), (2.5, 4.5), (7.5, 1.5), (7.5, 4.5)]
