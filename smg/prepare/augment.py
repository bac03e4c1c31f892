"""Augment a whole batch at once, on its device, as a function of (seed, round, iteration).

Geometry comes first: rotation, scale, shift, flip and elastic warp compose into one sampling grid. Effects on intensity
follow in a scanner's order: coil and sequence (shading, gamma, contrast), then acquisition (blur, resolution, noise).

Each sample has its own generator and always draws every number. So its augmentation depends neither on the other
samples nor on which effects are active, and a batch divided among processes is augmented as in one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from smg.prepare.effects import PRESETS, Augmentation, Chance, Effect
from smg.prepare.windows import Sides, both
from smg.randomness import torch_generator

__all__ = ["PRESETS", "Augmentation", "Chance", "Effect", "augment", "augment_along"]

EFFECTS = tuple(Augmentation.model_fields)
MOVES = ("rotation", "scale", "shift", "flip", "elastic")
# Control points along a side of the two smooth fields: a warp varies over an organ, shading over the whole slice.
WARP_KNOTS, BIAS_KNOTS = 7, 5
TINY = 1e-6


def augment(
    images: Tensor,
    labels: Tensor,
    config: Augmentation,
    seed: int,
    round: int,
    iteration: int,
    *,
    first: int = 0,
    margin: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return images [B, C, h, w] and their labels [B, h, w] augmented; the inputs are not changed.

    `first` is the place in the iteration of the batch's first sample. Parts of a divided batch, and several batches of
    an iteration, need different places, so that no two samples share their augmentation. `margin` is the number of
    extra pixels on every side of the inputs: geometry may move them into the result, and the result is without them.
    """
    images, labels, _ = augment_along(images, labels, None, config, seed, round, iteration, first=first, margin=margin)
    return images, labels


def augment_along(
    images: Tensor,
    labels: Tensor,
    along: Tensor | None,
    config: Augmentation,
    seed: int,
    round: int,
    iteration: int,
    *,
    first: int = 0,
    margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the result of `augment`, and maps [B, K, h, w] that are moved as the pixels are."""
    if len(images) == 0 or not any(getattr(config, name).active for name in EFFECTS):
        return _without(images, margin), _without(labels, margin), None if along is None else _without(along, margin)
    places = [(seed, round, iteration, first + sample) for sample in range(len(images))]
    draw, channels = _draw(config, places), images.shape[1]
    images, labels = _move(images if along is None else torch.cat([images, along], dim=1), labels, draw, config, margin)
    images, along = images[:, :channels], None if along is None else images[:, channels:]
    images = _shade(images, draw, config)
    images = _stretch(images, draw, config)
    images = _coarsen(images, draw, config)
    return _add_noise(images, draw, config, places), labels, along


@dataclass(frozen=True)
class Draw:
    """Draws of each sample: two numbers in -1 .. 1 for each effect, both zero where the effect is not applied."""

    dials: dict[str, Tensor]  # effect -> [B, 2]; most effects read the first number
    warp: Tensor  # control points [B, 2, WARP_KNOTS, WARP_KNOTS]
    bias: Tensor  # control points [B, 1, BIAS_KNOTS, BIAS_KNOTS]

    def hits(self, *names: str) -> Tensor:
        """Return which samples have any of these effects, [B]."""
        return torch.stack([self.dials[name].any(1) for name in names]).any(0)


def _draw(config: Augmentation, places: Sequence[tuple[int, ...]]) -> Draw:
    """Draw on the CPU, so that draws do not depend on the batch's device."""
    count = len(EFFECTS)
    parts = [count, 2 * count, 2 * WARP_KNOTS**2, BIAS_KNOTS**2]
    drawn = torch.stack([torch.rand(sum(parts), generator=torch_generator("augment", *place)) for place in places])
    coins, dials, warp, bias = torch.split(drawn, parts, dim=1)
    effects = [getattr(config, name) for name in EFFECTS]
    hit = coins < torch.tensor([effect.probability if effect.active else 0.0 for effect in effects])
    dials = (2 * dials - 1).reshape(-1, count, 2) * hit[:, :, None]
    return Draw(
        dials=dict(zip(EFFECTS, dials.unbind(1), strict=True)),
        warp=(2 * warp - 1).reshape(-1, 2, WARP_KNOTS, WARP_KNOTS),
        bias=(2 * bias - 1).reshape(-1, 1, BIAS_KNOTS, BIAS_KNOTS),
    )


def _factor(effect: Effect, dial: Tensor) -> Tensor:
    """Return factors between 1/(1+s) and 1+s, as likely below 1 as above."""
    return torch.pow(1 + effect.strength, dial)


def _each(values: Tensor, images: Tensor) -> Tensor:
    """Return one value a sample on the images' device, in a shape that broadcasts over them."""
    return values.to(images.device)[:, None, None, None]


# --- Geometry ---------------------------------------------------------------------------------------------------------


def margin_of(config: Augmentation, size: Sides) -> int:
    """Return how many pixels around a window of `size` the geometry can bring into it."""
    if not any(getattr(config, name).active for name in MOVES):
        return 0
    high, wide = both(size)
    return max(_reach_beyond(config, high, wide), _reach_beyond(config, wide, high))


def _reach_beyond(config: Augmentation, side: int, other: int) -> int:
    """Return how many pixels beyond a side of a window the geometry reaches; `other` is the side across."""
    farthest = math.degrees(math.atan2(other, side))  # the angle at which a corner reaches farthest
    angle = math.radians(min(config.rotation.strength, farthest)) if config.rotation.active else 0.0
    reach = math.cos(angle) + math.sin(angle) * (other / side)  # of a rotated corner; 1 without rotation
    reach *= 1 + config.scale.strength if config.scale.active else 1.0
    reach += sum(2 * effect.strength for effect in (config.shift, config.elastic) if effect.active)
    return math.ceil((reach - 1) * side / 2)


def _without(inputs: Tensor, margin: int) -> Tensor:
    """Return the inputs without their margin."""
    return inputs[..., margin : inputs.shape[-2] - margin, margin : inputs.shape[-1] - margin] if margin else inputs


def _move(images: Tensor, labels: Tensor, draw: Draw, config: Augmentation, margin: int) -> tuple[Tensor, Tensor]:
    """Return images and labels sampled on one grid, so that they stay aligned.

    Beyond the slice its edge pixels are repeated: zeros would draw a grey frame, and a mirror a second anatomy.
    """
    hits = draw.hits(*MOVES)
    still, still_labels = _without(images, margin), _without(labels, margin)
    if not hits.any():
        return still, still_labels
    classes = torch.bincount(labels.flatten()).nonzero()[:, 0].to(labels.dtype)
    shares = (labels[:, None] == classes[:, None, None]).to(images.dtype)
    layers = torch.cat([images, shares], dim=1)
    grid = _grid(still, draw, config) * _share_of(still, images)  # from the window's units to the inputs'
    layers = grid_sample(layers, grid, padding_mode="border", align_corners=False)
    moved, shares = layers[:, : images.shape[1]], layers[:, images.shape[1] :]
    hits = _each(hits, images)
    return torch.where(hits, moved, still), torch.where(hits[:, 0], _largest_share(shares, classes), still_labels)


def _share_of(still: Tensor, images: Tensor) -> Tensor | float:
    """Return the share of the inputs' sides (x, y) that the window covers."""
    across, down = (still.shape[axis] / images.shape[axis] for axis in (-1, -2))
    return across if across == down else torch.tensor([across, down], device=images.device)


def _largest_share(shares: Tensor, classes: Tensor) -> Tensor:
    """Return the class [B, h, w] with the largest share [B, K, h, w] of each pixel.

    Nearest-neighbour sampling needs no shares but is less exact: 0.958 DSC against 0.967 on glands at 64 x 64, both
    compared with the same warp at twelve times the resolution. A loop is used since argmax over planes takes ten times
    as long.
    """
    most, winner = shares[:, 0], classes[0].expand_as(shares[:, 0])
    for share, label in zip(shares.unbind(1)[1:], classes[1:], strict=True):
        most, winner = torch.maximum(most, share), torch.where(share > most, label, winner)
    return winner


def _grid(images: Tensor, draw: Draw, config: Augmentation) -> Tensor:
    """Return the source place of every pixel, [B, h, w, (x, y)], in units where the slice reaches from -1 to 1."""
    high, wide = images.shape[-2:]
    down, across = ((torch.arange(n, device=images.device) * 2 + 1) / n - 1 for n in (high, wide))
    there = _way_back(draw, config).to(images.device)
    if high != wide:  # so that a rotation turns pixels, and does not shear the slice
        there = there * torch.tensor([[1, high / wide, 1], [wide / high, 1, 1]], device=images.device)
    there = there[:, :, :, None, None]
    grid = there[:, :, 0] * across + there[:, :, 1] * down[:, None] + there[:, :, 2]
    if draw.hits("elastic").any():
        reach = 2 * config.elastic.strength * draw.dials["elastic"][:, 0].abs()
        grid = grid + _each(reach, images) * _smooth(draw.warp.to(images.device), high, wide)
    return grid.movedim(1, -1)


def _way_back(draw: Draw, config: Augmentation) -> Tensor:
    """Return the affine map [B, 2, 3] from a pixel to its source; a flip reverses x, the patient's left and right."""
    angle = torch.deg2rad(config.rotation.strength * draw.dials["rotation"][:, 0])
    factor = _factor(config.scale, draw.dials["scale"][:, 0])
    mirror = 1 - 2 * draw.hits("flip").float()
    x, y = (2 * config.shift.strength * draw.dials["shift"]).unbind(1)
    cos, sin = angle.cos() / factor, angle.sin() / factor
    return torch.stack([mirror * cos, mirror * sin, x, -sin, cos, y], dim=1).reshape(-1, 2, 3)


def _smooth(knots: Tensor, high: int, wide: int) -> Tensor:
    """Return cubic-spline fields [B, K, h, w] of control points [B, K, k, k], scaled to a largest value of one."""
    down, across = (_spline_basis(n, knots.shape[-1]).to(knots.device) for n in (high, wide))
    field = down @ knots @ across.T
    return field / field.abs().amax((1, 2, 3), keepdim=True).clamp_min(TINY)


@lru_cache(maxsize=16)
def _spline_basis(size: int, knots: int) -> Tensor:
    """Return weights [size, knots] of a uniform cubic B-spline at pixel centres; outer knots lie beyond the edge."""
    at = (torch.arange(size) + 0.5) / size * (knots - 3) + 1
    far = (at[:, None] - torch.arange(knots)).abs()
    return torch.where(far < 1, 2 / 3 - far**2 + far**3 / 2, (2 - far).clamp_min(0) ** 3 / 6)


# --- Coil and sequence ------------------------------------------------------------------------------------------------


def _shade(images: Tensor, draw: Draw, config: Augmentation) -> Tensor:
    """Return images with coil shading and then gamma, at each sample's former mean and deviation.

    Both effects need a black level, which a normalised image has lost; the sample's darkest pixel is taken for it.
    """
    hits = draw.hits("bias", "gamma")
    if not hits.any():
        return images
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    unit = ((images - low) / (high - low).clamp_min(TINY)).clamp(0, 1)
    if draw.hits("bias").any():
        reach = _each(draw.dials["bias"][:, 0].abs(), images)
        unit = unit * _factor(config.bias, reach * _smooth(draw.bias.to(images.device), *images.shape[-2:]))
        unit = unit / unit.amax((1, 2, 3), keepdim=True).clamp_min(TINY)  # or a large gain to a large power overflows
    unit = unit.pow(_each(_factor(config.gamma, draw.dials["gamma"][:, 0]), images))
    mean, deviation = _moments(images)
    new_mean, new_deviation = _moments(unit)
    shaded = (unit - new_mean) * (deviation / new_deviation.clamp_min(TINY)) + mean
    return torch.where(_each(hits, images), shaded, images)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each sample."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean, (images - mean).square().mean((1, 2, 3), keepdim=True).sqrt()


def _stretch(images: Tensor, draw: Draw, config: Augmentation) -> Tensor:
    """Return images with contrast changed about the mean, clipped to the sample's range as by a display window."""
    hits = draw.hits("contrast")
    if not hits.any():
        return images
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    mean = images.mean((1, 2, 3), keepdim=True)
    factor = _each(_factor(config.contrast, draw.dials["contrast"][:, 0]), images)
    stretched = ((images - mean) * factor + mean).clamp(low, high)
    return torch.where(_each(hits, images), stretched, images)


# --- Acquisition ------------------------------------------------------------------------------------------------------


def _coarsen(images: Tensor, draw: Draw, config: Augmentation) -> Tensor:
    """Return images with blur and lower resolution: both are linear and separable, so a matrix a side does both."""
    hits = draw.hits("blur", "resolution")
    if not hits.any():
        return images
    high, wide = images.shape[-2:]
    sigma = _each(config.blur.strength * draw.dials["blur"][:, 0].abs(), images)
    factor = _each(_factor(config.resolution, draw.dials["resolution"][:, 0].abs()), images)
    down = _larger_pixels(factor, high) @ _gaussian(sigma, high)
    across = down if wide == high else _larger_pixels(factor, wide) @ _gaussian(sigma, wide)
    return torch.where(_each(hits, images), down @ images @ across.mT, images)


def _gaussian(sigma: Tensor, size: int) -> Tensor:
    """Return matrices [B, 1, N, N] that blur a line of pixels; the identity where sigma is zero."""
    at = torch.arange(size, device=sigma.device)
    apart = ((at[:, None] - at) / sigma.clamp_min(TINY)).abs()
    weights = torch.exp(-(apart.clamp_max(4) ** 2) / 2) * (
        apart < 4
    )  # the far tail is denormal, which takes ten times as long
    return weights / weights.sum(-1, keepdim=True)


def _larger_pixels(factor: Tensor, size: int) -> Tensor:
    """Return matrices [B, 1, N, N] that average a line over pixels `factor` times as long and interpolate back."""
    at = torch.arange(size, device=factor.device)
    centres = (at[:, None] + 0.5) * factor - 0.5  # [B, 1, N, 1]; the last of the larger pixels lie beyond the line
    overlap = ((factor + 1) / 2 - (centres - at).abs()).clamp(0, 1)
    total = overlap.sum(-1, keepdim=True)
    average = overlap / total.clamp_min(TINY)
    nearness = (1 - (centres - at).abs() / factor).clamp_min(0) * (total > TINY)
    return (nearness / nearness.sum(-2, keepdim=True)).mT @ average


def _add_noise(images: Tensor, draw: Draw, config: Augmentation, places: Sequence[tuple[int, ...]]) -> Tensor:
    """Return images with white Gaussian noise, independent between slices, as thermal noise in regions with signal."""
    hits = draw.hits("noise")
    if not hits.any():
        return images
    device = images.device
    noise = torch.zeros_like(images)
    for sample in hits.nonzero()[:, 0].tolist():
        noise[sample].normal_(generator=torch_generator("augment noise", *places[sample], device=device))
    return images + noise * _each(config.noise.strength * draw.dials["noise"][:, 0].abs(), images)
