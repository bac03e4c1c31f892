"""The paper's 2-D U-Net, of any width and depth.

It is Ronneberger's: each level has two 3x3 convolutions; maps shrink by max pooling, grow by a 2x2 transposed
convolution, and skips are concatenated. MONAI's U-Nets differ: `BasicUNet` always has five levels, and its last one
does not halve the filters; `UNet` and `DynUNet` shrink maps by strided convolutions. MONAI's building blocks can be
composed to this network, and a test compares the two, weight for weight. It is written in torch here, in as many
lines, because importing MONAI would add 2.7 s to every command that predicts, and its padding 5 % to every pass.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from smg.errors import SmgError


class UNet(nn.Module):
    """Map images [B, channels, H, W] to logits [B, classes, H, W]; H and W are at least 2 ** (depth + 1).

    Dropout draws from torch's global generator. Seed that generator before a pass that must be repeatable.
    """

    def __init__(
        self,
        channels: int = 1,
        classes: int = 2,
        width: int = 32,
        depth: int = 4,
        norm: str = "instance",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        filters = [width * 2**level for level in range(depth + 1)]
        falling, rising = pairwise([channels, *filters[:-1]]), filters[-2::-1]
        self.smallest = 2 ** (depth + 1)
        self.named_bottleneck = "bottleneck"
        self.encoder = nn.ModuleList(_two_convolutions(a, b, norm, dropout) for a, b in falling)
        self.bottleneck = _two_convolutions(filters[-2], filters[-1], norm, dropout)
        self.upward = nn.ModuleList(nn.ConvTranspose2d(2 * f, f, kernel_size=2, stride=2) for f in rising)
        self.decoder = nn.ModuleList(_two_convolutions(2 * f, f, norm, dropout) for f in rising)
        self.head = nn.Conv2d(width, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        if min(x.shape[-2:]) < self.smallest:
            size = "x".join(map(str, x.shape[-2:]))
            raise SmgError(
                f"slices of {size} are too small for a unet of this depth: it needs {self.smallest} pixels a side; "
                "lower network.depth or raise preparation.size"
            )
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
            x = _halved(x)
        x = self.bottleneck(x)
        for up, level in zip(self.upward, self.decoder, strict=True):
            skip = skips.pop()
            x = level(torch.cat([skip, _grown_to(skip, up(x))], dim=1))
        return self.head(x)


def _two_convolutions(incoming: int, outgoing: int, norm: str, dropout: float) -> nn.Sequential:
    """Return two 3x3 convolutions, each followed by norm, dropout if any, and ReLU."""
    layers: list[nn.Module] = []
    for filters in (incoming, outgoing):
        # No bias, since the norm subtracts any constant.
        layers += [nn.Conv2d(filters, outgoing, kernel_size=3, padding=1, bias=False), _norm(norm, outgoing)]
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers)


def _norm(name: str, filters: int) -> nn.Module:
    """Return the norm of that name, `batch` or `instance`."""
    if name == "batch":
        return nn.BatchNorm2d(filters)
    # Group norm with a group for each channel equals instance norm; its kernel makes a pass 10 % shorter on a CPU.
    return nn.GroupNorm(filters, filters)


def _halved(x: Tensor) -> Tensor:
    """Return the maxima of 2x2 pixels.

    In prediction on a CPU they are maxima of neighbours, which are vectorised: the same numbers in a tenth of the time
    of torch's pooling, which visits one pixel at a time. Exported and compiled networks keep the pooling.
    """
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if torch.is_grad_enabled() or is_traced or x.device.type != "cpu" or x.shape[-1] % 2 or x.shape[-2] % 2:
        return functional.max_pool2d(x, 2)
    in_rows = torch.maximum(x[..., ::2], x[..., 1::2])
    return torch.maximum(in_rows[..., ::2, :], in_rows[..., 1::2, :])


def _grown_to(skip: Tensor, x: Tensor) -> Tensor:
    """Return a map at the size of its skip: pooling an odd side dropped a row, so the last one is repeated."""
    missing = [skip.shape[-1] - x.shape[-1], skip.shape[-2] - x.shape[-2]]
    return functional.pad(x, [0, missing[0], 0, missing[1]], mode="replicate") if any(missing) else x
