"""The U-Net equals MONAI's blocks composed, takes any size, and has the derivatives that methods need."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from smg.errors import SmgError
from smg.networks import NetworkConfig, UNet, build_network, segmentation_loss


class OfMonaiBlocks(nn.Module):
    """The same network from MONAI's blocks: the oracle. Its parameters are in another order, level by level."""

    def __init__(self, width: int, depth: int, norm: str) -> None:
        from monai.networks.nets.basic_unet import Down, TwoConv, UpCat

        super().__init__()
        filters = [width * 2**level for level in range(depth + 1)]
        options = {"act": "relu", "norm": (norm, {"affine": True}), "bias": False}
        self.stem = TwoConv(2, 1, width, **options)
        self.downs = nn.ModuleList(Down(2, a, b, **options) for a, b in pairwise(filters))
        self.ups = nn.ModuleList(UpCat(2, a, b, b, **options) for a, b in pairwise(filters[::-1]))
        self.head = nn.Conv2d(width, 2, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.stem(x)]
        for down in self.downs:
            maps.append(down(maps[-1]))
        x = maps.pop()
        for up in self.ups:
            x = up(x, maps.pop())
        return self.head(x)

    def take_weights_of(self, unet: UNet) -> None:
        levels = [*unet.encoder, unet.bottleneck]
        levels += [module for pair in zip(unet.upward, unet.decoder, strict=True) for module in pair]
        theirs = [p for module in [*levels, unet.head] for p in module.parameters()]
        for mine, other in zip(self.parameters(), theirs, strict=True):
            mine.data.copy_(other.data)


@pytest.mark.parametrize(("depth", "norm", "size"), [(1, "instance", 8), (2, "batch", 21), (4, "instance", 45)])
def test_unet_is_monais_blocks_composed(depth: int, norm: str, size: int) -> None:
    unet = build_network(NetworkConfig(width=4, depth=depth, norm=norm), seed=1).double()
    assert isinstance(unet, UNet)
    oracle = OfMonaiBlocks(4, depth, norm).double()
    oracle.take_weights_of(unet)
    images = torch.randn(2, 1, size, max(size - 3, 2 ** (depth + 1)), dtype=torch.float64)
    torch.testing.assert_close(unet(images), oracle(images), rtol=1e-10, atol=1e-10)


def test_the_papers_filters_and_no_idle_parameter() -> None:
    unet = UNet()
    assert [level[0].out_channels for level in [*unet.encoder, unet.bottleneck]] == [32, 64, 128, 256, 512]
    small = build_network(NetworkConfig(channels=2, classes=3, width=4, depth=2, norm="batch", dropout=0.2))
    small(torch.randn(2, 2, 16, 16)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in small.parameters())
    assert len({p.data_ptr() for p in small.parameters()}) == len(list(small.parameters()))


@pytest.mark.parametrize("size", [(8, 8), (9, 31), (17, 16)])
def test_any_size_in_same_size_out(size: tuple[int, int]) -> None:
    unet = build_network(NetworkConfig(classes=4, width=2, depth=2))
    assert unet(torch.randn(3, 1, *size)).shape == (3, 4, *size)


def test_slices_too_small_are_refused_in_one_line() -> None:
    with pytest.raises(SmgError, match=r"16x40 are too small .* 32 pixels"):
        build_network(NetworkConfig(width=2))(torch.randn(1, 1, 16, 40))


def test_dropout_only_in_training_and_repeatable_from_the_seed() -> None:
    unet = build_network(NetworkConfig(width=4, depth=1, dropout=0.5))
    images = torch.randn(2, 1, 8, 8)

    def seeded(seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return unet(images)

    assert torch.equal(seeded(1), seeded(1))
    assert not torch.equal(seeded(1), seeded(2))
    unet.eval()
    assert torch.equal(seeded(1), seeded(2))


def _gradient(unet: nn.Module, images: Tensor, labels: Tensor, graph: bool = False) -> Tensor:
    loss = segmentation_loss(unet(images), labels).mean()
    grads = torch.autograd.grad(loss, list(unet.parameters()), create_graph=graph)
    return torch.cat([g.flatten() for g in grads])


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_gradients_of_disjoint_batches_add(classes: int) -> None:
    unet = build_network(NetworkConfig(classes=classes, width=4, depth=2), seed=2).double()
    images = torch.randn(5, 1, 16, 16, dtype=torch.float64)
    labels = torch.randint(0, max(classes, 2), (5, 16, 16))
    apart = (2 * _gradient(unet, images[:2], labels[:2]) + 3 * _gradient(unet, images[2:], labels[2:])) / 5
    torch.testing.assert_close(_gradient(unet, images, labels), apart, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_double_backward_is_the_derivative_of_the_gradient(norm: str) -> None:
    unet = build_network(NetworkConfig(width=2, depth=1, norm=norm), seed=3).double()
    images, labels = torch.randn(3, 1, 9, 8, dtype=torch.float64), torch.randint(0, 2, (3, 9, 8))
    gradient = _gradient(unet, images, labels, graph=True)
    direction = torch.randn_like(gradient)
    direction /= direction.norm()
    hessian = torch.autograd.grad(gradient @ direction, list(unet.parameters()))
    product = torch.cat([h.flatten() for h in hessian])

    def moved(step: float) -> Tensor:
        flat = nn.utils.parameters_to_vector(unet.parameters()).detach()
        nn.utils.vector_to_parameters(flat + step * direction, unet.parameters())
        g = _gradient(unet, images, labels)
        nn.utils.vector_to_parameters(flat, unet.parameters())
        return g

    step = 1e-6  # small enough that no ReLU changes sign
    torch.testing.assert_close(product, (moved(step) - moved(-step)) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("size", [(32, 48), (38, 35)])
def test_prediction_pools_to_the_same_bits_as_training(size: tuple[int, int], flat: bool) -> None:
    network, images = UNet(width=4, depth=2), torch.randn(2, 1, *size, generator=torch.Generator().manual_seed(0))
    if flat:
        images[..., : size[1] // 2] = 0.5  # all pixels of a pool are equal
    network.eval()
    with torch.no_grad():
        predicted = network(images)
        traced = torch.jit.trace(network, images)
    assert torch.equal(predicted, network(images))
    assert "max_pool2d" in str(traced.inlined_graph)  # what is exported keeps the pooling
