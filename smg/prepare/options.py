"""Configuration of the preparation: how scans become arrays."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from smg.sites.labels import Labels

Percentile = Annotated[float, Field(ge=0, le=100)]


class Preparation(BaseModel):
    """Options of the preparation. The defaults are the paper's: 384 x 384, each volume at zero mean and unit variance.

    Without `spacing` a slice is resized to `size` x `size`, whatever its field of view. With `spacing` a slice is
    resampled to that spacing over its whole field of view, or its central `field`, and the network sees windows of
    `size` x `size` pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(
        384,
        ge=16,
        le=2048,
        description="rows and columns that the network sees: of a resized slice or, with spacing, of a window",
    )
    spacing: float | None = Field(
        None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="mm between pixels; unset: slices are resized to the size",
    )
    field: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="mm of the slice's centre to keep; unset: all of it; needs spacing"
    )
    foreground: float = Field(
        1 / 3, ge=0, le=1, description="share of training windows centred on a foreground pixel; needs spacing"
    )
    channels: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of a subject's images, in order; unset: one image of any name"
    )
    clip: tuple[Percentile, Percentile] | None = Field(
        None, description="percentiles of the volume that intensities are clipped to before normalisation, as [1, 99]"
    )
    normalise: Literal["volume", "slice"] = Field("volume", description="what is given zero mean and unit variance")
    adjacent: Literal[1, 3] = Field(
        1, description="slices a sample: one, or one with its two neighbours as further channels"
    )
    empty_slices: bool = Field(True, description="whether training draws slices without foreground")
    labels: Labels = Field(default_factory=Labels, description="mask values of the foreground, or of each class")

    @model_validator(mode="after")
    def _clip_in_order(self) -> Preparation:
        """Refuse percentiles in the wrong order."""
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip: percentiles {self.clip} are not in order; give the lower one first")
        return self

    @model_validator(mode="after")
    def _field_needs_spacing(self) -> Preparation:
        """Refuse a field without a spacing."""
        if self.field is not None and self.spacing is None:
            raise ValueError("field is in mm and needs a spacing; set preparation.spacing too")
        return self

    @property
    def window(self) -> int | None:
        """Return the side of a window in pixels; None if the network sees whole slices."""
        return None if self.spacing is None else self.size

    @property
    def n_channels(self) -> int:
        """Return the number of images of a subject."""
        return len(self.channels) if self.channels else 1

    def stored(self) -> dict[str, object]:
        """Return the options that determine what the cache stores; the others apply when a batch is drawn."""
        grid = {"size"} if self.spacing is None else {"spacing", "field"}
        return self.model_dump(include={"clip", "normalise", "labels", "channels", *grid}, mode="json")


class StyleOptions(BaseModel):
    """What a style memory keeps of each site, and how later rounds use it (smg.prepare.styles)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cutoff: int = Field(4, ge=1, description="highest frequency kept, in cycles a window (L); 4: 45 numbers a slice")
    slices: int | None = Field(
        None, ge=1, description="slices of each site whose amplitudes are kept, drawn at random; unset: all"
    )
    probability: float = Field(
        0.5, ge=0, le=1, description="that an incoming slice takes on amplitudes of an earlier site"
    )
    share: float = Field(1.0, ge=0, le=1, description="largest share by which it does; drawn uniformly from 0 on")
