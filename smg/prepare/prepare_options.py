"""Configuration of the preparation: how scans become arrays."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from smg.sites.labels import Labels

Percentile = Annotated[float, Field(ge=0, le=100)]
Pixels = Annotated[int, Field(ge=16, le=2048)]
Millimetres = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


def _form(given: Any) -> str:
    """Return which form a size or a spacing has; pydantic then reports the mistakes of that form alone."""
    return "rows, columns" if isinstance(given, list | tuple) else "rows and columns"


One, Two = Tag("rows and columns"), Tag("rows, columns")
Size = Annotated[Annotated[Pixels, One] | Annotated[tuple[Pixels, Pixels], Two], Discriminator(_form)]
Spacing = Annotated[
    Annotated[Millimetres, One] | Annotated[tuple[Millimetres, Millimetres], Two] | Annotated[None, Tag("none")],
    Discriminator(lambda given: "none" if given is None else _form(given)),
]


class Normalisation(BaseModel):
    """How nnU-Net normalises a channel, by the scheme's name there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: Literal["ZScore", "CT", "RescaleTo01", "No"] = "ZScore"
    masked: bool = False  # ZScore: by voxels that are not zero alone; the others stay zero
    mean: float = 0.0  # CT: of the foreground that nnU-Net was trained on, as the next three
    deviation: float = Field(1.0, gt=0)
    low: float | None = None
    high: float | None = None


class NnunetPreparation(BaseModel):
    """Options of nnU-Net's preparation besides spacing and patch (smg.prepare.nnunet_preparation)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    axes: tuple[int, int, int] = (0, 1, 2)  # stored axes that are slices, rows and columns (`transpose_forward`)
    normalise: tuple[Normalisation, ...] = Field((Normalisation(),), min_length=1)  # of each channel
    order: Literal[1, 3] = 3  # of the splines that images are resampled by

    @model_validator(mode="after")
    def _axes_are_all_three(self) -> NnunetPreparation:
        """Refuse axes that are missing or doubled."""
        if sorted(self.axes) != [0, 1, 2]:
            raise ValueError(f"axes {self.axes}: give each of 0, 1 and 2 once")
        return self


class Preparation(BaseModel):
    """Options of the preparation. The defaults are the paper's: 384 x 384, each volume at zero mean and unit variance.

    Without `spacing` a slice is resized to `size` x `size`, whatever its field of view. With `spacing` a slice is
    resampled to that spacing over its whole field of view, or its central `field`, and the network sees windows of
    `size` x `size` pixels. Where rows and columns differ, a size or a spacing is two numbers: [rows, columns].
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Size = Field(
        384,
        description="rows and columns that the network sees: of a resized slice or, with spacing, of a window; "
        "or [rows, columns]",
    )
    spacing: Spacing = Field(
        None, description="mm between pixels, or [between rows, between columns]; unset: slices are resized to the size"
    )
    field: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="mm of the slice's centre to keep; unset: all of it; needs spacing"
    )
    foreground: float = Field(
        1 / 3, ge=0, le=1, description="share of training windows centred on a foreground pixel; needs spacing"
    )
    even_classes: bool = Field(
        False,
        description="windows on foreground: a random class of the slice first, then one of its pixels; needs spacing",
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
    nnunet: NnunetPreparation | None = Field(
        None,
        description="scans are prepared as by nnU-Net: cropped to what is not zero, normalised, then resampled; "
        "set by `--from nnunet:FOLDER`; needs spacing",
    )
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

    @model_validator(mode="after")
    def _nnunet_has_its_own_way(self) -> Preparation:
        """Refuse options that nnU-Net's preparation would ignore."""
        if self.nnunet is None:
            return self
        if self.spacing is None:
            raise ValueError("nnunet: its scans have a spacing; set preparation.spacing too")
        ignored = {"field": None, "clip": None, "normalise": "volume", "adjacent": 1}
        for name, default in ignored.items():
            if getattr(self, name) != default:
                raise ValueError(f"{name}: nnU-Net's preparation has no such option; leave it out")
        if len(self.nnunet.normalise) != self.n_channels:
            raise ValueError(f"nnunet.normalise: {len(self.nnunet.normalise)} schemes for {self.n_channels} channels")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns that the network sees."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def window(self) -> tuple[int, int] | None:
        """Return rows and columns of a window; None if the network sees whole slices."""
        return None if self.spacing is None else self.shape

    @property
    def pixel(self) -> tuple[float, float] | None:
        """Return the mm between rows and between columns; None if slices are resized."""
        return self.spacing if self.spacing is None or isinstance(self.spacing, tuple) else (self.spacing, self.spacing)

    @property
    def n_channels(self) -> int:
        """Return the number of images of a subject."""
        return len(self.channels) if self.channels else 1

    def stored(self) -> dict[str, object]:
        """Return the options that determine what the cache stores; the others apply when a batch is drawn."""
        grid = {"size"} if self.spacing is None else {"spacing", "field"}
        if self.nnunet is not None:
            grid.add("nnunet")
        return self.model_dump(include={"clip", "normalise", "labels", "channels", *grid}, mode="json")


class StyleOptions(BaseModel):
    """Options of the style memory: what is kept of each site, and how later rounds use it (smg.prepare.styles)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cutoff: int = Field(4, ge=1, description="highest frequency kept, in cycles a window (L); 4: 45 numbers a slice")
    slices: int | None = Field(
        None, ge=1, description="slices of each site whose amplitudes are kept, drawn at random; unset: all"
    )
    probability: float = Field(
        0.5, ge=0, le=1, description="that an incoming slice takes on amplitudes of an earlier site"
    )
    share: float = Field(1.0, ge=0, le=1, description="largest share by which it does; drawn uniformly from 0 on")
