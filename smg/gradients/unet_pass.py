"""The forward and backward pass of our U-Net, written out: the same numbers as autograd's, in less time on a CPU.

Each operation is the kernel that autograd would call, on the same arguments, so that logits and gradients are equal to
the bit. Three things save time: ReLU works in place, no graph is built, and pooling is two maxima of neighbours, which
are vectorised, where torch's pooling of 2 x 2 pixels visits one pixel at a time (a tenth of the time at 96 x 96).

Rows do not depend on each other, so one backward pass can serve several queries at one Θ. The gradients of activations
are computed for all rows together, those of weights for each group of rows. A query then adds up its groups.

Without `is_exact` one change shows in the last bits: the gradient with respect to the input of a convolution is a
convolution with the flipped kernel, for which oneDNN takes half the time if the filters do not fill its blocks of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from smg.networks.unet import UNet

BLOCK = 16  # filters that oneDNN computes together with AVX-512
SMALL = 2**21  # pixels of the first level's maps, over all rows: 28 rows of 96 x 96 with width 8
Weights = dict[str, Tensor]  # parameters by name
_aten = torch.ops.aten


class Unit(NamedTuple):
    """A convolution, its instance norm and ReLU, as the backward pass needs them."""

    name: str  # of the convolution
    norm: str
    given: Tensor  # its input
    convolved: Tensor
    mean: Tensor
    spread: Tensor  # one over the standard deviation
    out: Tensor


class Pooled(NamedTuple):
    """Which pixel of 2 x 2 was the largest; the first of several, as in torch."""

    left: Tensor  # of two neighbours in a row
    upper: Tensor  # of the two rows' maxima


@dataclass
class Tape:
    """The intermediate results of a forward pass."""

    units: list[Unit] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    grown: list[Tensor] = field(default_factory=list)  # inputs of the transposed convolutions
    last: Tensor | None = None  # input of the head

    def copy(self) -> Tape:
        """Return a tape that can be used up on its own."""
        return Tape(list(self.units), list(self.pooled), list(self.grown), self.last)


def can_write_out(network: nn.Module) -> TypeGuard[UNet]:
    """Return whether a network's passes can be written out: our U-Net on a CPU, with instance norm and no dropout."""
    if type(network) is not UNet or "forward" in vars(network):
        return False
    if any(not p.requires_grad or p.device.type != "cpu" for p in network.parameters()):
        return False
    for module in network.modules():
        is_norm = isinstance(module, nn.GroupNorm) and module.num_groups == module.num_channels
        plain = (UNet, nn.ModuleList, nn.Sequential, nn.Conv2d, nn.ConvTranspose2d, nn.ReLU)
        if not (is_norm or type(module) in plain) or module._forward_hooks or module._forward_pre_hooks:
            return False
    return True


class UNetPass:
    """The passes of one network at any Θ."""

    def __init__(self, network: UNet, is_exact: bool = True) -> None:
        self.is_exact, self.width = is_exact, network.head.in_channels
        self.names = [name for name, _ in network.named_parameters()]
        self.depth = len(network.encoder)
        named = dict(network.named_modules())
        self._levels: dict[str, list[tuple[str, str, float]]] = {}  # by level: convolution, norm, its epsilon
        for name, module in named.items():
            if isinstance(module, nn.GroupNorm):
                level, _, index = name.rpartition(".")
                self._levels.setdefault(level, []).append((f"{level}.{int(index) - 1}", name, module.eps))

    def fits(self, images: Tensor) -> bool:
        """Return whether images can be passed: their sides must halve without a rest at every level."""
        return all(side % 2**self.depth == 0 and side >= 2 ** (self.depth + 1) for side in images.shape[-2:])

    def is_small(self, images: Tensor, rows: int) -> bool:
        """Return whether that many rows like these are passed faster together than in turns.

        The fixed cost of a small pass is that of about one row. Large passes gain nothing and need more memory.
        """
        return rows * images.shape[-2] * images.shape[-1] * self.width <= SMALL

    def forward(self, weights: Weights, images: Tensor) -> tuple[Tensor, Tape]:
        """Return the logits of images, and what a backward pass needs."""
        tape, x, skips = Tape(), images, []
        with torch.no_grad():
            for number in range(self.depth):
                x = self._level(f"encoder.{number}", weights, x, tape)
                skips.append(x)
                x, largest = _pool(x)
                tape.pooled.append(largest)
            x = self._level("bottleneck", weights, x, tape)
            for number in range(self.depth):
                name = f"upward.{number}"
                tape.grown.append(x)
                x = functional.conv_transpose2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride=2)
                x = self._level(f"decoder.{number}", weights, torch.cat([skips.pop(), x], dim=1), tape)
            tape.last = x
            return functional.conv2d(x, weights["head.weight"], weights["head.bias"]), tape

    def _level(self, level: str, weights: Weights, x: Tensor, tape: Tape) -> Tensor:
        for name, norm, epsilon in self._levels[level]:
            convolved = functional.conv2d(x, weights[f"{name}.weight"], padding=1)
            rows, filters, height, width = convolved.shape
            scale, shift = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
            out, mean, spread = torch.native_group_norm(
                convolved, scale, shift, rows, filters, height * width, filters, epsilon
            )
            tape.units.append(Unit(name, norm, x, convolved, mean, spread, out.relu_()))
            x = out
        return x

    def backward(self, weights: Weights, tape: Tape, gradient: Tensor, groups: Sequence[int]) -> list[Tensor]:
        """Return the flat gradient of each group of consecutive rows, of these lengths; the tape is used up.

        `gradient` is that of the sum of all rows' losses with respect to the logits.
        """
        assert tape.last is not None
        back = _Backward(weights, list(groups), [{} for _ in groups], self.is_exact)
        skipped = []
        with torch.no_grad():
            g = back.convolution("head", tape.last, gradient)
            for number in range(self.depth)[::-1]:
                g = back.level(tape.units, g)
                of_skip, of_grown = g.chunk(2, dim=1)
                skipped.append(of_skip)
                g = back.convolution(f"upward.{number}", tape.grown.pop(), of_grown.contiguous(), is_transposed=True)
            g = back.level(tape.units, g)
            for _ in range(self.depth):
                g = _unpool(g, tape.pooled.pop()).add_(skipped.pop())
                g = back.level(tape.units, g)
        return [torch.cat([of[name].reshape(-1) for name in self.names]) for of in back.found]


@dataclass
class _Backward:
    """The steps back through a network's layers, each of which returns the gradient with respect to its input."""

    weights: Weights
    groups: list[int]
    found: list[Weights]  # gradients with respect to the weights, of each group
    is_exact: bool

    def level(self, units: list[Unit], g: Tensor) -> Tensor:
        """Go back through the last two units, and remove them."""
        for _ in range(2):
            unit = units.pop()
            g = self._unit(unit, g, is_first=not units)
        return g

    def _unit(self, unit: Unit, g: Tensor, is_first: bool) -> Tensor:
        g, scale = _aten.threshold_backward(g, unit.out, 0), self.weights[f"{unit.norm}.weight"]
        filters, pixels, parts = g.shape[1], g.shape[2] * g.shape[3], []
        for of, *mine in zip(self.found, *map(self._cut, (g, unit.convolved, unit.mean, unit.spread)), strict=True):
            part, of[f"{unit.norm}.weight"], of[f"{unit.norm}.bias"] = _aten.native_group_norm_backward(
                *mine, scale, len(mine[0]), filters, pixels, filters, [True, True, True]
            )
            parts.append(part)
        g = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.convolution(unit.name, unit.given, g, is_first=is_first)

    def convolution(
        self, name: str, given: Tensor, g: Tensor, is_transposed: bool = False, is_first: bool = False
    ) -> Tensor:
        """Go back through a convolution; no gradient with respect to the images is taken."""
        weight, has_bias = self.weights[f"{name}.weight"], f"{name}.bias" in self.weights
        stride, padding = (2, 0) if is_transposed else (1, weight.shape[-1] // 2)
        biases = [g.shape[1]] if has_bias else None
        options = biases, [stride] * 2, [padding] * 2, [1, 1], is_transposed, [0, 0], 1
        flips = not self.is_exact and padding == 1 and len(weight) % BLOCK != 0
        at_once = len(self.groups) == 1 and not flips and not is_first
        for of, mine, inputs in zip(self.found, self._cut(g), self._cut(given), strict=True):
            wanted = [at_once, True, has_bias]
            at_input, of[f"{name}.weight"], at_bias = _aten.convolution_backward(mine, inputs, weight, *options, wanted)
            if has_bias:
                of[f"{name}.bias"] = at_bias
        if at_once:
            return at_input
        if is_first:
            return g
        if flips:
            return functional.conv2d(g, weight.transpose(0, 1).flip(2, 3), padding=padding)
        found: Tensor = _aten.convolution_backward(g, given, weight, *options, [True, False, False])[0]
        return found

    def _cut(self, rows: Tensor) -> Sequence[Tensor]:
        return (rows,) if len(self.groups) == 1 else torch.split(rows, self.groups)


def _pool(x: Tensor) -> tuple[Tensor, Pooled]:
    """Return the maxima of 2 x 2 pixels, and where they were."""
    left, right = x[..., ::2], x[..., 1::2]
    in_rows = torch.maximum(left, right)
    upper, lower = in_rows[..., ::2, :], in_rows[..., 1::2, :]
    return torch.maximum(upper, lower), Pooled(left >= right, upper >= lower)


def _unpool(g: Tensor, largest: Pooled) -> Tensor:
    """Return the gradient with respect to the input of `_pool`."""
    rows, filters, height, width = g.shape
    in_rows = g.new_empty(rows, filters, height, 2, width)
    torch.mul(g, largest.upper, out=in_rows[..., 0, :])
    torch.sub(g, in_rows[..., 0, :], out=in_rows[..., 1, :])
    in_rows = in_rows.view(rows, filters, 2 * height, width)
    result = g.new_empty(rows, filters, 2 * height, width, 2)
    torch.mul(in_rows, largest.left, out=result[..., 0])
    torch.sub(in_rows, result[..., 0], out=result[..., 1])
    return result.view(rows, filters, 2 * height, 2 * width)
