"""The configuration of a network, validated before torch is imported."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_UNET_ONLY = ("width", "depth", "norm", "dropout")


class NetworkConfig(BaseModel):
    """A network by name. `unet` has its own options; every other network takes `arguments`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "unet",
        description="`unet` (the paper's), `PlainConvUNet` (nnU-Net's), a class of monai.networks.nets such as "
        "`SegResNet` (needs the extra `monai`), or your own `package.module:factory`",
    )
    channels: int = Field(1, ge=1, description="channels of an image; a learner sets it from the preparation")
    classes: int = Field(2, ge=1, description="classes, with the background; a learner sets it from preparation.labels")
    width: int = Field(32, ge=1, description="unet: filters of the first level; each further level has twice as many")
    depth: int = Field(
        4, ge=1, description="unet: how many times a map is halved; with 4, a width of 32 grows to 512 filters"
    )
    norm: Literal["instance", "batch"] = Field("instance", description="unet: the normalisation after each convolution")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="unet: share of activations dropped in training")
    bottleneck: str | None = Field(
        None, description="dotted name of the module whose output describes a slice; default: found automatically"
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="any other network: arguments of its constructor, beyond channels and classes"
    )

    @model_validator(mode="after")
    def _refuse_options_of_other_networks(self) -> Self:
        """Raise an error for each option that this network would ignore."""
        if self.name == "unet":
            if self.arguments:
                raise ValueError(f"unet has no arguments {sorted(self.arguments)}; it takes {', '.join(_UNET_ONLY)}")
            return self
        defaults = type(self).model_fields
        ignored = [option for option in _UNET_ONLY if getattr(self, option) != defaults[option].default]
        if ignored:
            raise ValueError(f"{', '.join(ignored)}: options of unet alone; give those of {self.name} as arguments")
        return self
