"""nnU-Net's 2-D network, `PlainConvUNet`: strided convolutions down, transposed ones up, instance norm, leaky ReLU.

It is written here so that a model from nnU-Net needs neither nnU-Net nor `dynamic_network_architectures`, which would
bring torchvision and timm with it. A test compares the two, weight for weight. Parameters have nnU-Net's names, each
once: nnU-Net's file holds the encoder a second time below the decoder, and every layer a second time
in `all_modules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeVar

import torch
from torch import Tensor, nn

from smg.errors import SmgError

Pair = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The structure of a network, stage by stage."""

    features: list[int]
    kernels: list[Pair]
    strides: list[Pair]
    down: list[int]  # convolutions
    up: list[int]
    bias: bool  # of convolutions
    eps: float  # of the norms
    slope: float  # of the leaky ReLU


class PlainConvUNet(nn.Module):
    """Map images [B, in_channels, H, W] to logits [B, out_channels, H, W]; strides divide H and W.

    Arguments have nnU-Net's names and meaning; a list has one entry for each stage, and a number counts for all stages.
    The heads of the coarser stages, which nnU-Net trains by deep supervision, are kept so that weights fit both ways;
    the logits are those of the finest stage.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        features_per_stage: Sequence[int],
        kernel_sizes: int | Sequence[int | Sequence[int]] = 3,
        strides: Sequence[int | Sequence[int]] | None = None,
        n_conv_per_stage: int | Sequence[int] = 2,
        n_conv_per_stage_decoder: int | Sequence[int] = 2,
        conv_bias: bool = True,
        eps: float = 1e-5,
        negative_slope: float = 0.01,
    ) -> None:
        super().__init__()
        features = [int(count) for count in features_per_stage]
        stages = len(features)
        if stages < 2:
            raise ValueError(f"features_per_stage {features}: a U-Net has at least two stages")
        kernels = [_pair(k, "kernel_sizes") for k in _each(kernel_sizes, stages, "kernel_sizes")]
        if any(side % 2 == 0 for kernel in kernels for side in kernel):
            raise ValueError(f"kernel_sizes {kernels}: an even kernel would shrink the maps")
        steps = [_pair(s, "strides") for s in _each(strides or [1, *[2] * (stages - 1)], stages, "strides")]
        down: list[int] = _each(n_conv_per_stage, stages, "n_conv_per_stage")
        up: list[int] = _each(n_conv_per_stage_decoder, stages - 1, "n_conv_per_stage_decoder")
        self.plan = Plan(features, kernels, steps, down, up, conv_bias, eps, negative_slope)
        made = _Convolutions(conv_bias, eps, negative_slope)

        self.divisor: Pair = (prod(s[0] for s in steps), prod(s[1] for s in steps))
        self.named_bottleneck = f"encoder.stages.{stages - 1}"
        self.encoder = _Encoder(
            nn.Sequential(made.block(down[n], a, b, kernels[n], steps[n]))
            for n, (a, b) in enumerate(pairwise([in_channels, *features]))
        )
        rising = [(n, features[n + 1], features[n]) for n in reversed(range(stages - 1))]  # stage, below, its own
        self.decoder = _Decoder(
            (made.block(up[place], 2 * own, own, kernels[n], (1, 1)) for place, (n, _, own) in enumerate(rising)),
            (nn.ConvTranspose2d(below, own, steps[n + 1], steps[n + 1], bias=conv_bias) for n, below, own in rising),
            (nn.Conv2d(own, out_channels, 1) for _, _, own in rising),
        )
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        (rows, columns), (down, across) = x.shape[-2:], self.divisor
        if rows % down or columns % across:
            raise SmgError(
                f"slices of {rows}x{columns} do not fit the strides of PlainConvUNet; set preparation.size to "
                f"a multiple of {down if down == across else f'{down} rows and of {across} columns'}"
            )
        return self.decoder(self.encoder(x))


class _Encoder(nn.Module):
    """The downsampling stages, finest first."""

    def __init__(self, stages: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class _Decoder(nn.Module):
    """The upsampling stages, coarsest first, each with its transposed convolution and its head."""

    def __init__(self, stages: Iterable[nn.Module], growing: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages, self.transpconvs = nn.ModuleList(stages), nn.ModuleList(growing)
        self.seg_layers = nn.ModuleList(heads)

    def forward(self, maps: list[Tensor]) -> Tensor:
        *skips, x = maps
        for grow, stage in zip(self.transpconvs, self.stages, strict=True):
            x = stage(torch.cat([grow(x), skips.pop()], dim=1))
        logits: Tensor = self.seg_layers[-1](x)
        return logits


class _Convolutions:
    """The settings that all convolutions of a network share."""

    def __init__(self, bias: bool, eps: float, slope: float) -> None:
        self.bias, self.eps, self.slope = bias, eps, slope

    def block(self, count: int, incoming: int, outgoing: int, kernel: Pair, stride: Pair) -> nn.Module:
        """Return `count` convolutions, of which the first has the stride."""
        sizes = [incoming, *[outgoing] * count]
        strides = [stride, *[(1, 1)] * (count - 1)]
        convs = [self._one(a, b, kernel, step) for (a, b), step in zip(pairwise(sizes), strides, strict=True)]
        return _Stacked(nn.Sequential(*convs))

    def _one(self, incoming: int, outgoing: int, kernel: Pair, stride: Pair) -> nn.Module:
        padding = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
        conv = nn.Conv2d(incoming, outgoing, kernel, stride, padding, bias=self.bias)
        # Group norm with a group for each channel equals instance norm, and is faster on a CPU (smg.networks.unet).
        return _ConvNorm(conv, nn.GroupNorm(outgoing, outgoing, self.eps), nn.LeakyReLU(self.slope, inplace=True))


class _Stacked(nn.Module):
    """Convolutions one after another, under the name that nnU-Net gives them."""

    def __init__(self, convs: nn.Sequential) -> None:
        super().__init__()
        self.convs = convs

    def forward(self, x: Tensor) -> Tensor:
        return self.convs(x)


class _ConvNorm(nn.Module):
    """A convolution, its norm and its nonlinearity."""

    def __init__(self, conv: nn.Module, norm: nn.Module, nonlin: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.nonlin = conv, norm, nonlin

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlin(self.norm(self.conv(x)))


def _initialise(module: nn.Module) -> None:
    """Draw a convolution's weights as nnU-Net does (He et al.), with no bias at first."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, a=1e-2)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _each(given: int | Sequence[T], count: int, name: str) -> list[int | T]:
    """Return one entry for each stage."""
    values: list[int | T] = [given] * count if isinstance(given, int) else list(given)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries for {count} stages")
    return values


def _pair(side: int | Sequence[int], name: str) -> Pair:
    """Return rows and columns of a kernel or stride."""
    sides = (side, side) if isinstance(side, int) else tuple(side)
    if len(sides) != 2 or any(not isinstance(s, int) or s < 1 for s in sides):
        raise ValueError(f"{name}: {side} is neither a number nor two, of rows and columns")
    return sides[0], sides[1]
