"""Networks are built by name, with repeatable weights; a wrong name is one clear line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from smg import trust
from smg.errors import SmgError
from smg.networks import MainOutput, NetworkConfig, build_network, check_network

SMALL = {
    "UNet": {"channels": [4, 8], "strides": [2]},
    "AttentionUnet": {"channels": [4, 8], "strides": [2]},
    "SegResNet": {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]},
    "BasicUNetPlusPlus": {"features": [4, 4, 4, 4, 4, 4], "deep_supervision": True},
    "DynUNet": {
        "kernel_size": [3] * 3,
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 8],
        "deep_supervision": True,
    },
}


def own_network(in_channels: int, out_channels: int, hidden: int = 3) -> nn.Module:
    """Return a network, as a user's `module:factory` would."""
    return nn.Sequential(nn.Conv2d(in_channels, hidden, 3, padding=1), nn.Conv2d(hidden, out_channels, 1))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("training", [True, False])
def test_monai_networks_by_class_name(name: str, training: bool) -> None:
    network = build_network(NetworkConfig(name=name, channels=2, classes=3, arguments=SMALL[name])).train(training)
    assert network(torch.randn(2, 2, 32, 32)).shape == (2, 3, 32, 32)


def test_main_output_of_deep_supervision_is_the_deepest_of_full_size() -> None:
    class Several(nn.Module):
        def __init__(self, outputs: Any) -> None:
            super().__init__()
            self.outputs = outputs

        def forward(self, images: Tensor) -> Any:
            return self.outputs

    image, half = torch.zeros(1, 1, 8, 8), torch.zeros(1, 2, 4, 4)
    shallow, deep = torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8)
    for outputs in ([shallow, deep], (deep, half), [deep, torch.tensor(0.5)], {"out": deep, "aux": shallow}, deep):
        assert build_network(Several(outputs))(image) is deep
    assert torch.equal(build_network(Several(torch.stack([deep + 1, shallow], dim=1)))(image), deep + 1)
    for outputs in (half, [half], None, {"aux": deep}):
        with pytest.raises(SmgError, match="no logits"):
            build_network(Several(outputs))(image)
    with pytest.raises(SmgError, match="2 channels for 3 classes"):
        MainOutput(Several(deep), classes=3)(image)


def test_own_module_and_own_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = own_network(1, 2)
    wrapped = build_network(module)
    assert isinstance(wrapped, MainOutput)
    assert wrapped.network is module
    assert build_network(wrapped) is wrapped
    monkeypatch.setitem(sys.modules, "my_networks", sys.modules[__name__])
    config = NetworkConfig(name="my_networks:own_network", channels=2, arguments={"hidden": 5})
    trust.allow(config.name)
    network = build_network(config)
    assert network(torch.randn(1, 2, 8, 8)).shape == (1, 2, 8, 8)
    assert network.get_submodule("network.0").out_channels == 5


@pytest.mark.parametrize("name", ["unet", "SegResNet"])
def test_weights_are_a_function_of_the_seed_and_disturb_nothing(name: str) -> None:
    config = NetworkConfig(width=4, depth=1) if name == "unet" else NetworkConfig(name=name, arguments=SMALL[name])

    def weights(seed: int) -> Tensor:
        return nn.utils.parameters_to_vector(build_network(config, seed).parameters())

    state = torch.get_rng_state()
    first = weights(5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(weights(5), first)
    assert not torch.equal(weights(6), first)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("SegResNt", {}, "no network 'SegResNt'.*did you mean SegResNet or"),
        ("unett", {}, "did you mean unet"),
        ("qqqqqq", {}, "neither unet nor a class of MONAI$"),
        ("SegResNet", {"init_filter": 8}, "no argument 'init_filter'; did you mean init_filters"),
        ("AttentionUnet", {}, "AttentionUnet cannot be built: .*missing.*'channels' and 'strides'"),
        ("SegResNet", {"norm": "nonsense"}, "SegResNet cannot be built"),
        ("no_such_package:factory", {}, "cannot be imported: No module named 'no_such_package'"),
        ("torch:nothing", {}, "cannot be imported: module 'torch' has no attribute 'nothing'"),
        ("numpy:pi", {}, "numpy:pi: is a float"),
        ("torch:Size", {}, "Size.*torch.nn.Module"),
        ("os:system", {"command": "true"}, "os:system: .*standard library"),
    ],
)
def test_mistakes_are_one_clear_line(name: str, arguments: dict[str, Any], message: str) -> None:
    trust.allow_everything()
    with pytest.raises(SmgError, match=message) as caught:
        build_network(NetworkConfig(name=name, arguments=arguments))
    assert "\n" not in str(caught.value)


def test_check_shows_a_misfit_before_training() -> None:
    config = NetworkConfig(name="UNet", arguments={"channels": [4, 4, 8], "strides": [2, 2]})
    assert check_network(build_network(config), torch.zeros(2, 1, 16, 16)).startswith("network.model")
    with pytest.raises(SmgError, match="UNet fails on slices of 16x14: Sizes of tensors"):
        check_network(build_network(config), torch.zeros(2, 1, 16, 14))
    with pytest.raises(SmgError, match=r"UNet .*no logits"):
        check_network(build_network(config), torch.zeros(2, 1, 16, 15))
    with pytest.raises(SmgError, match="has no module of that name"):
        check_network(build_network(NetworkConfig(width=2, depth=1, bottleneck="nowhere")), torch.zeros(1, 1, 8, 8))


def test_no_option_is_silently_ignored() -> None:
    with pytest.raises(ValidationError, match=r"width, norm: .*unet"):
        NetworkConfig(name="SegResNet", width=8, norm="batch")
    with pytest.raises(ValidationError, match=r"arguments \['act'\]"):
        NetworkConfig(arguments={"act": "relu"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        NetworkConfig(widht=8)  # type: ignore[call-arg]
    echoed = NetworkConfig(name="SegResNet", arguments={"init_filters": 8})
    assert NetworkConfig.model_validate_json(echoed.model_dump_json()) == echoed


def test_without_monai_one_line_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'monai': raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing)\n"
        "from smg.networks import NetworkConfig, build_network\n"
        "build_network(NetworkConfig(width=2, depth=1))\n"
        "try: build_network(NetworkConfig(name='SegResNet'))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    line = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert line.startswith("SmgError network SegResNet: ")
    assert "pip install 'smg-learning[monai]'" in line
    assert line.count("\n") == 1


def test_configuration_imports_no_torch_and_the_unet_no_monai() -> None:
    program = (
        "import sys, smg.networks as n; config = n.NetworkConfig(width=2, depth=1); assert 'torch' not in sys.modules;"
        "n.build_network(config); assert 'monai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
