"""What amplitudes tell of a patient is measured by measures that are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.spectra import Scans, auc, compared, correlation, kernel_ridge, low_pass, membership, retrieved, ssim
from smg.prepare.styles import amplitudes
from tests.toys import subject


def scans(subjects: int = 6) -> Scans:
    images = [subject(seed, slices=3, size=32).images[:, 0] for seed in range(subjects)]
    return Scans(torch.cat(images), [f"{n // 3}" for n in range(3 * subjects)], [3 * n + 1 for n in range(subjects)])


def test_phase_retrieval_started_at_the_true_phases_stays_there_and_keeps_amplitudes_from_any_start() -> None:
    image = scans().images[0]
    spectrum = torch.fft.rfft2(image, norm="forward")
    smooth = torch.fft.irfft2(low_pass(spectrum), s=(32, 32), norm="forward")
    found, violation = retrieved(spectrum, spectrum.angle()[None], float(smooth.min()) - 0.1)
    torch.testing.assert_close(found[0], smooth, rtol=1e-3, atol=1e-4)
    assert float(violation) == 0
    rng = torch.Generator().manual_seed(0)
    lost, _ = retrieved(spectrum, torch.rand(2, *spectrum.shape, generator=rng) * 6, float(smooth.min()))
    torch.testing.assert_close(amplitudes(lost[0], 4), amplitudes(image, 4), rtol=1e-2, atol=1e-3)


def test_similarities_are_one_with_itself_and_lower_with_another() -> None:
    a, b = scans().images[0], scans().images[4]
    assert correlation(a, a) == pytest.approx(1)
    assert ssim(a, a) == pytest.approx(1)
    assert ssim(a, 2 * a + 3) == pytest.approx(1)
    assert ssim(a, b) < 0.9
    whole = scans()
    perfect = compared(whole, [whole.images[n] for n in whole.target])
    assert perfect["correlation"] == pytest.approx(1)
    assert perfect["nearest"] == 1


def test_regression_predicts_what_it_was_shown() -> None:
    whole = scans(12)
    spectra = whole.spectra.flatten(1)
    guess = kernel_ridge(spectra, whole.images, spectra[:1])[0]
    mean = whole.images.mean(0)
    assert correlation(guess, whole.images[0]) > correlation(mean, whole.images[0])


def test_the_area_under_the_curve_counted_by_hand() -> None:
    assert auc([3, 2], [1, 2]) == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert auc([0.0], [1.0]) == 0


def test_a_stored_scan_is_found_and_chance_is_half() -> None:
    found = membership(scans(10), 0)
    assert found["spectra, the scan itself"] == found["exemplars, the scan itself"] == 1
    rng = np.random.default_rng(0)
    assert auc(rng.normal(size=300).tolist(), rng.normal(size=300).tolist()) == pytest.approx(0.5, abs=0.05)
