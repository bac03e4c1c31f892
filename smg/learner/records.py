"""The records in a model's folder: model.json, round.json, the journal's lines and a checkpoint's facts.

`smg.learner.store` reads and writes them. Nothing here imports torch, so that a history is shown at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from smg.json_records import FileRecord, Record, Settings, Tree
from smg.learner.guard import Judged
from smg.vault.wrapped_keys import EncryptionRecord

FORMAT = 3  # 1 numbered classes by name; 2 had records without a format of their own
ENCRYPTED = 4  # of an encrypted model's model.json, which an older smg must not write to
FileName = Annotated[str, Field(pattern=r"^[a-z]+\.safetensors$")]  # of a file in a round's folder
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # sha256
Metrics = dict[str, float | None]  # by the metric's name; None where a metric does not exist
PackageVersions = dict[str, str | int]  # of the packages that made a result, with threads and processor


# --- model.json -------------------------------------------------------------------------------------------------------


class RoundEntry(Record):
    """A round in the list of model.json."""

    round: int = Field(ge=1)
    parent: int = Field(ge=0)  # the round that it started from; 0 for the first weights
    site: str


class FileOrigin(Record):
    """First weights from a file."""

    kind: Literal["file"] = "file"
    name: str
    sha256: Digest


class ModelOrigin(Record):
    """First weights from a round of another model."""

    kind: Literal["model"] = "model"
    name: str
    round: int = Field(ge=0)
    sites: tuple[str, ...]
    sha256: Digest


class NnunetOrigin(Record):
    """First weights from a trained model of nnU-Net."""

    kind: Literal["nnunet"] = "nnunet"
    name: str
    dataset: str
    configuration: str
    fold: str
    trainer: str
    sha256: Digest


AnyOrigin = FileOrigin | ModelOrigin | NnunetOrigin
OriginRecord = Annotated[AnyOrigin, Field(discriminator="kind")]


class ModelRecord(FileRecord):
    """model.json: the configuration, all rounds, and which of them is current."""

    FORMAT: ClassVar[int] = FORMAT
    NEWEST: ClassVar[int | None] = ENCRYPTED

    format: int = FORMAT
    config: Settings
    current: int = Field(ge=0)
    rounds: tuple[RoundEntry, ...]
    origin: OriginRecord | None
    encryption: EncryptionRecord | None = None  # of what it keeps of patients

    def written_format(self) -> int:
        """Return the format in which the record is written: an encrypted model's is later."""
        return ENCRYPTED if self.encryption else FORMAT

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `encryption` out of a model that has none, whose file is as it was before models were encrypted."""
        tree: dict[str, Any] = serialize(self)
        if self.encryption is None:
            del tree["encryption"]
        return tree

    @model_validator(mode="after")
    def _rounds_form_a_tree(self) -> ModelRecord:
        """Check that every round comes after its parent, so that following parents always ends at round 0."""
        seen = {0}
        for entry in self.rounds:
            if entry.round in seen:
                raise ValueError(f"round {entry.round} is listed twice")
            if entry.parent not in seen or entry.parent >= entry.round:
                raise ValueError(f"round {entry.round}: its parent, round {entry.parent}, is no earlier round")
            seen.add(entry.round)
        if self.current not in seen:
            raise ValueError(f"current: there is no round {self.current}")
        return self

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """Add the origin, which older files leave out if there was none; `Store.check_classes` needs the old format."""
        return {"origin": None} | tree

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of all rounds."""
        return [entry.round for entry in self.rounds]

    def line(self, number: int) -> list[RoundEntry]:
        """Return the rounds that led to a version, first to last."""
        entries, line = {entry.round: entry for entry in self.rounds}, []
        while number:
            line.append(entries[number])
            number = entries[number].parent
        return line[::-1]


# --- round.json -------------------------------------------------------------------------------------------------------


class PartCounts(Record):
    """How many subjects of a site are in each part."""

    train: int
    validation: int
    test: int


class PartAliases(Record):
    """The pseudonyms of the subjects in each part."""

    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def part_of(self) -> dict[str, str]:
        """Return each pseudonym's part."""
        return {name: part for part, names in self for name in names}

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:  # type: ignore[override]
        yield from (("train", self.train), ("validation", self.validation), ("test", self.test))


class CurvePoint(Record):
    """Validation DSC after an iteration."""

    iteration: int
    dsc: float


class LoggedStep(Record):
    """The measurements of an iteration, by batch (`smg.methods.step.Step`)."""

    iteration: int
    losses: dict[str, float] = Field(default_factory=dict)
    norms: dict[str, float] = Field(default_factory=dict)
    cosines: dict[str, float] = Field(default_factory=dict)
    shifted: tuple[str, ...] = ()


class SubjectRow(Record):
    """The metrics of one subject, for each class."""

    subject: str
    classes: dict[str, Metrics]


class Selection(Record):
    """How exemplars were chosen: the candidates with their scores (paper, Eq. 7 to 9) and features."""

    policy: str
    chosen: tuple[str, ...]
    candidates: tuple[str, ...]
    R: tuple[float, ...]
    V: tuple[float, ...]
    H: tuple[float, ...]
    features: tuple[tuple[float, ...], ...] = ()


class SiteFeatures(Record):
    """The mean features of some subjects of a site."""

    mean: tuple[float, ...]
    subjects: int


class FamiliarRecord(Record):
    """The feature statistics of the sites, by a round's network (`smg.learner.familiarity`)."""

    sites: dict[str, SiteFeatures]
    spread: tuple[float, ...] | None
    validation: tuple[float, ...]  # distances of the round's validation subjects


class Kept(Record):
    """The stored data of a site: exemplars, and the spectra of slices."""

    subjects: int
    spectra: int = 0  # slices
    bytes: int


class BeforeAfter(Record):
    """Mean DSC of a site's exemplars before and after a round; None where it is not a number."""

    before: float | None
    after: float | None


class GuardRecord(Record):
    """How the guard judged a round."""

    tolerance: float | None  # points of DSC; None where no round is held
    sites: dict[str, Judged]
    reasons: tuple[str, ...]  # to hold the round


class RoundRecord(FileRecord):
    """round.json: what a round learned, kept and changed, with the hash of each file beside it."""

    FORMAT: ClassVar[int] = FORMAT

    format: int = FORMAT
    round: int = Field(ge=1)
    parent: int = Field(ge=0)
    site: str
    subjects: PartCounts
    parts: PartAliases
    scans: tuple[str, ...]  # hashes that re-identify a scan
    config: Settings
    versions: PackageVersions
    keeps_of_patients: str  # description of the patient data in the method's state
    seconds: float
    curve: tuple[CurvePoint, ...]
    log: tuple[LoggedStep, ...]
    test: tuple[SubjectRow, ...]
    selection: Selection
    familiar: FamiliarRecord | None
    kept: dict[str, Kept]
    earlier: dict[str, BeforeAfter]
    guard: GuardRecord | None
    sentinels: dict[str, dict[str, float | None]]  # DSC after the round, by site and pseudonym
    held: bool
    received: bool = False  # whether another hospital of a federation learned it
    federation: dict[str, JsonValue] | None = None  # which hospitals answered for the sites that they keep
    files: dict[FileName, Digest]
    # Hashes of files as they were, while they are being replaced.
    replaced: dict[FileName, Digest] = Field(default_factory=dict)
    pseudonyms: str | None = None  # identity of the key of its pseudonyms; None in older rounds, which had no key

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """Add the fields that rounds of older versions did not record."""
        unknown: Tree = {
            "parts": {},
            "scans": [],
            "versions": {},
            "keeps_of_patients": "",
            "seconds": 0.0,
            "familiar": None,
            "kept": {},
            "earlier": {},
            "guard": None,
            "sentinels": {},
        }
        return unknown | tree


class StartRecord(FileRecord):
    """rounds/000/round.json: the first weights of a model that was given some."""

    FORMAT: ClassVar[int] = FORMAT

    format: int = FORMAT
    origin: OriginRecord
    config: Settings
    files: dict[FileName, Digest]


# --- journal.jsonl and checkpoints ------------------------------------------------------------------------------------


LINKS = ("previous", "sha256", "signature")  # how a line is linked to the one before (smg.learner.chain)


class JournalLine(Record):
    """One line of the journal: what happened to the model, and when."""

    model_config = ConfigDict(extra="allow")

    when: str
    event: str  # created, learned, held, accepted, rolled back, dropped exemplars, forgot a subject, ...
    round: int | None = None
    site: str | None = None

    def details(self) -> dict[str, JsonValue]:
        """Return the facts of the event besides its time and kind."""
        return self.model_dump(mode="json", exclude={"when", "event", *LINKS}, exclude_none=True)


class CheckpointFacts(FileRecord):
    """The progress of a round at its checkpoint, and the hashes of its inputs."""

    FORMAT: ClassVar[int] = FORMAT

    format: int = FORMAT
    site: str
    round: int = Field(ge=1)
    iteration: int = Field(ge=0)
    iterations: int | None  # of the whole round; None in a checkpoint of an older version
    parent: int | None  # the round that it started from; None in a checkpoint of an older version
    versions: PackageVersions  # versions of the packages that made it
    key: dict[str, str] | None  # hashes of the round's inputs; None in a checkpoint of an older version
    curve: tuple[CurvePoint, ...]
    log: tuple[LoggedStep, ...]
    begun: bool  # whether the method's `begin_round` was called
    selected: bool  # whether the weights are those that close the round: selected, and merged
    ended: bool  # whether `end_round` was called
    seconds: float  # spent so far

    @classmethod
    def upgrade(cls, tree: Tree, format: int) -> Tree:
        """Add the fields that checkpoints of older versions did not record."""
        unknown: Tree = {"iterations": None, "parent": None, "versions": {}, "curve": [], "log": [], "seconds": 0.0}
        unknown |= {"begun": False, "selected": False, "ended": False}
        return unknown | tree | {"key": tree["key"] if isinstance(tree["key"], dict) else None}
