"""Compiled passes: the same gradients, the same care, and one line where there is no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

from smg.errors import SmgError
from smg.gradients.oracle import Oracle
from tests.toys import iteration


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()


def test_compiled_gradients_are_the_plain_ones_at_any_theta() -> None:
    plain, fused = (Oracle(network(), compile=compile) for compile in (False, True))
    batch = iteration().incoming
    start = [buffer.clone() for buffer in fused.network.buffers()]
    for shift in (0.01, 0.02):
        assert_close(fused(fused.theta + shift, batch), plain(plain.theta + shift, batch))
    assert all(torch.equal(a, b) for a, b in zip(start, fused.network.buffers(), strict=True))
    assert_close(fused(fused.theta, batch), plain(plain.theta, batch))
    for ours, theirs in zip(fused.network.buffers(), plain.network.buffers(), strict=True):
        assert_close(ours, theirs)
    _, ours = fused.linear(fused.theta, batch)
    _, theirs = plain.linear(plain.theta, batch)
    assert_close(ours(plain.theta), theirs(plain.theta))
    fused.theta.mul_(1.5)
    plain.theta.mul_(1.5)  # a step of the optimiser is seen by the compiled passes
    assert_close(fused(fused.theta, batch), plain(plain.theta, batch))


def gradient() -> torch.Tensor:
    torch.compiler.reset()
    ours = Oracle(network(), compile=True)
    return ours(ours.theta + 0.01, iteration().incoming)


def test_compiled_anew_the_bits_are_the_same(tmp_path: Path) -> None:
    before = gradient()
    with fresh_cache(dir=str(tmp_path), delete=False):
        assert torch.equal(gradient(), before)
    assert any(tmp_path.rglob("*.so"))


def test_without_a_compiler_one_line_says_what_to_do(tmp_path: Path) -> None:
    no_compiler = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})  # torch's own: it undoes itself
    line = r"compile: the network cannot be compiled .*; install g\+\+, or set compile=false"
    with no_compiler, fresh_cache(dir=str(tmp_path)), pytest.raises(SmgError, match=line):
        gradient()
