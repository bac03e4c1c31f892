"""Which network: its name and its options, validated before anything heavy is imported."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_UNET_ONLY = ("width", "depth", "norm", "dropout")


class NetworkConfig(BaseModel):
    """A network by name. `unet` has options of its own; every other network takes `arguments`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "unet",
        description="`unet` (the paper's), a class of monai.networks.nets such as `SegResNet`, "
        "or your own `package.module:factory`",
    )
    channels: int = Field(1, ge=1, description="channels of an image: a learner has those of preparation.adjacent")
    classes: int = Field(2, ge=1, description="classes with the background: a learner has those of preparation.labels")
    width: int = Field(32, ge=1, description="unet: filters of the first level, doubled at every further one")
    depth: int = Field(4, ge=1, description="unet: how often a map is halved; 4 take a width of 32 to 512 filters")
    norm: Literal["instance", "batch"] = Field("instance", description="unet: what follows each convolution")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="unet: share of activations dropped in training")
    bottleneck: str | None = Field(
        None, description="dotted name of the module whose output describes a slice; found when not given"
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="any other network: what its constructor takes, beyond channels and classes"
    )

    @model_validator(mode="after")
    def _no_option_goes_unheard(self) -> Self:
        if self.name == "unet":
            if self.arguments:
                raise ValueError(f"unet takes {', '.join(_UNET_ONLY)}, not arguments {sorted(self.arguments)}")
            return self
        defaults = type(self).model_fields
        unheard = [option for option in _UNET_ONLY if getattr(self, option) != defaults[option].default]
        if unheard:
            raise ValueError(f"{', '.join(unheard)}: only for unet; put what {self.name} takes under arguments")
        return self
