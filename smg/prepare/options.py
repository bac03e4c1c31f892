"""How scans become arrays: the options, as configuration that every result repeats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from smg.sites.labels import Labels

Percentile = Annotated[float, Field(ge=0, le=100)]


class Preparation(BaseModel):
    """As the paper by default: slices resized to 384 x 384, each volume to zero mean and unit variance."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(384, ge=16, le=2048, description="rows and columns of a prepared slice")
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

    def stored(self) -> dict[str, object]:
        """The options that decide what is stored; the others are applied when a batch is drawn."""
        return self.model_dump(include={"size", "clip", "normalise", "labels"}, mode="json")
