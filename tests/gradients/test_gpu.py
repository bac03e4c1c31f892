"""What a GPU would do, on a stand-in: tensors of torch's `meta` device have a device and no values.

A tensor that was left on the CPU, and a number that is fetched from the device, are errors there.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smg.gradients.device import drawing, to_device
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.methods import METHODS, find_method, take_step
from smg.methods.step import _report
from smg.networks import NetworkConfig, build_network
from tests.toys import iteration, remember

OWN = [name for name, method in METHODS.items() if method.__module__.startswith("smg.")]


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("name", [name for name in OWN if name != "gem"])  # which solves a small problem on the CPU
def test_no_method_leaves_its_device_or_waits_for_it(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())  # knows real devices alone
    ours = Oracle(build_network(NetworkConfig(width=4, depth=1, norm=norm), 0).to("meta"))
    method = find_method(name)
    ours.at(0, 1, 0, scale=lambda g: g)
    if method.remembers():
        method.state.update({"theta": ours.theta.clone(), "importance": torch.ones_like(ours.theta)})
    moved = method.update(ours.theta, ours, lambda theta, g: theta - 0.1 * g, iteration())
    assert moved.device.type == "meta"
    assert {answer.gradient.device.type for answer in ours.answers} == {"meta"}
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        _report(ours, [])  # which has to fetch its numbers: here a GPU is waited for, once


class Fetches(TorchDispatchMode):
    """Counts the numbers that are fetched from tensors one by one, each of which a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inner", ["sgd", "adam"])
@pytest.mark.parametrize("name", OWN)
def test_a_step_fetches_its_report_and_no_number_else(name: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"inner": inner} if hasattr(METHODS[name], "inner") else {}
    ours, method = Oracle(build_network(NetworkConfig(width=2, depth=1), 0)), METHODS[name](**options)
    ours._written = None  # a GPU's passes are autograd's
    opt, fetched = Optimiser(ours.theta), list[int]()
    remember(method, ours, ours.theta + 0.01)
    take_step(method, ours, opt, iteration(0))
    whole = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: fetched.append(1) or whole(tensor))
    with Fetches() as numbers:
        take_step(method, ours, opt, iteration(1))
    assert numbers.count == 0
    assert len(fetched) == 1


def test_a_gpu_copies_from_pinned_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: seen.append("pinned") or tensor)
    monkeypatch.setattr(
        Tensor, "to", lambda tensor, device, dtype, non_blocking: seen.append((device.type, non_blocking)) or tensor
    )
    for kind in ("cuda", "cpu", "meta"):
        to_device(torch.zeros(2), torch.device(kind))
    assert seen == ["pinned", ("cuda", True), ("cpu", True), ("meta", True)]


def test_a_gpus_generator_is_seeded_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(7)  # stands in for the GPU's
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: generator.get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: generator.set_state(state))
    monkeypatch.setattr(torch.cuda, "manual_seed", generator.manual_seed)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    before, drawn = (generator.get_state(), torch.get_rng_state()), []
    for seed in (1, 2, 1):
        with drawing(seed, torch.device("cuda", 0)):
            drawn.append((torch.rand(3, generator=generator), torch.rand(3)))
    for place in (0, 1):  # on the GPU, on the CPU
        assert torch.equal(drawn[0][place], drawn[2][place])
        assert not torch.equal(drawn[0][place], drawn[1][place])
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
