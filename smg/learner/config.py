"""The configuration of a round, validated, and repeated in every result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from smg import trust
from smg.dicom.codes import Code
from smg.errors import Misuse
from smg.gradients.optimiser import OptimiserConfig
from smg.learner.guard import GuardConfig
from smg.methods import Method, find_method
from smg.networks.loss import Loss, find_loss
from smg.networks.network_config import NetworkConfig
from smg.prepare.effects import Augmentation
from smg.prepare.prepare_options import Preparation, StyleOptions
from smg.replay.selection import known

OPENED = {"opened": True}  # validation context of settings read from a folder: code that they name is not trusted


@dataclass(frozen=True)
class Recipe:
    """A method, and the policy by which its exemplars are chosen."""

    method: Method
    policy: str


def spelled(method: str) -> tuple[str, str]:
    """Return a method's name and replay policy from the short form that a user writes.

    `sga+c` is short for method `sga` with `replay.policy` comprehensive. The method's own name never ends in `+c`.
    """
    name = method.removesuffix("+c")
    return name, "comprehensive" if name != method else "representative"


class ReplayConfig(BaseModel):
    """How many exemplars of a site are kept, and how they are replayed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subjects: int = Field(2, ge=0, description="exemplars kept of each site (N_e)")
    policy: str | None = Field(
        None, description="how they are chosen, or mine.py:mine; unset, representative, and comprehensive with +c"
    )
    weight: float = Field(1.0, description="weight of diversity in the comprehensive policy (λ)")
    features: Literal["everywhere", "foreground"] = Field(
        "everywhere", description="where the features they are chosen by are averaged"
    )
    batch: int | None = Field(
        None, ge=1, description="slices of a replay batch; as many as of the incoming one if not given"
    )


class LearnerConfig(BaseModel):
    """All settings of a round, validated. The defaults are those of the paper.

    [Settings](settings.md) lists every setting with its default and meaning. Settings with a dot in their name are
    nested: `replay.subjects=4` is `LearnerConfig(replay={"subjects": 4})`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(
        "sga+c", description="a method's name, or mine.py:mine; sga+c is short for sga with replay.policy=comprehensive"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the method's own hyper-parameters")
    loss: str = Field(
        "dice+ce", description="segmentation loss: dice+ce, dice+focal, a class of monai.losses, mine.py:mine"
    )
    loss_options: dict[str, Any] = Field(default_factory=dict, description="the loss's own options")
    iterations: int = Field(20_000, ge=1, description="iterations of a round")
    batch: int = Field(5, ge=1, description="slices of an incoming batch")
    seed: int = Field(0, ge=0, description="of the split, the first weights, the batches and the augmentation")
    folds: int | None = Field(
        None,
        ge=2,
        description="seeds that test every subject once, with one validation part; unset, 60 : 15 : 25 %",
    )
    preparation: Preparation = Field(default_factory=Preparation)
    augment: Augmentation = Field(default_factory=Augmentation, description="none, mild, strong, or effect by effect")
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    optimiser: OptimiserConfig = Field(default_factory=OptimiserConfig)
    keep_optimiser: bool = Field(False, description="go on with the optimiser's moments in the next round")
    replay: ReplayConfig = Field(default_factory=ReplayConfig)
    memory: Literal["none", "style"] = Field(
        "none", description="kept of each site beside exemplars: nothing, or amplitudes of low frequencies, no image"
    )
    style: StyleOptions = Field(default_factory=StyleOptions)
    guard: GuardConfig = Field(default_factory=GuardConfig)
    select: Literal["last", "best", "average"] = Field(
        "last", description="weights that close a round: the last, the best on validation, or its second half's mean"
    )
    merge: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share w of a round's own weights in those that close it: w Θ + (1 - w) Θ*; unset: 1",
    )
    merge_by: Literal["share", "fisher"] = Field(
        "share", description="the same w for every weight, or more for those that matter more to the new site"
    )
    validate_every: int = Field(1000, ge=1, description="iterations between two points of the validation curve")
    log_every: int = Field(50, ge=1, description="iterations between two reports of losses and alignment")
    largest_component: bool = Field(True, description="keep only the largest component of each class")
    mirror: bool = Field(False, description="predict each window a second time, left for right, and average both")
    micro_batch: int | None = Field(None, ge=1, description="slices that fit in memory at once, if a batch does not")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the passes; bfloat16 on a GPU, or on a CPU with AVX512-BF16 or AMX"
    )
    codes: dict[str, str] = Field(
        default_factory=dict,
        description="what a class is in DICOM, as SCT:41216001:Prostate; unset, by the class's name",
    )
    compile: bool = Field(False, description="fuse the passes' kernels by torch.compile; needs a C++ compiler")
    share: bool = Field(
        False, description="pass slices that a method asks for at the same weights once and together; changes rounding"
    )

    @model_validator(mode="before")
    @classmethod
    def _network_fits_the_data(cls, given: Any) -> Any:
        """Take the network's channels and classes from the preparation, so that they are set once."""
        if not isinstance(given, dict):
            return given
        preparation = Preparation.model_validate(given.get("preparation") or {})
        network = NetworkConfig.model_validate(given.get("network") or {})
        channels = preparation.adjacent * preparation.n_channels
        fitting = {"channels": channels, "classes": 1 + len(preparation.labels.names)}
        return given | {"preparation": preparation, "network": network.model_copy(update=fitting)}

    @model_validator(mode="after")
    def _codes_are_codes_of_classes(self) -> LearnerConfig:
        for name, word in self.codes.items():
            if name not in self.preparation.labels.names:
                raise ValueError(
                    f"codes: no class {name!r}; the classes are {', '.join(self.preparation.labels.names)}"
                )
            try:
                Code.parse(word)
            except Misuse as error:
                raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _frequencies_exist(self) -> LearnerConfig:
        shortest = min(self.preparation.shape)
        highest = (shortest - 1) // 2
        if self.memory == "style" and self.style.cutoff > highest:
            raise ValueError(
                f"style.cutoff: windows of {shortest} pixels have frequencies up to {highest}; give a lower one"
            )
        return self

    @model_validator(mode="after")
    def _method_exists(self, info: ValidationInfo) -> LearnerConfig:
        """Check before the round that the method exists, and trust the code that the user names.

        Names read from a folder (`opened`) are neither looked up nor trusted. So a model can be inspected on a machine
        that does not have the user's own method.
        """
        if not (info.context or {}).get("opened"):
            trust.allow(*self.code().values())
            known(self.recipe().policy)
            self.segmentation_loss()
        return self

    def with_channels(self, names: Sequence[str]) -> LearnerConfig:
        """Return the configuration for subjects with these channels, where it names none itself."""
        if self.preparation.channels is not None or len(names) == 1:
            return self
        preparation = self.preparation.model_copy(update={"channels": tuple(names)})
        changed = self.model_dump() | {"preparation": preparation.model_dump()}
        return LearnerConfig.model_validate(changed, context=OPENED)

    def code(self) -> dict[str, str]:
        """Return the user's own code that the settings name, by kind: `{"method": "mine.py:mine"}`."""
        return trust.code_named_in(self.model_dump())

    def segmentation_loss(self) -> Loss:
        """Return the loss whose gradients a method gets unless it asks for another one."""
        return find_loss(self.loss, self.loss_options, self.network.classes)

    def recipe(self) -> Recipe:
        """Return the method with its options, and the policy by which its exemplars are chosen."""
        name, policy = spelled(self.method)
        return Recipe(find_method(name, **self.options), self.replay.policy or policy)
