"""PlainConvUNet: names and shapes as in nnU-Net's files, outputs as those of MONAI's DynUNet with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smg.errors import SmgError
from smg.networks import MainOutput, NetworkConfig, build_network, check_network
from smg.networks.plainconv import PlainConvUNet

STRIDES = [[1, 1], [2, 2], [2, 1]]
KERNELS = [[3, 3]] * 3  # MONAI gives the decoder other kernels than nnU-Net where they differ between stages
FEATURES = [4, 6, 8]


def test_it_equals_monais_dynunet_with_the_same_weights() -> None:
    from monai.networks.nets import DynUNet

    own = PlainConvUNet(2, 3, FEATURES, KERNELS, STRIDES, conv_bias=False).double()
    theirs = DynUNet(
        2, 2, 3, kernel_size=KERNELS, strides=STRIDES, upsample_kernel_size=STRIDES[1:], filters=FEATURES,
        norm_name=("INSTANCE", {"affine": True}),
    ).double()  # fmt: skip
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    ours = [own.encoder.stages[n][0] for n in range(3)]
    blocks = [theirs.input_block, theirs.downsamples[0], theirs.bottleneck]
    for place, level in enumerate(theirs.upsamples):
        level.transp_conv.conv.weight.data = own.decoder.transpconvs[place].weight.data
        ours, blocks = [*ours, own.decoder.stages[place]], [*blocks, level.conv_block]
    for mine, other in zip(ours, blocks, strict=True):
        for one, conv, norm in zip(mine.convs, (other.conv1, other.conv2), (other.norm1, other.norm2), strict=True):
            conv.conv.weight.data = one.conv.weight.data
            norm.weight.data, norm.bias.data = one.norm.weight.data, one.norm.bias.data
    theirs.output_block.conv.conv.weight.data = own.decoder.seg_layers[-1].weight.data
    theirs.output_block.conv.conv.bias.data = own.decoder.seg_layers[-1].bias.data
    images = torch.randn(2, 2, 16, 12, dtype=torch.float64)
    torch.testing.assert_close(own(images), theirs.eval()(images), rtol=1e-9, atol=1e-9)


def test_parameters_have_the_names_of_nnunets_files() -> None:
    network = PlainConvUNet(1, 2, [4, 8], strides=[1, 2], n_conv_per_stage=[1, 2], n_conv_per_stage_decoder=1)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    layers = {
        "encoder.stages.0.0.convs.0": (4, 1, 3, 3),
        "encoder.stages.1.0.convs.0": (8, 4, 3, 3),
        "encoder.stages.1.0.convs.1": (8, 8, 3, 3),
        "decoder.stages.0.convs.0": (4, 8, 3, 3),
    }
    wanted: dict[str, tuple[int, ...]] = {}
    for name, shape in layers.items():
        wanted |= {f"{name}.conv.weight": shape, f"{name}.conv.bias": shape[:1]}
        wanted |= {f"{name}.norm.weight": shape[:1], f"{name}.norm.bias": shape[:1]}
    wanted |= {"decoder.transpconvs.0.weight": (8, 4, 2, 2), "decoder.transpconvs.0.bias": (4,)}
    wanted |= {"decoder.seg_layers.0.weight": (2, 4, 1, 1), "decoder.seg_layers.0.bias": (2,)}
    assert shapes == wanted


def test_it_is_built_by_name_with_its_deepest_stage_as_the_bottleneck() -> None:
    config = NetworkConfig(name="PlainConvUNet", arguments={"features_per_stage": FEATURES, "strides": STRIDES})
    network = build_network(config, seed=3)
    assert isinstance(network, MainOutput)
    assert isinstance(network.network, PlainConvUNet)
    assert check_network(network, torch.randn(1, 1, 16, 16)) == "network.encoder.stages.2"
    same = build_network(config, seed=3).state_dict()
    assert all(torch.equal(tensor, same[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"features_per_stage": [4]}, "at least two stages"),
        ({"features_per_stage": FEATURES, "strides": [1, 2]}, "strides has 2 entries for 3 stages"),
        ({"features_per_stage": FEATURES, "kernel_sizes": 2}, "even kernel"),
        ({"features_per_stage": FEATURES, "kernel_sizes": [[3, 3, 3]] * 3}, "rows and columns"),
        ({"features_per_stage": FEATURES, "filters": 3}, "no argument 'filters'"),
    ],
)
def test_arguments_that_make_no_network_are_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(SmgError, match=reason):
        build_network(NetworkConfig(name="PlainConvUNet", arguments=arguments))


def test_slices_that_the_strides_do_not_divide_are_refused() -> None:
    network = PlainConvUNet(1, 2, FEATURES, strides=STRIDES)
    with pytest.raises(SmgError, match="a multiple of 4 rows and of 2 columns"):
        network(torch.zeros(1, 1, 18, 16))
