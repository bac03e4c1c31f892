"""Style memory: amplitudes of low frequencies, kept of a site's slices and lent to the slices of later sites.

    kept    a = |F(x)| at the frequencies (u, v), |u| ≤ L, 0 ≤ v ≤ L; no phase
    lent    x' = F⁻¹(((1 - s) |F(x)| + s a) e^(i arg F(x))) at these frequencies, x's own mean and deviation put back

F is the two-dimensional Fourier transform of a window of the network's size, for each channel. The phases of x stay,
and with them its anatomy and its labels; what changes is how brightness is spread over the window. After FedDG (Liu et
al., 2021), which exchanges amplitudes between hospitals that train at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smg.prepare.windows import Place
from smg.randomness import numpy_generator

TINY = 1e-6


@dataclass(frozen=True)
class Styles:
    """Amplitudes of earlier sites, and how they are applied."""

    sites: Sequence[Tensor]  # of each earlier site [slices, channels, 2L + 1, L + 1]
    probability: float = 0.5  # that a slice takes the amplitudes of another
    share: float = 1.0  # largest s that is drawn

    def lend(self, images: Tensor, places: Sequence[Place], margin: int = 0) -> Tensor:
        """Return images [B, channels, rows, columns], some of them in the style of a random earlier site.

        Whether, of which site and slice, and by which share is a function of a sample's place. `margin` is the number
        of extra pixels on every side, which are not part of the window.
        """
        styled = []
        for image, place in zip(images, places, strict=True):
            coin, site, slice_, share = numpy_generator("style", *place).random(4)
            if coin < self.probability:
                stored = self.sites[int(site * len(self.sites))]
                image = restyled(image, stored[int(slice_ * len(stored))], self.share * share, margin)
            styled.append(image)
        return torch.stack(styled)


def amplitudes(images: Tensor, cutoff: int) -> Tensor:
    """Return |F(x)| [..., 2L + 1, L + 1] of images [..., h, w], L the cut-off: rows are u = -L..L, columns v = 0..L."""
    return _low(torch.fft.rfft2(images, norm="forward"), cutoff).abs()


def restyled(image: Tensor, stored: Tensor, share: float, margin: int = 0) -> Tensor:
    """Return an image [channels, rows, columns] with amplitudes moved towards the stored ones by a share.

    The window is the image without its margin. A change of its low frequencies repeats with the window's side as its
    period, and so reaches into the margin.
    """
    high, wide, cutoff = image.shape[-2] - 2 * margin, image.shape[-1] - 2 * margin, stored.shape[-1] - 1
    window = image[:, margin : margin + high, margin : margin + wide]
    spectrum = torch.fft.rfft2(window, norm="forward")
    low = _low(spectrum, cutoff)
    moved = torch.polar(torch.lerp(low.abs(), stored.to(low.abs()), share), low.angle())
    change = torch.zeros_like(spectrum)
    change[:, :, : cutoff + 1] = _placed(moved - low, high)
    shading = torch.fft.irfft2(change, s=(high, wide), norm="forward")
    down, across = torch.arange(-margin, high + margin) % high, torch.arange(-margin, wide + margin) % wide
    mean, deviation = _moments(window)
    new_mean, new_deviation = _moments(window + shading)
    whole = image + shading[:, down[:, None], across]
    return (whole - new_mean) * (deviation / new_deviation.clamp_min(TINY)) + mean


def _low(spectrum: Tensor, cutoff: int) -> Tensor:
    """Return the frequencies up to the cut-off, negative u first."""
    left = spectrum[..., : cutoff + 1]
    return torch.cat([left[..., -cutoff:, :], left[..., : cutoff + 1, :]], dim=-2)


def _placed(low: Tensor, high: int) -> Tensor:
    """Return low frequencies at their places among all rows of a spectrum, zeros between them."""
    cutoff = low.shape[-1] - 1
    rows = low.new_zeros(*low.shape[:-2], high, cutoff + 1)
    rows[..., -cutoff:, :], rows[..., : cutoff + 1, :] = low[..., :cutoff, :], low[..., cutoff:, :]
    return rows


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel."""
    mean = images.mean((-2, -1), keepdim=True)
    return mean, (images - mean).square().mean((-2, -1), keepdim=True).sqrt()
