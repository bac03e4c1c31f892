"""nnU-Net's preparation, step by step against other programs: scikit-image's resize, scipy's filter, plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.ndimage import gaussian_filter
from skimage.transform import resize

from smg.evaluation.whole_scan import class_scores, mask_of
from smg.prepare.nnunet_preparation import normalise
from smg.prepare.prepare_options import Normalisation, Preparation
from smg.prepare.prepared_site import prepare_scan
from smg.prepare.slices import passes
from smg.prepare.splines import resample
from smg.prepare.windows import cut, nnunet_gaussian, tiles
from smg.sites.volume import Volume
from tests.evaluation.test_whole_scan import Bright

OPTIONS = Preparation.model_validate({"size": [16, 32], "spacing": [1.0, 2.0], "nnunet": {}})


def volume(shape: tuple[int, int, int] = (5, 24, 30)) -> Volume:
    """Return a scan that is zero around a box, with rows of 1.5 mm stored from front to back."""
    array = np.zeros(shape, np.int16)
    array[1:4, 3:21, 4:29] = np.random.default_rng(3).integers(1, 400, (3, 18, 25))
    return Volume(array, np.diag([1.6, -1.5, 4.0, 1.0]))


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("shape", [(33, 20), (9, 41), (12, 7)])
def test_slices_are_resampled_as_by_scikit_image(order: int, shape: tuple[int, int]) -> None:
    slices = np.random.default_rng(0).normal(size=(2, 17, 23)).astype(np.float32)
    theirs = [resize(one.astype(float), shape, order, mode="edge", anti_aliasing=False) for one in slices]
    np.testing.assert_allclose(resample(slices, *shape, order=order, clip=True), theirs, atol=2e-6)


def test_a_scan_is_cropped_then_normalised_then_resampled_as_it_is_stored() -> None:
    scan = volume()
    images, grid = prepare_scan([scan], OPTIONS)
    inside = scan.array[1:4, 3:21, 4:29].astype(np.float32)
    normalised = (inside - inside.mean()) / inside.std()
    wanted = [resize(one, (27, 20), 3, mode="edge", anti_aliasing=False) for one in normalised]
    assert grid.whole == (27, 20)
    np.testing.assert_allclose(images[:, 0], wanted, atol=1e-5)


def test_axes_may_be_exchanged_and_masks_come_back() -> None:
    scan = volume()
    turned = Volume(np.ascontiguousarray(scan.array.transpose(2, 0, 1)), np.diag([1.5, 4.0, 1.6, 1.0]))
    options = OPTIONS.model_copy(update={"nnunet": OPTIONS.nnunet.model_copy(update={"axes": (1, 2, 0)})})
    images, grid = prepare_scan([turned], options)
    np.testing.assert_array_equal(images, prepare_scan([scan], OPTIONS)[0])
    scores = np.zeros((3, 2, 27, 20), np.float32)
    scores[:, 1] = 1
    np.testing.assert_array_equal(grid.back(scores), (turned.array != 0).astype(np.uint8))
    np.testing.assert_array_equal(grid.back(grid.classes((turned.array != 0).astype(np.uint8))), turned.array != 0)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ({"scheme": "ZScore", "masked": True}, lambda x, m: np.where(m, (x - x[m].mean()) / x[m].std(), x)),
        ({"scheme": "CT", "mean": 9, "deviation": 2, "low": 3, "high": 15}, lambda x, m: (np.clip(x, 3, 15) - 9) / 2),
        ({"scheme": "RescaleTo01"}, lambda x, m: (x - x.min()) / (x.max() - x.min())),
        ({"scheme": "No"}, lambda x, m: x),
    ],
)
def test_each_scheme_normalises_by_its_formula(scheme: dict[str, object], wanted: object) -> None:
    image = np.random.default_rng(1).uniform(1, 20, (3, 8, 9)).astype(np.float32)
    mask = np.zeros(image.shape, bool)
    mask[:, 2:6] = True
    image[~mask] = 0
    made = normalise(image, Normalisation.model_validate(scheme), mask)
    np.testing.assert_allclose(made, wanted(image, mask), rtol=1e-5, atol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize("size", [(16, 16), (16, 40), (33, 20)])
def test_windows_weigh_as_scipys_filter_of_one_pixel(size: tuple[int, int]) -> None:
    one = np.zeros(size)
    one[size[0] // 2, size[1] // 2] = 1
    wanted = gaussian_filter(one, [side / 8 for side in size], mode="constant")
    wanted = torch.from_numpy(10 * wanted / wanted.max()).half()
    wanted[wanted == 0] = wanted[wanted > 0].min()
    torch.testing.assert_close(nnunet_gaussian(size), wanted.float(), rtol=2e-3, atol=1e-6)


def test_beyond_the_slice_there_are_zeros_and_the_odd_pixel_is_behind() -> None:
    slice_ = torch.ones(1, 5, 40)
    (corner, *others) = tiles(5, 16, (8, 16), odd_behind=True)
    assert (corner, others) == ((-1, 0), [])
    window = cut(slice_, (-1, 30), (8, 16), zeros=True)
    assert window.shape == (1, 8, 16)
    assert torch.equal(window[0, :, 0], torch.tensor([0.0, 1, 1, 1, 1, 1, 0, 0]))
    assert torch.equal(window[0, 1], torch.tensor([1.0] * 10 + [0] * 6))
    assert torch.equal(cut(slice_, (0, 3), (5, 16), zeros=True), slice_[..., 3:19])


def test_logits_are_averaged_and_a_mask_is_background_around_the_crop() -> None:
    scan = volume()
    images, grid = prepare_scan([scan], OPTIONS)
    slices = torch.from_numpy(images)
    assert {tuple(windows.shape[-2:]) for _, windows in passes(slices, OPTIONS, 3)} == {(16, 32)}
    logits = class_scores(Bright(), slices, OPTIONS)
    np.testing.assert_allclose(logits[:, 1], 5 * (images[:, 0] - 0.5), atol=1e-4)
    mask = mask_of(logits, grid, largest=False)
    assert mask.shape == scan.array.shape
    assert mask.any()
    assert not mask[scan.array == 0].any()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"spacing": None}, "set preparation.spacing"),
        ({"adjacent": 3}, "adjacent: nnU-Net's preparation has no such option"),
        ({"field": 100}, "field: nnU-Net's"),
        ({"channels": ["T2", "ADC"]}, "1 schemes for 2 channels"),
        ({"nnunet": {"axes": [0, 1, 1]}}, "each of 0, 1 and 2"),
    ],
)
def test_options_that_it_would_ignore_are_refused(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Preparation.model_validate({"size": 16, "spacing": 1.0, "nnunet": {}} | wrong)
