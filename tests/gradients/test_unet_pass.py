"""The written-out pass of the U-Net: equal to autograd's to the bit, by groups of rows, and used only where it fits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from smg.gradients.flat import flatten, pieces, trainable
from smg.gradients.oracle import Oracle
from smg.gradients.passes import Pass
from smg.gradients.unet_pass import UNetPass, can_write_out
from smg.networks import NetworkConfig, build_network
from smg.networks.loss import Outputs, segmentation_loss
from smg.networks.unet import UNet
from smg.prepare.slices import Samples
from tests.toys import iteration


def unet(width: int = 8, depth: int = 2, **more: object) -> UNet:
    network = build_network(NetworkConfig(width=width, depth=depth, **more), 0)  # type: ignore[arg-type]
    assert isinstance(network, UNet)
    return network


def rows(count: int, side: int, flat: bool = False) -> tuple[Tensor, Tensor]:
    """Images and labels; flat ones have a constant half, in which all pixels of a pool are equal."""
    torch.manual_seed(count + side)
    images = torch.randn(count, 1, side, side)
    if flat:
        images[..., : side // 2] = 0.5
    return images, (torch.rand(count, side, side) > 0.5).to(torch.uint8)


def by_autograd(network: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = network(images)
    parts = torch.autograd.grad(segmentation_loss(logits, labels).sum(), list(network.parameters()))
    return logits.detach(), torch.cat([part.reshape(-1) for part in parts])


def written(
    network: UNet, images: Tensor, labels: Tensor, groups: list[int], **more: bool
) -> tuple[Tensor, list[Tensor]]:
    by, weights = UNetPass(network, **more), trainable(network)
    logits, tape = by.forward(weights, images)
    (at_logits,) = torch.autograd.grad(segmentation_loss(logits.requires_grad_(), labels).sum(), logits)
    return logits.detach(), by.backward(weights, tape, at_logits, groups)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("width", "count", "side"), [(8, 5, 48), (8, 1, 32), (4, 3, 40), (16, 2, 64)])
def test_logits_and_gradients_are_autograds_to_the_bit(width: int, count: int, side: int, flat: bool) -> None:
    network, (images, labels) = unet(width), rows(count, side, flat)
    logits, gradient = by_autograd(network, images, labels)
    ours, (found,) = written(network, images, labels, [count])
    assert torch.equal(ours, logits)
    assert torch.equal(found, gradient)


@pytest.mark.parametrize("is_exact", [False, True])
def test_each_group_of_rows_has_its_own_gradient(is_exact: bool) -> None:
    network, (images, labels) = unet(4).double(), rows(6, 32)
    images, groups = images.double(), [1, 3, 2]
    _, found = written(network, images, labels, groups, is_exact=is_exact)
    for start, count, ours in zip((0, 1, 4), groups, found, strict=True):
        _, gradient = by_autograd(network, images[start : start + count], labels[start : start + count])
        torch.testing.assert_close(ours, gradient, rtol=1e-12, atol=1e-12)


def mean_logit(outputs: Outputs) -> Tensor:
    return outputs.logits.mean((1, 2, 3))


def test_a_loss_after_another_uses_the_same_forward_pass() -> None:
    ours, batch = Oracle(unet().double(), share=True), iteration().incoming
    samples = batch.load()
    taken = ours._pass(
        ours._leaves(ours.theta), samples, 0, False, [None, lambda outputs: outputs.logits.mean((1, 2, 3))]
    )
    first, second = taken.gradients(taken.losses[0].sum(), [len(samples)], again=True)[0], taken.losses[1].sum()
    again = taken.gradients(second, [len(samples)])[0]
    plain = Oracle(unet().double())
    expected = plain(plain.theta, batch), plain(plain.theta, batch, mean_logit)
    for mine, theirs in zip((first, again), expected, strict=True):
        torch.testing.assert_close(mine / len(samples), theirs, rtol=1e-12, atol=1e-12)


def test_at_shifted_parameters_the_network_stays_as_it_is() -> None:
    network = unet().double()
    ours = Oracle(network)
    before, elsewhere = ours.theta.clone(), ours.theta + 0.05
    found = ours(elsewhere, iteration().incoming)
    assert torch.equal(ours.theta, before)
    other = unet().double()
    flatten(other).add_(0.05)
    samples = iteration().incoming.load()
    _, gradient = by_autograd(other, samples.images.double(), samples.labels)
    torch.testing.assert_close(found, gradient / len(samples), rtol=1e-12, atol=1e-14)
    assert set(pieces(trainable(network), found)) == set(dict(network.named_parameters()))


class Own(UNet):
    """A network of a user's own that adds something to ours."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    network = unet()
    network.head.register_forward_hook(lambda module, given, made: 2 * made)
    return network


def frozen() -> nn.Module:
    network = unet()
    network.head.requires_grad_(False)
    return network


@pytest.mark.parametrize(
    "network",
    [lambda: unet(norm="batch"), lambda: unet(dropout=0.1), lambda: Own(depth=1), hooked, frozen],
    ids=["batch norm", "dropout", "own", "hook", "frozen"],
)
def test_other_networks_are_left_to_autograd(network) -> None:
    assert not can_write_out(network())


def test_images_with_odd_sides_are_left_to_autograd() -> None:
    ours = Oracle(unet(depth=2))
    assert can_write_out(ours.network)
    images, labels = rows(2, 34)  # 34, 17: the second pool drops a row
    taken = ours._pass(ours._leaves(ours.theta), Samples(images, labels), 0, False, [None])
    assert type(taken) is Pass
    with pytest.raises(ValueError, match="together"):
        taken.gradients(taken.losses[0].sum(), [1, 1])
