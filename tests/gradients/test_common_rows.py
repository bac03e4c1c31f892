"""Rows that are passed once give the same updates, in fewer passes, and only where rows do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from smg.gradients.common_rows import couples_rows, share_of, shared_parts
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.methods import METHODS, Method, take_step
from smg.networks import NetworkConfig, build_network
from tests.toys import iteration, remember, smooth_network

OWN = [name for name, method in METHODS.items() if method.__module__.startswith("smg.")]


def unet() -> nn.Module:
    return build_network(NetworkConfig(width=2, depth=1), 0).double()


class Counted(nn.Module):
    """A network that notes how many rows each pass has."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passed = inner, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.passed.append(len(x))
        return self.inner(x)


def steps(method: Method, share: bool, network: Callable[[], nn.Module], size: int = 5, **more: object) -> Oracle:
    ours = Oracle(network(), share=share, **more)  # type: ignore[arg-type]
    opt = Optimiser(ours.theta)
    remember(method, ours, ours.theta + 0.01)
    for number in range(4):
        take_step(method, ours, opt, iteration(number, size=size))
    return ours


@pytest.mark.parametrize("network", [unet, smooth_network])
@pytest.mark.parametrize("name", OWN)
def test_every_method_moves_alike_with_and_without(name: str, network: Callable[[], nn.Module]) -> None:
    alone, shared = (steps(METHODS[name](), share, network) for share in (False, True))
    torch.testing.assert_close(shared.theta, alone.theta, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(shared.answers, alone.answers, strict=True):  # what the report of a step is made from
        assert (ours.batch, ours.virtual) == (theirs.batch, theirs.virtual)
        torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-12, atol=1e-12)


def test_rows_that_do_not_fit_at_once_are_shared_too() -> None:
    alone, shared = (steps(METHODS["sga"](), share, unet, micro_batch=2) for share in (False, True))
    torch.testing.assert_close(shared.theta, alone.theta, rtol=1e-12, atol=1e-12)


def passed(method: str, share: bool, network: Callable[[], nn.Module] = smooth_network, **more: object) -> int:
    ours = steps(METHODS[method](), share, lambda: Counted(network()), **more)  # type: ignore[arg-type]
    assert isinstance(ours.network, Counted)
    return sum(ours.network.passed)


def test_fewer_rows_are_passed() -> None:
    assert passed("sga", share=False) - passed("sga", share=True) >= 4  # of 80: two of ten in each iteration but few
    assert passed("lwf", share=False) - passed("lwf", share=True) == 4 * 5  # forward; backward there are two
    for name in ("gem", "jm", "isgm", "c-meta", "g-meta", "der++"):  # have no row in common at one Θ
        assert passed(name, share=True) == passed(name, share=False)


class Mixing(nn.Module):
    """A network of a user's own, in which rows see each other; no module says so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = smooth_network()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(dim=0))  # type: ignore[no-any-return]


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(4, 2, 1)).double()


@pytest.mark.parametrize(
    "network",
    [Mixing, lambda: normed(nn.BatchNorm2d(4)), lambda: normed(nn.Dropout(0.5))],
    ids=["own", "batch", "drop"],
)
def test_nothing_is_shared_where_rows_depend_on_each_other(network: Callable[[], nn.Module]) -> None:
    for name in ("sga", "lwf"):
        assert passed(name, share=True, network=network) == passed(name, share=False, network=network)
        torch.manual_seed(0)
        alone = steps(METHODS[name](), False, lambda: (torch.manual_seed(0), network())[1])
        shared = steps(METHODS[name](), True, lambda: (torch.manual_seed(0), network())[1])
        assert torch.equal(alone.theta, shared.theta)


def test_what_says_that_rows_depend_on_each_other() -> None:
    tracked = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    assert all(couples_rows(normed(one)) for one in (nn.BatchNorm2d(4), nn.Dropout(0.1), tracked))
    assert not any(couples_rows(normed(one)) for one in (nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Dropout(0.0)))


def test_parts_cover_every_row_once_and_processes_share_them_evenly() -> None:
    for number in range(6):
        it = iteration(number, size=5)
        assert it.replay is not None
        train, _ = it.split(it.incoming, it.replay)
        parts = shared_parts([(it.incoming, None), (train, None)])
        if parts is None:
            assert len(set(it.incoming.rows) & set(train.rows)) < 2
            continue
        for place, batch in enumerate((it.incoming, train)):
            assert sorted(row for part in parts for row in part.rows if place in part.of) == sorted(batch.rows)
        shares = [share_of(parts, rank, 3) for rank in range(3)]
        counts = [sum(len(part.rows) for part in share) for share in shares]
        assert max(counts) - min(counts) <= 1
        rows = [row for share in shares for part in share for row in part.rows]
        assert sorted(rows) == sorted(row for part in parts for row in part.rows)


def test_compiled_passes_are_not_made_for_every_size_of_a_part() -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    plain = steps(METHODS["sga"](), False, smooth_network)
    fused = steps(METHODS["sga"](), True, smooth_network, compile=True)
    torch.testing.assert_close(fused.theta, plain.theta, rtol=1e-9, atol=1e-9)
    assert counters["stats"]["unique_graphs"] <= 2  # at Θ and at shifted parameters; parts had several sizes
