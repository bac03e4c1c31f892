"""Style memory: amplitudes of low frequencies, against Fourier transforms written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch
from smg.prepare.styles import Styles, amplitudes, restyled
from tests.toys import iteration

L = 4


def image(seed: int, size: int = 16, channels: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(3, 2, (channels, size, size)))


def coefficient(pixels: np.ndarray, u: int, v: int) -> complex:
    """F(x) at one frequency, by its definition; divided by the number of pixels."""
    size = len(pixels)
    rows, columns = np.mgrid[:size, :size]
    return complex((pixels * np.exp(-2j * np.pi * (u * rows + v * columns) / size)).mean())


def test_amplitudes_are_those_of_the_definition() -> None:
    one = image(0)
    found = amplitudes(one, L)
    assert found.shape == (1, 2 * L + 1, L + 1)
    assert found.numel() == 45
    for u in range(-L, L + 1):
        for v in range(L + 1):
            assert float(found[0, L + u, v]) == pytest.approx(abs(coefficient(one[0].numpy(), u, v)), rel=1e-9)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_low_amplitudes_move_by_the_share_and_everything_else_stays(share: float) -> None:
    """Mean and deviation are put back, so all but the mean are scaled by one factor."""
    ours, other = image(1), amplitudes(image(2), L)
    styled = restyled(ours, other, share)
    before, after = ours[0].numpy(), styled[0].numpy()
    assert after.mean() == pytest.approx(before.mean(), rel=1e-9)
    assert after.std() == pytest.approx(before.std(), rel=1e-9)
    factor = abs(coefficient(after, 7, 7)) / abs(coefficient(before, 7, 7))  # a frequency that is not touched
    for u, v in [(0, 1), (1, 0), (-1, 2), (4, 4), (-4, 4), (5, 0), (0, 5), (-6, 3)]:
        then, now = coefficient(before, u, v), coefficient(after, u, v)
        wanted = (1 - share) * abs(then) + share * float(other[0, L + u, v]) if max(abs(u), v) <= L else abs(then)
        assert abs(now) == pytest.approx(factor * wanted, rel=1e-6)
        assert np.angle(now / then) == pytest.approx(0, abs=1e-6)  # phases stay


def test_no_share_or_its_own_amplitudes_change_nothing() -> None:
    ours = image(3, channels=3)
    torch.testing.assert_close(restyled(ours, amplitudes(image(4, channels=3), L), 0.0), ours)
    torch.testing.assert_close(restyled(ours, amplitudes(ours, L), 0.7), ours)
    flat = torch.zeros(1, 16, 16)
    assert torch.equal(restyled(flat, amplitudes(image(4), L).float(), 1.0), flat)


def test_the_window_is_the_image_without_its_margin_and_shading_goes_on_into_the_margin() -> None:
    whole, other = image(5, size=24), amplitudes(image(6), L)
    styled = restyled(whole, other, 1.0, margin=4)
    window = whole[:, 4:20, 4:20]
    torch.testing.assert_close(styled[:, 4:20, 4:20], restyled(window, other, 1.0))
    change = styled - whole * (styled.std() / whole.std())
    assert change.shape == (1, 24, 24)
    wide = restyled(torch.nn.functional.pad(window[None], (4, 4, 4, 4), mode="circular")[0], other, 1.0, margin=4)
    torch.testing.assert_close(wide[:, :8, :8], wide[:, 16:, 16:])  # a periodic image stays periodic


# --- in batches -------------------------------------------------------------------------------------------------------

STYLES = Styles([amplitudes(image(seed).float(), L)[None].repeat(3, 1, 1, 1) for seed in (7, 8)])


def test_only_incoming_slices_take_on_styles_and_about_half_of_them() -> None:
    changed, total = 0, 0
    for number in range(20):
        with_, without = iteration(number, styles=STYLES), iteration(number)
        assert with_.replay is not None
        assert without.replay is not None
        a, b = with_.incoming.load(), without.incoming.load()
        changed += sum(not torch.equal(x, y) for x, y in zip(a.images, b.images, strict=True))
        total += len(a)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(with_.replay.load().images, without.replay.load().images)
    assert 0.3 < changed / total < 0.7
    always, never = (Styles(STYLES.sites, probability) for probability in (1.0, 0.0))
    assert not torch.equal(iteration(styles=always).incoming.load().images, iteration().incoming.load().images)
    assert torch.equal(iteration(styles=never).incoming.load().images, iteration().incoming.load().images)


@pytest.mark.parametrize("preset", ["none", "mild"])
def test_a_row_is_styled_by_its_place_whoever_loads_it(preset: str) -> None:
    """So a batch divided among processes, or loaded again after a restart, is the same batch to the bit."""
    options = {"size": 5, "styles": STYLES, "augmentation": Augmentation.preset(preset)}
    whole = iteration(3, **options).incoming.load().images
    parts = [iteration(3, **options).incoming.load(share).images for share in (slice(0, 2), slice(2, 5))]
    assert torch.equal(whole, torch.cat(parts))
    rows = iteration(3, **options).incoming.rows
    alone = [Batch("one", (row,), iteration(3, **options)).load().images for row in reversed(rows)]
    assert torch.equal(whole, torch.cat(alone[::-1]))
    for change in ({"seed": 1}, {"number": 4}):
        other = iteration(**({"number": 3} | options | change))  # type: ignore[arg-type]
        assert not torch.equal(whole, other.incoming.load().images)


def test_styles_come_before_augmentation() -> None:
    """A flip of a styled slice is the styled slice, flipped."""
    flipped = Augmentation.model_validate({"flip": {"probability": 1}})
    styled = iteration(styles=STYLES).incoming.load().images
    torch.testing.assert_close(iteration(styles=STYLES, augmentation=flipped).incoming.load().images, styled.flip(-1))
