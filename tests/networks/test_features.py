"""The bottleneck is found in any network, and its features are read without changing the network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from smg.errors import SmgError
from smg.networks import NetworkConfig, bottleneck_features, build_network, find_bottleneck
from smg.networks.features import bottleneck_moments, means_of, recorded_moments, undisturbed

IMAGES = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def _trained_a_little(norm: str) -> nn.Module:
    unet = build_network(NetworkConfig(width=4, depth=2, norm=norm, dropout=0.3), seed=4)
    for _ in range(3):
        unet(IMAGES)
    return unet


def test_unets_features_are_the_mean_of_its_lowest_map() -> None:
    unet = build_network(NetworkConfig(width=4, depth=2), seed=4)
    x = IMAGES
    for level in unet.encoder:  # type: ignore[union-attr]
        x = nn.functional.max_pool2d(level(x), 2)
    assert find_bottleneck(unet, IMAGES) == "bottleneck"
    features = bottleneck_features(unet, IMAGES)
    assert features.shape == (3, 16)
    torch.testing.assert_close(features, unet.bottleneck(x).mean(dim=(2, 3)))  # type: ignore[operator]
    torch.testing.assert_close(features[1:2], bottleneck_features(unet, IMAGES[1:2]))


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_reading_features_changes_nothing(norm: str) -> None:
    unet = _trained_a_little(norm)
    unet.head.eval()  # a part that the user has frozen must stay frozen
    before = {name: value.clone() for name, value in unet.state_dict().items()}
    modes = [module.training for module in unet.modules()]
    features = bottleneck_features(unet, IMAGES)
    assert not features.requires_grad
    assert torch.equal(features, bottleneck_features(unet, IMAGES))
    assert [module.training for module in unet.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in unet.state_dict().items())
    assert not any(module._forward_hooks for module in unet.modules())


@pytest.mark.parametrize(
    ("name", "arguments", "bottleneck", "width"),
    [
        ("BasicUNetPlusPlus", {"features": [4, 4, 4, 4, 8, 4]}, "network.conv_4_0", 8),
        ("BasicUNet", {"features": [4, 4, 4, 4, 8, 4]}, "network.down_4", 8),
        ("SegResNet", {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}, "network.down_layers.1", 16),
        ("AttentionUnet", {"channels": [4, 8, 16], "strides": [2, 2]}, "network.model.1.submodule.1.submodule", 16),
        ("FlexibleUNet", {"backbone": "resnet18", "decoder_channels": [8] * 5}, "network.encoder.layer4", 512),
        ("MedNeXtS", {}, "network.bottleneck", 512),
    ],
)
def test_bottleneck_of_monais_networks(name: str, arguments: dict[str, object], bottleneck: str, width: int) -> None:
    images = torch.cat([IMAGES, IMAGES], dim=3).repeat(1, 1, 2, 1)[:2]
    network = build_network(NetworkConfig(name=name, arguments=arguments))
    assert find_bottleneck(network, images) == bottleneck
    assert bottleneck_features(network, images).shape == (2, width)


class Squeezing(nn.Module):
    """Channel attention squeezes every map to one pixel, which is smaller than the bottleneck but is not it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 6, 3, stride=4, padding=1)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1))
        self.project = nn.Conv2d(6, 3, 1)
        self.up = nn.ConvTranspose2d(3, 2, 4, stride=4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.down(images)
        return self.up(self.project(x * self.squeeze(x)))


class Tokens(nn.Module):
    """A transformer, whose bottleneck is a row of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 10)
        self.block = nn.Sequential(nn.Linear(10, 40), nn.GELU(), nn.Linear(40, 10))
        self.head = nn.Linear(10, 128)

    def forward(self, images: Tensor) -> Tensor:
        patches = nn.functional.unfold(images, 8, stride=8).transpose(1, 2)
        answer = self.head(self.block(self.embed(patches))).transpose(1, 2)
        return nn.functional.fold(answer, images.shape[2:], 8, stride=8)


class Level(nn.Module):
    """A network of one resolution: its widest map before the output counts as the bottleneck."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 7, 1), nn.ReLU(), nn.Conv2d(7, 2, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


@pytest.mark.parametrize(("network", "name", "width"), [(Squeezing(), "down", 6), (Level(), "body.1", 7)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_bottleneck_of_own_networks(network: nn.Module, name: str, width: int, wrapped: bool) -> None:
    network, name = (build_network(network), f"network.{name}") if wrapped else (network, name)
    assert find_bottleneck(network, IMAGES) == name
    assert bottleneck_features(network, IMAGES).shape == (3, width)


def test_tokens_are_averaged() -> None:
    network = Tokens()
    features = bottleneck_features(network, IMAGES, "block")
    patches = nn.functional.unfold(IMAGES, 8, stride=8).transpose(1, 2)
    torch.testing.assert_close(features, network.block(network.embed(patches)).mean(dim=1))


def test_a_named_bottleneck_is_used() -> None:
    unet = build_network(NetworkConfig(width=4, depth=2, bottleneck="encoder.1"))
    assert bottleneck_features(unet, IMAGES).shape == (3, 8)
    config = NetworkConfig(name="BasicUNet", arguments={"features": [4, 4, 4, 4, 8, 4]}, bottleneck="down_2")
    assert find_bottleneck(build_network(config), IMAGES) == "network.down_2"


def test_a_module_that_cannot_be_a_bottleneck_is_one_line() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Conv2d(1, 1, 1)
            self.flat = nn.Flatten()

        def forward(self, images: Tensor) -> Tensor:
            self.flat(images)
            return torch.cat([images, -images], dim=1)

    with pytest.raises(SmgError, match=r"Bare: no bottleneck found; .*network.bottleneck"):
        find_bottleneck(Bare(), IMAGES)
    with pytest.raises(SmgError, match="has no module of that name"):
        bottleneck_features(Bare(), IMAGES, "nowhere")
    with pytest.raises(SmgError, match=r"idle: .*does not use"):
        bottleneck_features(Bare(), IMAGES, "idle")
    with pytest.raises(SmgError, match=r"returns \[3, 1024\]"):
        bottleneck_features(Bare(), IMAGES, "flat")


def test_moments_are_the_mean_and_the_deviation_over_space() -> None:
    unet = build_network(NetworkConfig(width=4, depth=2), seed=4)
    x = IMAGES
    for level in unet.encoder:  # type: ignore[union-attr]
        x = nn.functional.max_pool2d(level(x), 2)
    lowest = unet.bottleneck(x).flatten(2)  # type: ignore[operator]
    moments = bottleneck_moments(unet, IMAGES)
    torch.testing.assert_close(means_of(moments), lowest.mean(dim=2))
    torch.testing.assert_close(moments[:, 16:], (lowest - lowest.mean(dim=2, keepdim=True)).square().mean(dim=2).sqrt())
    patches = nn.functional.unfold(IMAGES, 8, stride=8).transpose(1, 2)
    tokens = Tokens()
    torch.testing.assert_close(
        bottleneck_moments(tokens, IMAGES, "block")[:, -1:],
        tokens.block(tokens.embed(patches)).std(dim=1, correction=0)[:, -1:],
    )


@pytest.mark.parametrize("network", [build_network(NetworkConfig(width=4, depth=2), seed=4), Tokens(), Level()])
def test_a_recorded_pass_has_the_same_output_and_moments(network: nn.Module) -> None:
    name = find_bottleneck(network, IMAGES)
    with undisturbed(network):
        plain = network(IMAGES)
        with recorded_moments(network, name) as recorded:
            answers = [network(IMAGES), network(IMAGES[:2])]
        network(IMAGES)  # not recorded: the hooks are removed
    assert torch.equal(answers[0], plain)
    assert [len(r) for r in recorded] == [3, 2]
    assert torch.equal(recorded[0], bottleneck_moments(network, IMAGES, name))
    assert torch.equal(recorded[1], bottleneck_moments(network, IMAGES[:2], name))


def test_recording_takes_the_first_use_before_in_place_operations() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.idle = nn.Conv2d(1, 1, 3, stride=2), nn.Conv2d(1, 1, 1)

        def forward(self, images: Tensor) -> Tensor:
            first = self.block(images)
            self.block(first.relu_())
            return torch.cat([images, -images], dim=1)

    network = Twice()
    with undisturbed(network), recorded_moments(network, "block") as recorded:
        network(IMAGES)
        network(IMAGES)
    assert len(recorded) == 2
    assert torch.equal(recorded[0], bottleneck_moments(network, IMAGES, "block"))
    with pytest.raises(SmgError, match=r"idle: .*does not use"), recorded_moments(network, "idle"):
        network(IMAGES)
