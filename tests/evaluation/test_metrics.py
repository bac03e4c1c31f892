"""Metrics computed by hand, and compared with MONAI and MedPy on real masks."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from smg.evaluation.metrics import COMPARED, LISTED, METRICS, MaskPair, dice, measure, surface_distances
from smg.sites.layouts import find_sites
from smg.sites.volume import read_volume

ONE = (1.0, 1.0, 1.0)


def box(*corners: int, shape: tuple[int, int, int] = (12, 14, 16)) -> np.ndarray:
    k0, k1, j0, j1, i0, i1 = corners
    mask = np.zeros(shape, bool)
    mask[k0:k1, j0:j1, i0:i1] = True
    return mask


def test_a_mask_and_itself() -> None:
    a = box(2, 8, 3, 9, 3, 9)
    assert measure(a, a, ONE).dsc == 1
    assert measure(a, a, ONE).asd == 0
    assert measure(a, a, ONE).surface_dice == 1
    assert measure(a, a, ONE).volume_difference == 0


def test_two_single_voxels_by_hand() -> None:
    a, b = box(2, 3, 3, 4, 3, 4), box(4, 5, 3, 4, 6, 7)
    found = measure(a, b, (2.0, 1.0, 0.5))
    distance = math.hypot(2 * 2.0, 3 * 0.5)
    assert found.dsc == 0
    assert found.asd == found.hd95 == found.asd_to_truth == pytest.approx(distance)
    assert found.surface_dice == 0


def test_directed_distances_differ_and_the_symmetric_one_is_the_mean_over_both_surfaces() -> None:
    a, b = box(2, 8, 3, 9, 3, 9), box(2, 8, 3, 9, 3, 13)
    found = measure(a, b, ONE)
    assert found.asd_to_truth < found.asd_to_prediction
    surfaces = 6 * 6 * 6 - 4 * 4 * 4, 6 * 6 * 10 - 4 * 4 * 8
    weighed = found.asd_to_truth * surfaces[0] + found.asd_to_prediction * surfaces[1]
    assert found.asd == pytest.approx(weighed / sum(surfaces))
    assert found.volume_difference == pytest.approx(-6 * 6 * 4 / 1000)


def test_a_mask_at_the_border_of_the_scan_has_its_surface_there() -> None:
    a, b = box(0, 12, 0, 14, 0, 16), box(0, 12, 0, 14, 0, 15)
    there, back = surface_distances(a, b, ONE)
    assert there.max() == 1
    assert len(there) == a.sum() - 10 * 12 * 14
    assert len(back) == b.sum() - 10 * 12 * 13


def test_empty_masks() -> None:
    a, empty = box(2, 8, 3, 9, 3, 9), np.zeros((12, 14, 16), bool)
    both = measure(empty, empty, ONE)
    assert both.dsc == 1
    for found in (both, measure(a, empty, ONE), measure(empty, a, ONE)):
        assert math.isnan(found.asd)
        assert math.isnan(found.hd95)
        assert math.isnan(found.surface_dice)
    assert measure(a, empty, ONE).dsc == measure(empty, a, ONE).dsc == 0


def others(a: np.ndarray, b: np.ndarray, spacing: tuple[float, float, float]) -> None:
    """Compare every metric that MONAI and MedPy have too, to 1e-6."""
    from medpy.metric import binary as medpy
    from monai import metrics as monai

    found = measure(a, b, spacing)
    assert found.dsc == pytest.approx(medpy.dc(a, b), abs=1e-6)
    assert found.asd_to_truth == pytest.approx(medpy.asd(a, b, spacing), abs=1e-6)
    assert found.asd_to_prediction == pytest.approx(medpy.asd(b, a, spacing), abs=1e-6)
    assert found.asd == pytest.approx(medpy.assd(a, b, spacing), abs=1e-6)
    x, y = (torch.from_numpy(m)[None, None].float() for m in (a, b))

    def of_monai(compute, **more: object) -> float:
        return float(compute(x, y, include_background=True, spacing=list(spacing), **more))

    assert found.asd_to_truth == pytest.approx(of_monai(monai.compute_average_surface_distance), rel=1e-6)
    symmetric = of_monai(monai.compute_average_surface_distance, symmetric=True)
    assert found.asd == pytest.approx(symmetric, rel=1e-6)
    assert found.hd95 == pytest.approx(of_monai(monai.compute_hausdorff_distance, percentile=95), rel=1e-6)
    near = of_monai(monai.compute_surface_dice, class_thresholds=[2.0])
    assert found.surface_dice == pytest.approx(near, abs=1e-6)


def test_monai_and_medpy_agree_on_random_masks() -> None:
    rng = np.random.default_rng(0)
    from scipy.ndimage import gaussian_filter

    for _ in range(3):
        a, b = (gaussian_filter(rng.normal(size=(14, 40, 44)), 3) > 0.02 for _ in range(2))
        others(a, b, (3.0, 0.6, 0.5))


def test_monai_and_medpy_agree_on_real_masks(real_data: Path) -> None:
    for site in find_sites(real_data).values():
        volume = read_volume(site.subjects[0].mask)
        truth = volume.array != 0
        predicted = np.roll(truth, (1, 3, -2), axis=(0, 1, 2))  # a mask as wrong as a network's
        i, j, k = volume.spacing
        others(predicted, truth, (k, j, i))
        assert dice(truth, truth) == 1


def test_distances_and_volumes_on_a_sheared_grid() -> None:
    """Compare with brute force over the voxels of both surfaces in millimetres."""
    steps = np.array([[0.0, 3 * math.tan(math.radians(30)), 3.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])  # of k, j, i
    a, b = box(2, 10, 4, 9, 3, 9), box(4, 11, 4, 11, 3, 9)
    spacing = tuple(np.linalg.norm(steps, axis=1).tolist())
    found = measure(a, b, spacing, steps)

    def surface(mask: np.ndarray) -> np.ndarray:
        padded = np.pad(mask, 1)
        inner = np.all([np.roll(padded, step, axis) for step in (1, -1) for axis in range(3)], axis=0)
        return np.argwhere(padded & ~inner) @ steps

    apart = np.linalg.norm(surface(a)[:, None] - surface(b)[None], axis=2)
    there, back = apart.min(axis=1), apart.min(axis=0)
    assert found.asd == pytest.approx(np.concatenate([there, back]).mean())
    assert found.hd95 == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)))
    assert found.volume_difference == pytest.approx((int(a.sum()) - int(b.sum())) * 3.0 / 1000)
    assert measure(a, b, spacing).asd > 1.02 * found.asd  # without the steps the axes count as perpendicular
    straight = np.diag([3.0, 0.5, 0.7])
    assert measure(a, b, (3.0, 0.5, 0.7), straight).asd == pytest.approx(measure(a, b, (3.0, 0.5, 0.7)).asd)


def test_the_table_has_one_entry_a_metric_in_the_order_of_results_json() -> None:
    a = box(2, 8, 3, 9, 3, 9)
    assert list(METRICS) == list(asdict(measure(a, a, ONE)))
    assert [entry.name for entry in METRICS.values()] == list(METRICS)
    assert list(COMPARED) == ["dsc", "asd"]  # the keys of `matrix` and `measures` in results.json
    assert "asd_to_truth" not in LISTED


def test_each_entry_computes_its_own_field() -> None:
    a, b = box(2, 8, 3, 9, 3, 9), box(2, 8, 3, 9, 3, 13)
    pair = MaskPair(a, b, *surface_distances(a, b, ONE), voxel_ml=0.001)
    values = asdict(measure(a, b, ONE))
    assert {name: entry.function(pair) for name, entry in METRICS.items()} == values


def test_a_better_mask_is_better_in_the_direction_of_every_metric() -> None:
    truth, near, far = box(2, 8, 3, 9, 3, 9), box(2, 8, 3, 9, 3, 10), box(2, 8, 3, 9, 3, 15)
    one, other = (asdict(measure(mask, truth, ONE)) for mask in (near, far))
    for name, entry in METRICS.items():
        better = {
            "higher": one[name] > other[name],
            "lower": one[name] < other[name],
            "nearer zero": abs(one[name]) < abs(other[name]),
        }
        assert better[entry.better], name


def test_values_are_shown_in_the_unit_of_their_metric() -> None:
    assert (METRICS["dsc"].head, METRICS["dsc"].text(0.85349)) == ("DSC %", "85.3")
    assert (METRICS["asd"].head, METRICS["asd"].text(1.234)) == ("ASD mm", "1.23")
    assert METRICS["volume_difference"].text(-0.01) == "0.0"  # zero has no sign
    assert (METRICS["asd"].text(None), METRICS["asd"].text(None, missing="–")) == ("-", "–")
