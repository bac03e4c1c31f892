"""Augmentation is repeatable, keeps image and labels aligned, does nothing when off, and stays finite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from smg.prepare.augment import EFFECTS, PRESETS, Augmentation, augment

GEOMETRY = ("rotation", "scale", "shift", "flip", "elastic")
INTENSITY = tuple(name for name in EFFECTS if name not in GEOMETRY)
WITH_STRENGTH = tuple(name for name in EFFECTS if name != "flip")
STRENGTH = {name: values.get("strength", 0) for name, values in PRESETS["strong"].items()}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread: the arrays are small, and on a busy machine threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(
    samples: int = 5, channels: int = 1, size: int = 48, dtype: torch.dtype = torch.int64
) -> tuple[Tensor, Tensor]:
    """Return slices of a gland off the centre, with a smaller region in it, on a textured background."""
    generator = torch.Generator().manual_seed(0)
    at = torch.linspace(-1, 1, size)
    far = ((at[:, None] + 0.1) / 0.9).square() + (at - 0.15).square()
    labels = (far < 0.3).to(dtype) + (far < 0.08).to(dtype)
    images = labels.float() + 0.5 * torch.rand(samples, channels, size, size, generator=generator)
    images = (images - images.mean()) / images.std()
    return images, labels.expand(samples, size, size).clone()


def only(name: str, strength: float | None = None, probability: float = 1) -> Augmentation:
    fields = {"probability": probability}
    if name != "flip":
        fields["strength"] = STRENGTH[name] if strength is None else strength
    return Augmentation.model_validate({name: fields})


def everything(factor: float = 1) -> Augmentation:
    effects = {name: {"strength": factor * STRENGTH[name], "probability": 1} for name in WITH_STRENGTH}
    return Augmentation.model_validate({**effects, "flip": {"probability": 1}})


# Randomness


def test_the_same_place_gives_the_same_batch_and_another_place_another() -> None:
    images, labels = batch()
    config = Augmentation.preset("strong")
    one, two = augment(images, labels, config, 1, 2, 3), augment(images, labels, config, 1, 2, 3)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    for place in ((0, 2, 3), (1, 0, 3), (1, 2, 4)):
        assert not torch.equal(one[0], augment(images, labels, config, *place)[0])


def test_global_generator_is_neither_read_nor_moved() -> None:
    images, labels = batch()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = augment(images, labels, everything(), 0, 0, 0)[0]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(one, augment(images, labels, everything(), 0, 0, 0)[0])


def test_a_divided_batch_is_augmented_as_the_whole() -> None:
    images, labels = batch(6)
    config = Augmentation.preset("strong")
    whole = augment(images, labels, config, 0, 1, 2)
    for part in (slice(0, 2), slice(2, 6)):
        images_part, labels_part = augment(images[part], labels[part], config, 0, 1, 2, first=part.start)
        torch.testing.assert_close(images_part, whole[0][part])
        assert torch.equal(labels_part, whole[1][part])


def test_a_sample_does_not_depend_on_the_others() -> None:
    images, labels = batch()
    config = Augmentation.preset("strong")
    others = images.clone()
    others[1:] = others[1:].flip(-1) * 3
    for iteration in range(5):
        one = augment(images, labels, config, 0, 0, iteration)[0][0]
        assert torch.equal(one, augment(others, labels, config, 0, 0, iteration)[0][0])


def test_turning_one_effect_on_leaves_the_draws_of_others() -> None:
    images, labels = batch()
    both = Augmentation.model_validate({"flip": {"probability": 0.5}, "noise": {"strength": 0.2, "probability": 0.5}})
    alone = augment(images, labels, only("flip", probability=0.5), 0, 0, 7)
    assert torch.equal(alone[1], augment(images, labels, both, 0, 0, 7)[1])


def test_probability_is_the_share_of_samples() -> None:
    images, labels = batch(400, size=8)
    changed = (augment(images, labels, only("noise", probability=0.3), 0, 0, 0)[0] != images).flatten(1).any(1)
    assert 0.2 < changed.float().mean() < 0.4


# Off, on and how much


def test_none_returns_the_inputs_themselves() -> None:
    images, labels = batch()
    result = augment(images, labels, Augmentation.preset("none"), 0, 0, 0)
    assert result[0] is images
    assert result[1] is labels


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_needs_a_probability_and_a_strength(name: str) -> None:
    images, labels = batch()
    changed, changed_labels = augment(images, labels, only(name), 0, 0, 0)
    assert not torch.equal(changed, images)
    assert torch.equal(changed_labels, labels) == (name in INTENSITY)
    assert torch.equal(augment(images, labels, only(name, probability=0), 0, 0, 0)[0], images)
    # Beside an effect that is on, one that is off still does nothing.
    noisy = {"noise": {"strength": 0.1, "probability": 0.5}}
    off = {name: {**only(name, probability=0).model_dump()[name]}}
    if name != "noise":
        expected = augment(images, labels, Augmentation.model_validate(noisy), 0, 0, 0)[0]
        assert torch.equal(augment(images, labels, Augmentation.model_validate(noisy | off), 0, 0, 0)[0], expected)


@pytest.mark.parametrize("name", WITH_STRENGTH)
def test_strength_matters(name: str) -> None:
    images, labels = batch()
    weak, strong = (augment(images, labels, only(name, k * STRENGTH[name]), 0, 0, 0)[0] for k in (0.5, 1))
    assert (weak - images).abs().mean() < (strong - images).abs().mean()


@pytest.mark.parametrize("channels", [1, 3])
def test_vanishing_strength_is_the_identity(channels: int) -> None:
    images, labels = batch(channels=channels)
    config = everything(1e-7).model_copy(update={"flip": Augmentation().flip})
    same, same_labels = augment(images, labels, config, 0, 0, 0)
    torch.testing.assert_close(same, images, atol=1e-4, rtol=0)
    assert torch.equal(same_labels, labels)


def test_inputs_are_not_changed() -> None:
    images, labels = batch()
    kept = images.clone(), labels.clone()
    augment(images, labels, everything(), 0, 0, 0)
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])


# Geometry


@pytest.mark.parametrize("name", GEOMETRY)
def test_labels_go_where_the_image_goes(name: str) -> None:
    _, labels = batch()
    gland = (labels > 0).long()
    image, moved = augment(gland[:, None].float(), gland, only(name), 0, 0, 0)
    assert ((image[:, 0] > 0.5) == (moved == 1)).float().mean() > 0.995


def test_flip_swaps_left_and_right_alone() -> None:
    images, labels = batch()
    flipped, flipped_labels = augment(images, labels, only("flip"), 0, 0, 0)
    torch.testing.assert_close(flipped, images.flip(-1), atol=1e-4, rtol=0)
    assert torch.equal(flipped_labels, labels.flip(-1))


def test_rotation_keeps_shape_and_scale_changes_area() -> None:
    labels = batch(size=64)[1]
    gland, images = (labels > 0).long(), torch.zeros(5, 1, 64, 64)
    area = gland.sum((1, 2))
    turned = augment(images, gland, only("rotation", 30), 0, 0, 0)[1].sum((1, 2))
    assert torch.allclose(turned.float(), area.float(), rtol=0.03)
    scaled = augment(images, gland, only("scale", 0.4), 0, 0, 0)[1].sum((1, 2)) / area
    assert scaled.min() < 0.9
    assert scaled.max() > 1.1
    assert ((scaled > 1.4**-2 - 0.05) & (scaled < 1.4**2 + 0.05)).all()


def test_elastic_warp_does_not_fold() -> None:
    size = 64
    at = (torch.arange(size) * 2 + 1) / size - 1
    images = torch.stack([at.expand(size, size), at[:, None].expand(size, size)])[None].repeat(20, 1, 1, 1)
    warped = augment(images, torch.zeros(20, size, size, dtype=torch.uint8), only("elastic"), 0, 0, 0)[0]
    (xx, yx), (xy, yy) = warped.diff(dim=-1)[:, :, 1:].unbind(1), warped.diff(dim=-2)[..., 1:].unbind(1)
    inner = slice(8, -8)  # repeated edge pixels are flat on purpose
    assert ((xx * yy - yx * xy)[:, inner, inner] > 0).all()


def test_channels_share_one_geometry_and_one_intensity() -> None:
    images, labels = batch()
    config = everything().model_copy(update={"noise": Augmentation().noise})  # noise alone differs between slices
    result = augment(images.expand(-1, 3, -1, -1), labels, config, 0, 0, 0)[0]
    assert torch.equal(result[:, 0], result[:, 1])
    assert torch.equal(result[:, 0], result[:, 2])
    noisy = augment(images.expand(-1, 3, -1, -1), labels, only("noise"), 0, 0, 0)[0]
    assert not torch.equal(noisy[:, 0], noisy[:, 1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_labels_keep_their_type_and_invent_no_class(dtype: torch.dtype) -> None:
    images, labels = batch(dtype=dtype)
    labels[labels == 2] = 7
    result = augment(images, labels, everything(), 0, 0, 0)[1]
    assert result.dtype == dtype
    assert result.shape == labels.shape
    assert set(result.flatten().tolist()) == {0, 1, 7}


# Intensity


@pytest.mark.parametrize("name", ["gamma", "bias"])
def test_gamma_and_bias_keep_mean_and_deviation(name: str) -> None:
    images, labels = batch()
    result = augment(images, labels, only(name), 0, 0, 0)[0]
    torch.testing.assert_close(result.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=1e-4, rtol=0)
    torch.testing.assert_close(result.std((1, 2, 3)), images.std((1, 2, 3)), atol=1e-4, rtol=1e-4)


def test_gamma_keeps_the_order_of_intensities() -> None:
    images, labels = batch()
    result = augment(images, labels, only("gamma"), 0, 0, 0)[0]
    order = images.flatten(1).argsort(1)
    assert (result.flatten(1).gather(1, order).diff(dim=1) > -1e-4).all()


def test_noise_has_at_most_the_deviation_asked_for() -> None:
    images, labels = torch.zeros(50, 1, 32, 32), torch.zeros(50, 32, 32, dtype=torch.int64)
    deviation = augment(images, labels, only("noise", 0.2), 0, 0, 0)[0].std((1, 2, 3))
    assert deviation.max() < 0.22
    assert 0.07 < deviation.mean() < 0.13


@pytest.mark.parametrize("name", ["blur", "resolution"])
def test_blur_and_resolution_smooth_but_keep_flat_ground(name: str) -> None:
    images, labels = batch()
    result = augment(images, labels, only(name), 0, 0, 0)[0]
    rough, smooth = (each.diff(dim=-1).abs().mean((1, 2, 3)) for each in (images, result))
    assert (smooth <= rough).all()
    assert smooth.min() < 0.7 * rough.max()
    flat = torch.full_like(images, 1.5)
    torch.testing.assert_close(augment(flat, labels, only(name), 0, 0, 0)[0], flat)


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_a_constant_slice_stays_finite(value: float) -> None:
    images, labels = torch.full((5, 1, 32, 32), value), torch.zeros(5, 32, 32, dtype=torch.int64)
    quiet = everything().model_copy(update={"noise": Augmentation().noise})
    torch.testing.assert_close(augment(images, labels, quiet, 0, 0, 0)[0], images)
    assert augment(images, labels, everything(), 0, 0, 0)[0].isfinite().all()


def test_the_largest_strengths_stay_finite() -> None:
    images, labels = batch()
    config = {name: {"strength": 360, "probability": 1} for name in WITH_STRENGTH}
    for iteration in range(5):
        assert augment(images, labels, Augmentation.model_validate(config), 0, 0, iteration)[0].isfinite().all()


def test_an_empty_batch_is_returned() -> None:
    images, labels = batch()
    assert augment(images[:0], labels[:0], everything(), 0, 0, 0)[0].shape == (0, *images.shape[1:])


@settings(max_examples=25, deadline=None)
@given(
    iteration=st.integers(0, 10_000),
    factor=st.floats(0.01, 3),
    size=st.integers(5, 40),
    channels=st.sampled_from([1, 3]),
    samples=st.integers(1, 4),
)
def test_results_are_finite_and_bounded(iteration: int, factor: float, size: int, channels: int, samples: int) -> None:
    images, labels = batch(samples, channels, size)
    result, result_labels = augment(images, labels, everything(factor), 0, 0, iteration)
    assert result.shape == images.shape
    assert result.dtype == images.dtype
    assert result.isfinite().all()
    assert result.abs().max() < 100
    assert set(result_labels.flatten().tolist()) <= set(labels.flatten().tolist())


# Configuration


def test_presets_by_name_and_with_changes() -> None:
    mild = Augmentation.preset("mild")
    assert Augmentation.model_validate("mild") == mild
    assert Augmentation.model_validate({"preset": "mild"}) == mild
    assert Augmentation.model_validate(mild) is mild
    assert Augmentation.preset("none") == Augmentation()
    turned = Augmentation.model_validate({"preset": "mild", "rotation": {"strength": 30}})
    assert turned.rotation.strength == 30
    assert turned.rotation.probability == mild.rotation.probability
    assert turned.model_copy(update={"rotation": mild.rotation}) == mild


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_after_json(name: str) -> None:
    config = Augmentation.preset(name)
    assert Augmentation.model_validate_json(config.model_dump_json()) == config


def test_strong_is_at_least_mild_everywhere() -> None:
    mild, strong = Augmentation.preset("mild").model_dump(), Augmentation.preset("strong").model_dump()
    assert all(strong[name][key] >= value for name in EFFECTS for key, value in mild[name].items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wild", "preset 'wild'; choose one of none, mild, strong"),
        ({"preset": 3}, "choose one of none, mild, strong"),
        ({"preset": "mild", "wobble": {"strength": 1}}, "wobble"),
        ({"rotation": {"strength": -1, "probability": 1}}, "greater than or equal to 0"),
        ({"rotation": {"strength": float("inf"), "probability": 1}}, "finite"),
        ({"rotation": {"strength": 1, "probability": 1.5}}, "less than or equal to 1"),
        ({"preset": "none", "rotation": {"strength": 30}}, "probability"),
        ({"preset": "mild", "flip": {"strength": 1}}, "flip.strength"),
        ({"preset": "mild", "rotation": 30}, "rotation"),
        (None, "Augmentation"),
    ],
)
def test_a_mistake_is_named(given: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Augmentation.model_validate(given)
