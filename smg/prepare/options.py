"""How scans become arrays: the options, as configuration that every result repeats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from smg.sites.labels import Labels

Percentile = Annotated[float, Field(ge=0, le=100)]


class Preparation(BaseModel):
    """How a scan becomes slices. The default is the paper's: 384 x 384, each volume to zero mean and unit variance.

    Without `spacing` a slice is resized to `size` x `size`, whatever its field of view. With it a slice is resampled to
    that spacing over its whole field (or its central `field`), and the network sees windows of `size` x `size` pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(
        384,
        ge=16,
        le=2048,
        description="rows and columns that the network sees: of the resized slice, or of a window",
    )
    spacing: float | None = Field(
        None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="mm between pixels; unset, slices are resized to the size",
    )
    field: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="mm of the slice's centre to keep; unset, all of it; needs spacing"
    )
    foreground: float = Field(
        1 / 3, ge=0, le=1, description="share of training windows that are centred on a foreground pixel; needs spacing"
    )
    channels: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of a subject's images, in order; unset, one image of any name"
    )
    clip: tuple[Percentile, Percentile] | None = Field(
        None, description="percentiles of the volume to which intensities are clipped before normalisation, as [1, 99]"
    )
    normalise: Literal["volume", "slice"] = Field("volume", description="what gets zero mean and unit variance")
    adjacent: Literal[1, 3] = Field(1, description="slices given as channels: one, or one with its two neighbours")
    empty_slices: bool = Field(True, description="whether slices without foreground are drawn in training")
    labels: Labels = Field(default_factory=Labels, description="which mask values are foreground, or which classes")

    @model_validator(mode="after")
    def _clip_in_order(self) -> Preparation:
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip: the first percentile must be below the second, not {self.clip}")
        return self

    @model_validator(mode="after")
    def _field_needs_spacing(self) -> Preparation:
        if self.field is not None and self.spacing is None:
            raise ValueError("field is in mm and needs a spacing; set preparation.spacing too")
        return self

    @property
    def window(self) -> int | None:
        """Side of a window, where slices are seen through windows."""
        return None if self.spacing is None else self.size

    @property
    def n_channels(self) -> int:
        """How many images a subject has."""
        return len(self.channels) if self.channels else 1

    def stored(self) -> dict[str, object]:
        """Return the options that decide what is stored; the others are applied when a batch is drawn."""
        grid = {"size"} if self.spacing is None else {"spacing", "field"}
        return self.model_dump(include={"clip", "normalise", "labels", "channels", *grid}, mode="json")
