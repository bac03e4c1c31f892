"""Windows are drawn in training, tiled in prediction, and mapped back to the scan's own grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smg.errors import SmgError
from smg.evaluation.metrics import dice
from smg.evaluation.whole_scan import class_scores, mask_of
from smg.networks import NetworkConfig, build_network
from smg.prepare.augment import PRESETS, Augmentation, augment, margin_of
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import check_field, plane_note, prepare_site, scale_note
from smg.prepare.slices import Slices, passes
from smg.prepare.windows import cut, draw_corner, gaussian, tiles
from smg.sites.check import check_sites
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import affine, write_site
from tests.evaluation.test_whole_scan import Bright

WINDOWED = Preparation(size=16, spacing=2.0)


def ellipse(rows: int, columns: int, share: float = 0.3) -> np.ndarray:
    yy, xx = np.mgrid[:rows, :columns]
    inside = ((yy - 0.45 * rows) / (share * rows)) ** 2 + ((xx - 0.55 * columns) / (share * columns)) ** 2 < 1
    return np.repeat(inside[None], 3, axis=0).astype(np.uint8)


# --- where they lie ---------------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 90), columns=st.integers(1, 90), size=st.integers(4, 40))
def test_tiles_cover_every_pixel_and_overlap_by_about_a_half(rows: int, columns: int, size: int) -> None:
    seen = np.zeros((rows, columns), int)
    for top, left in tiles(rows, columns, size):
        seen[max(top, 0) : top + size, max(left, 0) : left + size] += 1
        for start, length in ((top, rows), (left, columns)):
            assert (0 <= start <= length - size) if length >= size else start == (length - size) // 2
    assert seen.min() >= 1
    if rows <= size and columns <= size:
        assert len(tiles(rows, columns, size)) == 1


@given(
    rows=st.integers(1, 40), columns=st.integers(1, 40), size=st.integers(2, 30), share=st.floats(0, 1),
    place=st.integers(0, 10_000),
)  # fmt: skip
def test_a_drawn_window_lies_in_the_slice_or_around_it(
    rows: int, columns: int, size: int, share: float, place: int
) -> None:
    labels = ellipse(rows, columns)[0]
    corner = draw_corner(labels, size, share, (0, 1, 2, place))
    assert corner == draw_corner(labels, size, share, (0, 1, 2, place))
    for start, length in zip(corner, (rows, columns), strict=True):
        assert (0 <= start <= length - size) if length >= size else start == (length - size) // 2


def test_the_share_of_windows_on_foreground() -> None:
    """With one foreground pixel in a corner of a large slice, only a window centred on foreground holds it."""
    labels = np.zeros((200, 200), np.uint8)
    labels[100, 150] = 1
    corners = [draw_corner(labels, 11, 0.4, (0, 1, 0, place)) for place in range(600)]
    aimed = [corner == (95, 145) for corner in corners]
    assert np.mean(aimed) == pytest.approx(0.4, abs=0.06)
    others = np.array([corner for corner, on in zip(corners, aimed, strict=True) if not on])
    assert others.min() < 10
    assert others.max() > 180
    empty = [draw_corner(np.zeros((40, 40), np.uint8), 11, 1.0, (0, 1, 0, place)) for place in range(50)]
    assert len(set(empty)) > 25


def test_with_even_classes_a_small_one_is_drawn_as_often_as_a_large_one() -> None:
    labels = np.zeros((200, 200), np.uint8)
    labels[:90, :90], labels[150, 160] = 1, 3
    corners = [draw_corner(labels, 11, 1.0, (0, 1, 0, place), even_classes=True) for place in range(400)]
    assert np.mean([corner == (145, 155) for corner in corners]) == pytest.approx(0.5, abs=0.08)
    assert len(set(corners)) > 150  # and every pixel of the large one
    by_size = [draw_corner(labels, 11, 1.0, (0, 1, 0, place)) for place in range(400)]
    assert (145, 155) not in by_size
    one = (labels == 1).astype(np.uint8)
    for place in range(50):  # of a single class the same windows
        assert draw_corner(one, 11, 0.5, (0, 1, 0, place), True) == draw_corner(one, 11, 0.5, (0, 1, 0, place))
    empty = draw_corner(np.zeros((40, 40), np.uint8), 11, 1.0, (0, 1, 0, 3), even_classes=True)
    assert empty == draw_corner(np.zeros((40, 40), np.uint8), 11, 1.0, (0, 1, 0, 3))


def test_a_window_beyond_the_slice_repeats_its_edge() -> None:
    slices = torch.arange(12.0).reshape(1, 3, 4)
    assert torch.equal(cut(slices, (0, 1), 3), slices[:, :, 1:4])
    padded = cut(slices, (-1, 0), 4)
    assert torch.equal(padded[0, 0], slices[0, 0])
    assert torch.equal(padded[0, 1:], slices[0])
    assert torch.equal(cut(slices, (-5, -5), 2), torch.zeros(1, 2, 2))


# --- the prepared grid ------------------------------------------------------------------------------------------------


def test_slices_have_the_spacing_and_the_central_field() -> None:
    grid = Grid((3, 100, 80), affine((0.5, 1.0, 3.0)), 32, spacing=2.0)  # 80 columns of 0.5 mm, 100 rows of 1 mm
    assert grid.whole == (50, 20)
    cutting = Grid((3, 100, 80), affine((0.5, 1.0, 3.0)), 32, spacing=2.0, field=30.0)
    assert cutting.box == (slice(17, 32), slice(2, 17))
    image = np.random.default_rng(0).normal(size=(3, 100, 80))
    assert np.array_equal(cutting.image(image), grid.image(image)[:, 17:32, 2:17])


@settings(deadline=None)
@given(
    rows=st.integers(5, 60), columns=st.integers(5, 60), spacing=st.floats(0.3, 4), field=st.none() | st.floats(5, 60)
)
def test_a_constant_image_stays_constant_there_and_back(
    rows: int, columns: int, spacing: float, field: float | None
) -> None:
    grid = Grid((2, rows, columns), affine((1.0, 1.3, 3.0)), 16, spacing, field)
    assert np.allclose(grid.image(np.full((2, rows, columns), 7.0)), 7.0, rtol=1e-6)
    scores = np.zeros((2, 2, *(b.stop - b.start for b in grid.box)), np.float32)
    scores[:, 1] = 1
    back = grid.back(scores)
    assert back.shape == (2, rows, columns)
    if field is None or field >= max(rows, columns) * 1.3 + 2 * spacing:
        assert back.all()
    assert not grid.back(1 - scores).any()


@pytest.mark.parametrize("field", [None, 70.0])
@pytest.mark.parametrize("size", [24, 40, 200])
@pytest.mark.parametrize("spacing", [0.5, 0.8, 1.0])
def test_a_mask_is_nearly_the_same_after_spacing_windows_and_back(
    spacing: float, size: int, field: float | None
) -> None:
    """Predict with a network that returns the prepared mask."""
    mask = ellipse(90, 70)
    grid = Grid(mask.shape, affine((1.0, 1.0, 3.0)), size, spacing, field)
    options = Preparation(size=size, spacing=spacing, field=field)
    prepared = torch.from_numpy(grid.classes(mask).astype(np.float32))[:, None]
    again = mask_of(class_scores(Bright(), prepared, options), grid, largest=False)
    assert dice(again == 1, mask == 1) >= 0.99


def test_real_masks_are_nearly_the_same_after_spacing_windows_and_back(real_data: Path) -> None:
    for site in find_sites(real_data).values():
        subject = site.subjects[0]
        volume = read_volume(subject.mask)
        mask = (volume.array != 0).astype(np.uint8)
        spacing = min(Grid(mask.shape, volume.affine, 96).pixel)
        grid = Grid(mask.shape, volume.affine, 96, spacing)
        prepared = torch.from_numpy(grid.classes(mask).astype(np.float32))[:, None]
        again = mask_of(class_scores(Bright(), prepared, Preparation(size=96, spacing=spacing)), grid, largest=False)
        assert dice(again == 1, mask == 1) >= 0.99, subject.identity


def test_the_field_that_all_foreground_needs(tmp_path: Path) -> None:
    mask = np.zeros((2, 100, 80), np.uint8)
    mask[0, 70:75, 38:44] = 1  # rows 70 to 75 of 100, 1 mm each: 25 mm below the centre
    grid = Grid(mask.shape, affine((0.5, 1.0, 3.0)), 16, spacing=1.0)
    assert grid.field_of(mask) == pytest.approx(50.0)
    assert grid.field_of(np.zeros_like(mask)) == 0
    whole = Grid(mask.shape, affine((0.5, 1.0, 3.0)), 16, spacing=1.0, field=50.0)
    assert whole.classes(mask).sum() > 0
    prepared = prepare_site(Site.find(write_site(tmp_path / "HK")), Preparation(size=16, spacing=1.0))
    needed = max(p.needed for p in prepared)
    check_field(prepared, Preparation(size=16, spacing=1.0, field=needed))
    with pytest.raises(SmgError, match=rf"_segmentation.*preparation.field={int(np.ceil(needed))} "):
        check_field(prepared, Preparation(size=16, spacing=1.0, field=needed / 2))


def test_pixels_far_from_the_spacing_are_mentioned(tmp_path: Path) -> None:
    prepared = prepare_site(Site.find(write_site(tmp_path / "HK")), Preparation(size=16, spacing=1.0))
    pixel = max(prepared[0].grid.pixel)
    assert scale_note(prepared, Preparation(spacing=pixel)) is None
    assert "0.60 mm" in str(scale_note(prepared, Preparation(spacing=pixel / 3)))
    assert "details are lost" in str(scale_note(prepared, Preparation(spacing=9 * pixel)))
    assert scale_note(prepared, Preparation()) is None


def test_scans_of_another_plane_are_noted(tmp_path: Path) -> None:
    """Slices of 10 mm that lie along the body: as axial slices their pixels are 10 mm high."""
    site = Site.find(write_site(tmp_path / "HK", 3))
    prepared = prepare_site(site, Preparation(size=16))
    assert plane_note(prepared) is None
    mask = np.zeros((6, 12, 12), np.uint8)
    mask[2:4, 3:9, 3:9] = 1
    coronal = np.array([[1.0, 0, 0, 0], [0, 0, 10.0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1]])
    write_volume(tmp_path / "HK" / "Case01.nii.gz", Volume(5 * mask.astype(np.float32), coronal))
    write_volume(tmp_path / "HK" / "Case01_segmentation.nii.gz", Volume(mask, coronal))
    line = str(plane_note(prepare_site(Site.find(tmp_path / "HK"), Preparation(size=16))))
    assert line.startswith("1 of its 3 scans were probably taken in another plane")
    (note,) = check_sites([Site.find(tmp_path / "HK")], Labels()).notes
    assert (note.subject, "another plane" in str(note)) == ("Case01", True)


def test_the_field_needs_a_spacing() -> None:
    with pytest.raises(ValueError, match=r"set preparation\.spacing too"):
        Preparation(field=100)


# --- what training draws ----------------------------------------------------------------------------------------------


def test_windows_are_drawn_by_place_and_have_their_labels(tmp_path: Path) -> None:
    slices = Slices(prepare_site(Site.find(write_site(tmp_path / "HK")), WINDOWED), WINDOWED)
    places = [(0, 1, 7, place) for place in range(6)]
    one = slices.gather([0, 1, 2, 3, 4, 5], places)
    assert one.images.shape == (6, 1, 16, 16)
    again = slices.gather([5, 4], [places[5], places[4]])
    assert torch.equal(again.images, one.images[[5, 4]])
    assert torch.equal(again.labels, one.labels[[5, 4]])
    wide = slices.gather([0, 1, 2, 3, 4, 5], places, margin=3)
    assert torch.equal(wide.images[..., 3:-3, 3:-3], one.images)
    assert torch.equal(wide.labels[..., 3:-3, 3:-3], one.labels)


@pytest.mark.parametrize("preset", ["mild", "strong"])
def test_moving_a_window_brings_in_what_lies_around_it(preset: str) -> None:
    """Check that a window with its margin, moved, equals the same window of the whole slice, moved."""
    config = Augmentation.model_validate(
        {k: v for k, v in Augmentation.preset(preset).model_dump().items() if k in ("rotation", "scale", "shift")}
    )
    config = Augmentation.model_validate({k: v | {"probability": 1} for k, v in config.model_dump().items()
                                          if k in ("rotation", "scale", "shift")})  # fmt: skip
    size, margin = 32, margin_of(config, 32)
    yy, xx = np.mgrid[: size + 6 * margin, : size + 6 * margin]
    slope = torch.from_numpy((yy + 2.0 * xx).astype(np.float32))[None, None].repeat(8, 1, 1, 1)  # a plane: no border
    labels = torch.zeros(8, *slope.shape[-2:], dtype=torch.uint8)
    inner = slice(2 * margin, 4 * margin + size)
    moved, _ = augment(slope[..., inner, inner], labels[..., inner, inner], config, 0, 1, 2, margin=margin)
    farther, _ = augment(slope, labels, config, 0, 1, 2, margin=3 * margin)
    assert moved.shape[-1] == size
    torch.testing.assert_close(moved, farther, atol=2e-3, rtol=0)


def test_nothing_to_move_needs_no_margin() -> None:
    assert margin_of(Augmentation.preset("none"), 64) == 0
    assert margin_of(Augmentation.model_validate({"noise": {"strength": 1, "probability": 1}}), 64) == 0
    assert margin_of(Augmentation.model_validate({"shift": {"strength": 0.25, "probability": 1}}), 64) == 16


# --- what prediction sees ---------------------------------------------------------------------------------------------


def test_one_window_equals_the_plain_pass() -> None:
    network = build_network(NetworkConfig(width=4, depth=2))
    images = torch.randn(5, 1, 32, 32)
    plain = class_scores(network, images, Preparation(size=32))
    assert np.allclose(class_scores(network, images, Preparation(size=32, spacing=1.0)), plain, atol=1e-6)
    with torch.no_grad():
        smaller = torch.nn.functional.pad(images[..., 4:-4, 2:-2], (2, 2, 4, 4), mode="replicate")
        own = network(smaller).softmax(1)[..., 4:-4, 2:-2]
    seen = class_scores(network, images[..., 4:-4, 2:-2], Preparation(size=32, spacing=1.0))
    assert np.allclose(seen, own.numpy(), atol=1e-6)


def test_overlapping_windows_are_averaged_by_gaussian_weights() -> None:
    """Compare with a loop over pixels, for a network whose output differs in every window."""
    network = build_network(NetworkConfig(width=4, depth=2))
    images, size = torch.randn(2, 1, 40, 29), 16
    scores = class_scores(network, images, Preparation(size=size, spacing=1.0))
    total, weight = np.zeros((2, 2, 40, 29)), np.zeros((40, 29))
    for top, left in tiles(40, 29, size):
        with torch.no_grad():
            one = network(images[..., top : top + size, left : left + size]).softmax(1).double().numpy()
        total[..., top : top + size, left : left + size] += one * gaussian(size).double().numpy()
        weight[top : top + size, left : left + size] += gaussian(size).double().numpy()
    assert np.allclose(scores, total / weight, atol=1e-5)
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_mirrored_passes_are_averaged() -> None:
    network = build_network(NetworkConfig(width=4, depth=2))
    images, options = torch.randn(3, 1, 32, 32), Preparation(size=32, spacing=1.0)
    both = class_scores(network, images, options, mirror=True)
    flipped = class_scores(network, images.flip(-1), options)[..., ::-1]
    assert np.allclose(both, (class_scores(network, images, options) + flipped) / 2, atol=1e-6)


@pytest.mark.parametrize("adjacent", [1, 3])
def test_windows_have_their_slices_neighbours_and_channels(adjacent: int) -> None:
    images = torch.randn(4, 2, 24, 20)
    options = Preparation.model_validate({"size": 16, "spacing": 1.0, "adjacent": adjacent, "channels": ("T2", "ADC")})
    for where, windows in passes(images, options, at_once=5):
        assert windows.shape[1:] == (2 * adjacent, 16, 16)
        for (number, (top, left)), window in zip(where, windows, strict=True):
            middle = window.reshape(adjacent, 2, 16, 16)[adjacent // 2]
            assert torch.equal(middle, images[number, :, top : top + 16, left : left + 16])


# --- rectangles -------------------------------------------------------------------------------------------------------


def test_a_rectangular_window_is_tiled_weighted_and_drawn_by_its_own_sides() -> None:
    assert tiles(40, 40, (16, 40)) == [(top, 0) for top, _ in tiles(40, 1, (16, 1))]
    weights = gaussian((16, 24))
    assert weights.shape == (16, 24)
    torch.testing.assert_close(weights[:, 11] / weights[7, 11], gaussian(16)[:, 7] / gaussian(16)[7, 7])
    labels = np.zeros((60, 50), np.uint8)
    labels[40, 12] = 1
    assert draw_corner(labels, (20, 30), 1.0, (0, 1, 2, 3)) == (30, 0)
    assert cut(torch.zeros(2, 60, 50), (50, 40), (20, 30)).shape == (2, 20, 30)


def test_rectangles_of_a_slice_are_put_back_on_the_scans_own_grid() -> None:
    options = Preparation(size=(16, 32), spacing=(1.0, 2.0))
    grid = Grid((3, 40, 60), np.diag([1.0, 1.5, 3.0, 1.0]), options.size, options.spacing)
    assert grid.whole == (60, 30)
    truth = ellipse(40, 60)
    image = torch.from_numpy(grid.image(truth.astype(np.float32)))[:, None]
    assert {windows.shape[-2:] for _, windows in passes(image, options, 4)} == {(16, 32)}
    predicted = mask_of(class_scores(Bright(), image, options), grid)
    assert dice(predicted == 1, truth == 1) > 0.97


def test_a_rotation_turns_a_rectangle_and_does_not_shear_it() -> None:
    rotate = Augmentation.model_validate({"rotation": {"strength": 12, "probability": 1}})
    yy, xx = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    square = torch.sin(yy / 5) + torch.cos(xx / 7) * torch.sin(xx * yy / 300)
    labels = (square > 0).to(torch.uint8)
    whole, _ = augment(square[None, None], labels[None], rotate, 0, 1, 2, margin=8)
    part, _ = augment(square[None, None, 8:56], labels[None, 8:56], rotate, 0, 1, 2, margin=8)
    assert part.shape[-2:] == (32, 48)
    torch.testing.assert_close(part[0, 0], whole[0, 0, 8:40], rtol=0, atol=1e-4)


def test_the_margin_of_a_rectangle_holds_all_that_a_rotation_brings_in() -> None:
    rotate = Augmentation.model_validate({"rotation": {"strength": 90, "probability": 1}})
    assert margin_of(rotate, (16, 64)) >= (64 - 16) // 2
    assert margin_of(rotate, (32, 32)) == margin_of(rotate, 32)


def test_all_of_the_augmentation_takes_rectangles() -> None:
    images, labels = torch.randn(2, 1, 24, 40), torch.zeros(2, 24, 40, dtype=torch.uint8)
    labels[:, 6:12, 10:20] = 1
    certain = {name: effect | {"probability": 1} for name, effect in PRESETS["strong"].items()}
    made, moved = augment(images, labels, Augmentation.model_validate(certain), 0, 1, 2)
    assert made.shape == images.shape
    assert moved.shape == labels.shape
    assert made.isfinite().all()
    assert not torch.equal(made, images)
