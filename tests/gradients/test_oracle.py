"""g(Θ; B) against plain autograd, and what must not be disturbed by asking."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from smg.errors import SmgError
from smg.gradients.bfloat16 import has_bfloat16
from smg.gradients.flat import flatten, pieces, trainable
from smg.gradients.oracle import Oracle
from smg.networks import NetworkConfig, build_network
from smg.networks.loss import Outputs, segmentation_loss
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch
from tests.toys import iteration, oracle, smooth_network


def plain_gradient(network: nn.Module, batch) -> torch.Tensor:
    """As everyone writes it: backward, then the parameters' .grad."""
    samples = batch.load()
    network.zero_grad()
    segmentation_loss(network(samples.images.double()), samples.labels).mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in network.parameters()])


def test_parameters_are_views_of_theta() -> None:
    network = smooth_network()
    before = parameters_to_vector(network.parameters()).detach().clone()
    theta = flatten(network)
    assert torch.equal(theta, before)
    theta.mul_(2)
    assert torch.equal(parameters_to_vector(network.parameters()), 2 * before)
    assert all(p.data_ptr() >= theta.data_ptr() for p in network.parameters())
    named = pieces(trainable(network), theta)
    assert [tuple(p.shape) for p in named.values()] == [tuple(p.shape) for p in network.parameters()]


def test_at_the_networks_own_parameters_it_is_autograds() -> None:
    ours, batch = oracle(), iteration().incoming
    assert torch.allclose(ours(ours.theta, batch), plain_gradient(smooth_network(), batch), rtol=1e-12, atol=1e-15)


def test_at_any_other_theta_too_and_the_network_stays_as_it_is() -> None:
    ours, batch = oracle(), iteration().incoming
    before = ours.theta.clone()
    elsewhere = ours.theta + 0.1
    gradient = ours(elsewhere, batch)
    other = smooth_network()
    flatten(other).add_(0.1)
    assert torch.allclose(gradient, plain_gradient(other, batch), rtol=1e-12, atol=1e-15)
    assert torch.equal(ours.theta, before)
    assert torch.equal(parameters_to_vector(ours.network.parameters()), before)
    assert all(p.grad is None for p in ours.network.parameters())
    assert not ours.theta.requires_grad


def test_a_parameter_without_gradient_counts_as_zeros() -> None:
    network = smooth_network()
    network.idle = nn.Parameter(torch.ones(7, dtype=torch.float64))
    plain_last = nn.Sequential(*list(network.children()))
    network.forward = lambda x: plain_last(x)  # type: ignore[method-assign]
    ours = Oracle(network)
    gradient = ours(ours.theta, iteration().incoming)
    named = pieces(trainable(network), gradient)
    assert named["idle"].tolist() == [0.0] * 7
    assert all(piece.any() for name, piece in named.items() if name != "idle")


def test_a_shared_parameter_counts_once_and_is_shifted_everywhere() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 2, 1, dtype=torch.float64)
            self.second = nn.Conv2d(2, 2, 1, dtype=torch.float64)
            self.third = nn.Conv2d(2, 2, 1, dtype=torch.float64)
            self.third.weight = self.second.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(self.first(x)).tanh())

    torch.manual_seed(0)
    ours, batch = Oracle(Shared()), iteration().incoming
    elsewhere = ours.theta + 0.1
    shifted = Oracle(ours.network)
    shifted.theta.copy_(elsewhere)
    expected = shifted(shifted.theta, batch)
    shifted.theta.sub_(0.1)
    assert torch.allclose(shifted(elsewhere, batch), expected, rtol=1e-9, atol=1e-14)


def test_a_frozen_parameter_is_no_part_of_theta() -> None:
    network = smooth_network()
    network[0].requires_grad_(False)
    ours = Oracle(network)
    assert len(ours.theta) == sum(p.numel() for p in network[1:].parameters())
    assert ours(ours.theta, iteration().incoming).any()


def test_micro_batches_give_the_same() -> None:
    batch = iteration(size=7).incoming
    whole = oracle()
    for rows in (1, 2, 3, 7, 50):
        parts = Oracle(smooth_network(), micro_batch=rows)
        assert torch.allclose(parts(parts.theta, batch), whole(whole.theta, batch), rtol=1e-12, atol=1e-16)
        assert torch.allclose(parts.answers[0].loss, whole.answers[0].loss, rtol=1e-14)


def test_batch_norms_statistics_move_in_real_passes_only() -> None:
    config = NetworkConfig(width=4, depth=1, norm="batch")
    ours = Oracle(build_network(config, 0))
    batch = iteration().incoming

    def statistics() -> torch.Tensor:
        return torch.cat([b.reshape(-1).float() for b in ours.network.buffers()])

    start = statistics()
    ours(ours.theta + 0.01, batch)
    ours.linear(ours.theta.clone(), batch)
    assert torch.equal(statistics(), start)
    ours(ours.theta, batch)
    assert not torch.equal(statistics(), start)
    assert [answer.virtual for answer in ours.answers] == [True, True, False]


def test_dropout_is_a_function_of_place_and_leaves_the_global_generator_alone() -> None:
    ours = Oracle(build_network(NetworkConfig(width=4, depth=1, dropout=0.5), 0))
    batch = iteration().incoming
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ours.at(0, 1, 2)
    first, second = ours(ours.theta, batch), ours(ours.theta, batch)
    assert torch.equal(torch.rand(3), expected)
    ours.at(0, 1, 2)
    assert torch.equal(ours(ours.theta, batch), first)
    assert not torch.equal(first, second)  # another pass, another draw
    ours.at(0, 1, 3)
    assert not torch.equal(ours(ours.theta, batch), first)


class Draws(torch.nn.Module):
    """A network that drops by a function, which no module of it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Conv2d(1, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.nn.functional.dropout(x, 0.5, self.training))
        return out


def test_draws_that_no_module_tells_of_are_a_function_of_place_too() -> None:
    ours, batch = Oracle(Draws()), iteration().incoming
    gradients = []
    for state in (1, 2):
        torch.manual_seed(state)
        ours.at(0, 1, 2)
        gradients.append(ours(ours.theta, batch))
    assert torch.equal(*gradients)


def test_micro_batches_do_not_share_their_draws() -> None:
    """Two equal rows have two gradients, in turns as together."""
    batch = iteration(size=1).incoming
    twice = Batch("twice", batch.rows * 2, batch.iteration)
    ours = Oracle(Draws(), micro_batch=1)
    ours(ours.theta, twice)
    alone = Oracle(ours.network)
    alone(alone.theta, batch)
    assert ours.answers[0].loss != alone.answers[0].loss


def test_half_precision_is_refused_on_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smg.gradients.oracle.has_bfloat16", lambda: False)
    with pytest.raises(SmgError, match=r"precision bfloat16 is for a GPU, or a CPU with .*on this CPU use float32"):
        Oracle(smooth_network(), precision="bfloat16")


@pytest.mark.skipif(not has_bfloat16(), reason="this CPU has no bfloat16")
@pytest.mark.parametrize("share", [False, True])
def test_half_precision_on_a_cpu_leaves_theta_and_gradients_whole(share: bool) -> None:
    whole, half = (
        Oracle(build_network(NetworkConfig(width=4, depth=1), 0), precision=precision, share=share)
        for precision in ("float32", "bfloat16")
    )
    batch = iteration().incoming
    ours, theirs = (one(one.theta - 0.001, batch) for one in (half, whole))
    assert ours.dtype == torch.float32
    assert 0 < (ours - theirs).norm() < 0.1 * theirs.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_half_precision_passes_leave_theta_and_gradients_whole() -> None:
    exact = Oracle(build_network(NetworkConfig(width=4, depth=1), 0).cuda())
    half = Oracle(build_network(NetworkConfig(width=4, depth=1), 0).cuda(), precision="bfloat16")
    batch = iteration().incoming
    g, h = exact(exact.theta, batch), half(half.theta, batch)
    assert h.dtype == half.theta.dtype == torch.float32
    assert not torch.equal(g, h)
    assert torch.nn.functional.cosine_similarity(g, h, dim=0) > 0.98


def test_the_hessian_product_is_the_gradients_derivative() -> None:
    ours, batch = oracle(), iteration().incoming
    gradient, hessian = ours.linear(ours.theta, batch)
    assert torch.allclose(gradient, ours(ours.theta, batch), rtol=1e-12, atol=1e-16)
    v = torch.randn(len(ours.theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = 1e-5
    central = (ours(ours.theta + step * v, batch) - ours(ours.theta - step * v, batch)) / (2 * step)
    assert torch.allclose(hessian(v), central, rtol=1e-6, atol=1e-9)
    w = torch.randn(len(ours.theta), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(w @ hessian(v), v @ hessian(w), rtol=1e-9)  # H is symmetric


# --- other losses -----------------------------------------------------------------------------------------------------


def energy(outputs: Outputs) -> torch.Tensor:
    return outputs.logits.square().sum(dim=(1, 2, 3))


def test_a_loss_of_the_methods_own_is_differentiated_as_autograd_does() -> None:
    ours, batch = oracle(), iteration().incoming
    network = smooth_network()
    network(batch.load().images.double()).square().sum(dim=(1, 2, 3)).mean().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
    assert torch.allclose(ours(ours.theta, batch, energy), expected, rtol=1e-12, atol=1e-15)
    assert torch.allclose(ours.linear(ours.theta, batch, energy)[0], expected, rtol=1e-12, atol=1e-15)
    assert [answer.batch for answer in ours.answers] == ["incoming (energy)"] * 2
    parts = Oracle(smooth_network(), micro_batch=1)
    assert torch.allclose(parts(parts.theta, batch, energy), expected, rtol=1e-12, atol=1e-15)


def test_several_are_the_same_as_one_after_another() -> None:
    ours, batches = oracle(), iteration()
    asked = [(ours.theta, batches.incoming), (ours.theta + 0.1, batches.replay), (ours.theta, batches.incoming, energy)]
    assert all(map(torch.equal, ours.several(asked), [ours(*one) for one in asked]))


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_another_theta_sees_the_same_rows_with_the_same_draws(norm: str) -> None:
    """So that at equal parameters the two outputs are equal, dropout and batch norm or not."""
    network = build_network(NetworkConfig(width=4, depth=1, dropout=0.5, norm=norm), 0)
    ours, batch = Oracle(network, micro_batch=2), iteration(augmentation=Augmentation.preset("strong")).incoming
    before = {name: b.clone() for name, b in network.named_buffers()}
    apart = []

    def difference(outputs: Outputs) -> torch.Tensor:
        apart.append([outputs.logits - outputs.at(theta) for theta in (ours.theta.clone(), ours.theta + 0.1)])
        assert not outputs.at(ours.theta).requires_grad
        return outputs.logits.square().mean(dim=(1, 2, 3))

    ours(ours.theta.clone(), batch, difference)
    assert len(apart) == 2
    assert all(not same.any() and other.any() for same, other in apart)
    assert all(torch.equal(b, before[name]) for name, b in network.named_buffers())


def test_a_loss_without_one_value_a_sample_is_refused() -> None:
    ours = oracle()

    def mean(outputs: Outputs) -> torch.Tensor:
        return outputs.logits.mean()

    with pytest.raises(
        SmgError, match=r"loss mean: gives a tensor of shape \[\] for 4 samples; give one value for each"
    ):
        ours(ours.theta, iteration().incoming, mean)
