"""Networks by name, the features of their bottleneck, and the loss.

The configuration is cheap to import. Whatever needs torch is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smg.networks.network_config import NetworkConfig

if TYPE_CHECKING:
    from smg.networks.build import MainOutput, build_network, check_network
    from smg.networks.features import bottleneck_features, find_bottleneck
    from smg.networks.loss import segmentation_loss
    from smg.networks.unet import UNet

__all__ = [
    "MainOutput",
    "NetworkConfig",
    "UNet",
    "bottleneck_features",
    "build_network",
    "check_network",
    "find_bottleneck",
    "segmentation_loss",
]

_HOME = {
    "MainOutput": "build",
    "UNet": "unet",
    "bottleneck_features": "features",
    "build_network": "build",
    "check_network": "build",
    "find_bottleneck": "features",
    "segmentation_loss": "loss",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
