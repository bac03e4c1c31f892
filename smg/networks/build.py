"""A network from its name: the paper's U-Net, any 2-D network of MONAI, or the user's own module."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from smg.errors import SmgError
from smg.networks.config import NetworkConfig
from smg.networks.features import bottleneck_features, find_bottleneck, undisturbed
from smg.networks.unet import UNet
from smg.randomness import torch_generator


def build_network(network: NetworkConfig | nn.Module, seed: int = 0) -> nn.Module:
    """The network with fresh weights, a function of the seed alone; a module is taken as it is, weights and all."""
    if isinstance(network, nn.Module):
        return network if isinstance(network, UNet | MainOutput) else MainOutput(network)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reseed the GPUs, and they are not restored here.
        torch.default_generator.manual_seed(torch_generator("network", seed).initial_seed())
        return _construct(network)


def check_network(network: nn.Module, images: Tensor) -> str:
    """One pass over images like those to come, so that a misfit shows before training; the bottleneck's name."""
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
        raise SmgError(f"network {type(inner).__name__} fails on slices of {size}: {_first_line(error)}") from error
    return name


class MainOutput(nn.Module):
    """Any network, answering with one tensor of logits even where it was made for deep supervision."""

    def __init__(self, network: nn.Module, classes: int | None = None, bottleneck: str | None = None) -> None:
        super().__init__()
        self.network = network
        self.classes = classes
        self.named_bottleneck = bottleneck and f"network.{bottleneck}"

    def forward(self, images: Tensor) -> Tensor:
        name = type(self.network).__name__
        logits = _main(self.network(images), images)
        if logits is None:
            size = ", ".join(map(str, images.shape[-2:]))
            raise SmgError(f"network {name} does not answer with logits [batch, classes, {size}]")
        if self.classes not in (None, logits.shape[1]):
            raise SmgError(
                f"network {name} answers with {logits.shape[1]} channels where {self.classes} classes are wanted"
            )
        return logits


def _main(output: Any, images: Tensor) -> Tensor | None:
    """The finest of a network's outputs: one of the image's size, and of several such the last and so the deepest."""
    if isinstance(output, Mapping):  # torchvision's habit
        output = output.get("out")
    if isinstance(output, Tensor) and output.ndim == 5:  # MONAI's DynUNet stacks its heads, the main one first
        output = output[:, 0]
    outputs = output if isinstance(output, Sequence) else [output]
    whole = [o for o in outputs if isinstance(o, Tensor) and o.ndim == 4 and o.shape[2:] == images.shape[2:]]
    return whole[-1] if whole else None


def _construct(config: NetworkConfig) -> nn.Module:
    if config.name == "unet":
        unet = UNet(config.channels, config.classes, config.width, config.depth, config.norm, config.dropout)
        unet.named_bottleneck = config.bottleneck or unet.named_bottleneck
        return unet
    factory = _own(config.name) if ":" in config.name else _monai(config.name)
    given = {"spatial_dims": 2, "in_channels": config.channels, "out_channels": config.classes}
    taken = _parameters(factory)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    unknown = [name for name in config.arguments if name not in taken]
    if unknown and not takes_any:
        raise SmgError(f"network {config.name} takes no argument {unknown[0]!r}{_meant(unknown[0], taken)}")
    arguments = {name: value for name, value in given.items() if name in taken or takes_any} | config.arguments
    try:
        network = factory(**arguments)
    except Exception as error:  # Whatever a constructor raises here, it is about arguments the user wrote.
        raise SmgError(f"network {config.name} cannot be built: {_first_line(error)}") from error
    if not isinstance(network, nn.Module):
        raise SmgError(f"network {config.name} made a {type(network).__name__}, not a torch.nn.Module")
    return MainOutput(network, config.classes, config.bottleneck)


def _monai(name: str) -> Callable[..., Any]:
    from monai.networks import nets  # Here, for it takes 2.7 s.

    known = {key: value for key, value in vars(nets).items() if callable(value) and not key.startswith("_")}
    if name not in known:
        meant = _meant(name, [*known, "unet"])
        raise SmgError(f"no network is called {name!r}: neither unet nor a class of MONAI{meant}")
    return known[name]


def _own(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:  # a model from elsewhere must not run what it likes
        raise SmgError(f"network {path}: Python's own library has no networks")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SmgError(f"network {path} cannot be imported: {error}") from error
    if not callable(factory):
        raise SmgError(f"network {path} is a {type(factory).__name__}, not a class or function that makes one")
    return factory


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # Some that are written in C do not tell.
        return {}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _meant(word: str, known: Any) -> str:
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=3)
    return f"; did you mean {' or '.join(by_lower[name] for name in close)}?" if close else ""
