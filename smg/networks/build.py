"""Build a network from its name: the paper's U-Net, nnU-Net's, a listed network of MONAI, or the user's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from smg import trust
from smg.errors import SmgError
from smg.networks.features import bottleneck_features, find_bottleneck, undisturbed
from smg.networks.network_config import NetworkConfig
from smg.networks.plainconv import PlainConvUNet
from smg.networks.unet import UNet
from smg.randomness import torch_generator

LISTED: dict[str, Callable[..., nn.Module]] = {"PlainConvUNet": PlainConvUNet}  # built-in networks besides `unet`
# Networks of MONAI that map slices to logits, and neither read a file nor download one when they are made.
MONAI_NETWORKS = (
    "AttentionUnet", "BasicUNet", "BasicUNetPlusPlus", "DynUNet", "FlexibleUNet", "HighResNet", "MedNeXt",
    "MedNeXtS", "MedNeXtM", "MedNeXtB", "MedNeXtL", "SegResNet", "SegResNetDS", "SegResNetDS2", "SwinUNETR", "UNETR",
    "UNet", "VNet",
)  # fmt: skip
DOWNLOADS = "pretrained"  # the argument by which FlexibleUNet fetches weights


def build_network(network: NetworkConfig | nn.Module, seed: int = 0) -> nn.Module:
    """Return the network with weights that depend on the seed alone; a module is used as it is, with its weights."""
    if isinstance(network, nn.Module):
        return network if isinstance(network, UNet | MainOutput) else MainOutput(network)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also reseed the GPUs, which are not restored here.
        torch.default_generator.manual_seed(torch_generator("network", seed).initial_seed())
        return _construct(network)


def check_network(network: nn.Module, images: Tensor) -> str:
    """Run one pass over images like those of training, so that errors show early; return the bottleneck's name."""
    try:
        name = find_bottleneck(network, images)
        bottleneck_features(network, images, name)
        with undisturbed(network):
            network(images)
    except SmgError:
        raise
    except Exception as error:
        size = "x".join(map(str, images.shape[-2:]))
        inner = network.network if isinstance(network, MainOutput) else network
        raise SmgError(
            f"network {type(inner).__name__} fails on slices of {size}: {_first_line(error)}; "
            "change preparation.size, or the network's arguments"
        ) from error
    return name


class MainOutput(nn.Module):
    """Wrap a network so that it returns one tensor of logits, also where it has several outputs (deep supervision)."""

    def __init__(self, network: nn.Module, classes: int | None = None, bottleneck: str | None = None) -> None:
        super().__init__()
        self.network = network
        self.classes = classes
        named = bottleneck or getattr(network, "named_bottleneck", None)
        self.named_bottleneck = named and f"network.{named}"

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the network's finest output."""
        name = type(self.network).__name__
        logits = _main(self.network(images), images)
        if logits is None:
            size = ", ".join(map(str, images.shape[-2:]))
            raise SmgError(f"network {name} returns no logits [batch, classes, {size}]; return them, or use another")
        if self.classes not in (None, logits.shape[1]):
            raise SmgError(
                f"network {name} returns {logits.shape[1]} channels for {self.classes} classes; "
                "set its number of output channels"
            )
        return logits


def _main(output: Any, images: Tensor) -> Tensor | None:
    """Return the output that has the images' size, the last of several; None if there is none."""
    if isinstance(output, Mapping):  # as torchvision's networks return
        output = output.get("out")
    if isinstance(output, Tensor) and output.ndim == 5:  # MONAI's DynUNet stacks its heads, the main one first
        output = output[:, 0]
    outputs = output if isinstance(output, Sequence) else [output]
    whole = [o for o in outputs if isinstance(o, Tensor) and o.ndim == 4 and o.shape[2:] == images.shape[2:]]
    return whole[-1] if whole else None


def _construct(config: NetworkConfig) -> nn.Module:
    """Return the configured network, with weights from torch's global generator."""
    if config.name == "unet":
        unet = UNet(config.channels, config.classes, config.width, config.depth, config.norm, config.dropout)
        unet.named_bottleneck = config.bottleneck or unet.named_bottleneck
        return unet
    factory, arguments = _factory(config.name), arguments_of(config)
    try:
        network = factory(**arguments)
    except Exception as error:  # whatever a constructor raises here concerns arguments that the user wrote
        raise SmgError(
            f"network {config.name} cannot be built: {_first_line(error)}; change network.arguments"
        ) from error
    if not isinstance(network, nn.Module):
        raise SmgError(f"network {config.name}: returned a {type(network).__name__}; return a torch.nn.Module")
    return MainOutput(network, config.classes, config.bottleneck)


def arguments_of(config: NetworkConfig) -> dict[str, Any]:
    """Return the arguments for the constructor of a network that is not built in."""
    given = {"spatial_dims": 2, "in_channels": config.channels, "out_channels": config.classes}
    taken = _parameters(_factory(config.name))
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    if ":" not in config.name and config.arguments.get(DOWNLOADS):
        raise SmgError(
            f"network {config.name}: {DOWNLOADS} would download weights; give a file: `smg learn --from WEIGHTS`"
        )
    unknown = [name for name in config.arguments if name not in taken]
    if unknown and not takes_any:
        raise SmgError(f"network {config.name}: no argument {unknown[0]!r}{_meant(unknown[0], taken)}")
    return {name: value for name, value in given.items() if name in taken or takes_any} | config.arguments


def _factory(name: str) -> Callable[..., Any]:
    if name in LISTED:
        return LISTED[name]
    return _own(name) if ":" in name else _monai(name)


def _monai(name: str) -> Callable[..., Any]:
    """Return the class of that name in monai.networks.nets."""
    try:
        from monai.networks import nets  # imported here, since it takes 2.7 s
    except ModuleNotFoundError as error:
        if error.name != "monai":
            raise
        raise SmgError(
            f"network {name}: it is not unet, and MONAI is not installed; "
            "`pip install 'smg-learning[monai]'` adds MONAI's networks"
        ) from None

    listed = [getattr(nets, one) for one in MONAI_NETWORKS if hasattr(nets, one)]
    factory: Callable[..., Any] | None = getattr(nets, name, None)
    if factory is None:
        meant = _meant(name, [*MONAI_NETWORKS, "unet", *LISTED])
        raise SmgError(f"no network {name!r}: it is neither unet nor a class of MONAI{meant}")
    if factory not in listed:  # several have more than one name
        raise SmgError(
            f"network {name}: not one of MONAI's for segmentation of slices ({', '.join(MONAI_NETWORKS)}); if you "
            f"trust it, name it as code of your own: monai.networks.nets:{name}"
        )
    return factory


def _own(path: str) -> Callable[..., Any]:
    """Return the factory that `package.module:factory` names."""
    module, _, attribute = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:  # a model from another hospital must not run os.system
        raise SmgError(f"network {path}: Python's standard library has no networks; name a module of your own")
    trust.require("network", path)
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SmgError(f"network {path} cannot be imported: {error}; install it, or correct the name") from error
    if not callable(factory):
        raise SmgError(f"network {path}: is a {type(factory).__name__}; name a class or function that makes a network")
    return factory


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a factory's parameters by name; none where it does not list them."""
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # some callables written in C have no signature
        return {}


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _meant(word: str, known: Any) -> str:
    """Return `; did you mean ...?` with the known names closest to a word, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=3)
    return f"; did you mean {' or '.join(by_lower[name] for name in close)}?" if close else ""
