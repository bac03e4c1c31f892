"""opt(Θ, g) is torch's Adam; its scale is what Adam divides by."""

from __future__ import annotations

import math

import pytest
import torch

from smg.gradients.optimiser import Optimiser, OptimiserConfig


def gradients(count: int, size: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(count)]


def test_it_is_adam() -> None:
    ours = torch.ones(6, dtype=torch.float64)
    opt = Optimiser(ours)
    theirs = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))
    adam = torch.optim.Adam([theirs], lr=5e-4)
    for g in gradients(10):
        assert opt(ours, g) is ours
        theirs.grad = g.clone()
        adam.step()
    assert torch.allclose(ours, theirs, rtol=1e-12)


def test_scale_divides_as_adams_next_step_would() -> None:
    theta = torch.zeros(6, dtype=torch.float64)
    opt = Optimiser(theta)
    *past, last = gradients(8)
    for g in past:
        opt(theta, g)
    # Adam without momentum, brought to the same second moment
    point = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    plain = torch.optim.Adam([point], lr=1.0, betas=(0.0, 0.999))
    for g in past:
        point.grad = g.clone()
        plain.step()
    before = point.detach().clone()
    point.grad = last.clone()
    plain.step()
    moments = opt.state()
    assert torch.allclose(-opt.scale(last), point.detach() - before, rtol=1e-10)
    assert all(torch.equal(a, b) for a, b in zip(moments.values(), opt.state().values(), strict=True))


def test_scale_is_defined_and_bounded_before_the_first_step() -> None:
    opt = Optimiser(torch.zeros(3))
    assert torch.allclose(opt.scale(torch.tensor([1e-3, -2.0, 0.0])), torch.tensor([1.0, -1.0, 0.0]), atol=1e-4)


def test_stopped_and_resumed_is_straight_through() -> None:
    straight, resumed = torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    one, two = Optimiser(straight), Optimiser(resumed)
    for g in gradients(9):
        one(straight, g)
    for g in gradients(9)[:4]:
        two(resumed, g)
    again = Optimiser(resumed)
    again.load(two.state())
    for g in gradients(9)[4:]:
        again(resumed, g)
    assert torch.equal(straight, resumed)


def test_moments_are_carried_over_to_another_vector() -> None:
    theta = torch.zeros(6, dtype=torch.float64)
    opt = Optimiser(theta)
    first, second = gradients(2)
    copy = opt(theta.clone(), first)
    opt(copy, second)
    assert not theta.any()
    assert int(opt.state()["step"]) == 2


def test_schedules_and_weight_decay() -> None:
    config = OptimiserConfig(rate=1.0, schedule="cosine")
    assert [config.rate_at(t, 4) for t in (0, 2)] == pytest.approx([1.0, 0.5])
    assert math.isclose(OptimiserConfig(rate=1.0, schedule="poly").rate_at(3, 4), 0.25**0.9)
    assert OptimiserConfig().rate_at(999, 1000) == 5e-4
    decayed = torch.ones(3)
    Optimiser(decayed, OptimiserConfig(rate=0.1, weight_decay=0.5))(decayed, torch.zeros(3))
    assert torch.allclose(decayed, torch.full((3,), 0.95))
    slow = torch.zeros(3)
    opt = Optimiser(slow, OptimiserConfig(rate=1.0, schedule="cosine"))
    opt.at(5, 10)
    opt(slow, torch.ones(3))
    assert torch.allclose(slow, torch.full((3,), -0.5))
