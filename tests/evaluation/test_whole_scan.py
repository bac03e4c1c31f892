"""Masks of whole scans are predicted on the scan's own grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smg.evaluation.subjects import evaluate_subjects, mean_of, prepared_dice
from smg.evaluation.whole_scan import class_scores, keep_largest, predict_mask, scores_and_moments
from smg.networks import NetworkConfig, build_network
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_site
from smg.replay.subject_features import subject_features, subject_moments
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import affine, scan, write_site


class Bright(nn.Module):
    """Predict foreground where the slice is bright."""

    def __init__(self, classes: int = 2, channel: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.classes, self.channel = classes, channel

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logit = self.scale * (images[:, self.channel] - 0.5)
        return torch.stack([-logit, logit, -logit - 9][: self.classes], dim=1) if self.classes > 1 else logit[:, None]


def site(tmp_path: Path, **options: object) -> tuple[list, Preparation]:
    made = Preparation.model_validate({"size": 24} | options)
    return prepare_site(Site.find(write_site(tmp_path / "HK", 3)), made), made


def test_the_mask_is_on_the_scans_own_grid(tmp_path: Path) -> None:
    prepared, options = site(tmp_path)
    mask = predict_mask(Bright(), prepared[0].images, prepared[0].grid, options)
    truth = read_volume(prepared[0].subject.mask).array
    assert mask.shape == truth.shape
    assert 2 * (mask & truth).sum() / (mask.sum() + truth.sum()) > 0.9


def test_one_sigmoid_equals_two_logits(tmp_path: Path) -> None:
    prepared, options = site(tmp_path)
    two, one = (class_scores(Bright(n), prepared[0].images, options) for n in (2, 1))
    assert np.allclose(one[:, 1] > 0.5, two[:, 1] > 0.5)
    assert np.allclose(one.sum(axis=1), 1, atol=1e-6)


def test_neighbours_reach_the_network(tmp_path: Path) -> None:
    prepared, options = site(tmp_path, adjacent=3)
    images, alone = prepared[0].images, options.model_copy(update={"adjacent": 1})
    scores = class_scores(Bright(channel=0), images, options)  # reads the slice below
    assert np.array_equal(scores[1:], class_scores(Bright(), images, alone)[:-1])


@pytest.mark.parametrize("adjacent", [1, 3])
def test_the_predicting_pass_shows_the_features_by_which_exemplars_are_chosen(tmp_path: Path, adjacent: int) -> None:
    prepared, options = site(tmp_path, adjacent=adjacent)
    network = build_network(NetworkConfig(width=4, depth=2, channels=adjacent))
    scores, moments = scores_and_moments(network, prepared[0].images, "bottleneck", options)
    assert np.array_equal(scores, class_scores(network, prepared[0].images, options))
    torch.testing.assert_close(moments, subject_moments(network, prepared[:1], options)[0])
    torch.testing.assert_close(moments[:16], subject_features(network, prepared[:1], options)[0])


def test_only_the_largest_component_of_each_class_stays() -> None:
    mask = np.zeros((4, 10, 10), np.uint8)
    mask[0, 0, 0] = 1
    mask[1:3, 3:6, 3:6] = 1
    mask[3, 9, 9] = mask[3, 9, 8] = 3
    mask[0, 9, 9] = 3
    kept = keep_largest(mask)
    assert (kept == 1).sum() == 18
    assert (kept == 3).sum() == 2
    assert keep_largest(np.zeros((2, 3, 3), np.uint8)).sum() == 0


def test_every_class_has_its_metrics(tmp_path: Path) -> None:
    folder = write_site(tmp_path / "HK", 2)
    for number in range(2):
        zones = scan(number)[1].array.copy()
        zones[:, :9][zones[:, :9] > 0] = 2
        write_volume(folder / f"Case{number:02d}_segmentation.nii.gz", Volume(zones, affine()))
    options = Preparation.model_validate({"size": 24, "labels": {"central": 1, "peripheral": 2}})
    rows = evaluate_subjects(Bright(3), prepare_site(Site.find(folder), options), options)
    assert [set(row.classes) for row in rows] == [{"central", "peripheral"}] * 2
    assert rows[0].classes["central"].dsc > 0.5
    assert rows[0].classes["peripheral"].dsc == 0
    assert rows[0].as_json()["classes"]["peripheral"]["asd"] is None  # type: ignore[index]


def test_dice_on_the_prepared_grid_is_near_that_on_the_scans(tmp_path: Path) -> None:
    prepared, options = site(tmp_path)
    rows = evaluate_subjects(Bright(), prepared, options)
    for row, subject in zip(rows, prepared, strict=True):
        assert abs(row.classes["foreground"].dsc - prepared_dice(Bright(), subject, options)) < 0.05


def test_a_mean_comes_with_its_count() -> None:
    assert mean_of([1.0, float("nan"), 3.0]) == (2.0, 2)
    assert mean_of([float("nan")])[1] == 0
