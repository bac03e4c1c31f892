"""The history of a model: every round, what is kept of each, and the round under way.

This is the one reader of a model's folder. Everything is read from JSON and from the headers of arrays, without torch,
so that a history is shown at once. A damaged round does not hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smg.errors import SmgError
from smg.files import left_alone, safetensors_header
from smg.learner.records import (
    AnyOrigin,
    CheckpointFacts,
    FileOrigin,
    JournalLine,
    Kept,
    ModelRecord,
    NnunetOrigin,
    RoundEntry,
    RoundRecord,
)
from smg.learner.sealing import FileFacts, facts_in
from smg.learner.site_effects import Effect, Standing, effects_of, standings
from smg.learner.store import Store, checkpoint_facts

if TYPE_CHECKING:
    from smg.vault.key import Key

EXEMPLARS, SPECTRA, SENTINELS = "exemplars.safetensors", "spectra.safetensors", "sentinels.safetensors"
STATE, MERGING = "state.safetensors", "merging.safetensors"
NOTHING = FileFacts(subjects=0, rows=0, bytes=0, encrypted=False)


@dataclass(frozen=True)
class Round:
    """One round, by its entry in model.json and by its folder."""

    entry: RoundEntry
    record: RoundRecord | None  # None where it cannot be read
    kept: Kept | None  # exemplars; None where they cannot be read
    fault: str | None  # what is wrong with its folder


@dataclass(frozen=True)
class State:
    """The stored state of a round's method and of its merging."""

    bytes: int = 0
    of_patients: str = ""  # description of the patient data in it


@dataclass(frozen=True)
class Stored:
    """The stored data of one round's site."""

    site: str
    round: int
    kept: Kept
    in_use: bool  # whether the next round would replay it
    state: State


@dataclass(frozen=True)
class UnderWay:
    """A round that was begun and is not yet a version, as of its last checkpoint."""

    round: int
    site: str
    iteration: int
    iterations: int | None  # None if an older version began it
    parent: int | None  # the round that it started from; None if an older version began it
    at_work: bool  # whether a process is working on it


class History:
    """The rounds of one model, read from its folder; `reload` reads model.json again after it was written."""

    def __init__(self, folder: Path, key: Key | None = None) -> None:
        """Read the model in a folder; `key` opens an encrypted one where that is needed."""
        self.store = Store(folder, key)
        self.model: ModelRecord = self.store.read()

    def reload(self) -> None:
        """Read model.json again."""
        self.model = self.store.read()

    # --- rounds -------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """Return the round whose weights are in use; 0 before the first."""
        return self.model.current

    @property
    def origin(self) -> AnyOrigin | None:
        """Return where the first weights came from, if they were given."""
        return self.model.origin

    @property
    def has_learned(self) -> bool:
        """Return whether there are weights other than random ones."""
        return bool(self.current or self.origin)

    def line(self, upto: int | None = None) -> list[RoundEntry]:
        """Return the rounds that led to a version, the current one by default, first to last."""
        return self.model.line(self.current if upto is None else upto)

    @property
    def sites(self) -> list[str]:
        """Return the sites that the current version has learned, in order."""
        return [entry.site for entry in self.line()]

    def record(self, number: int) -> RoundRecord:
        """Return a round's record, which must agree with its entry in model.json."""
        record = self.store.read_round(number)
        for entry in self.model.rounds:
            if entry.round == number and (entry.parent, entry.site) != (record.parent, record.site):
                path = self.store.round_folder(number) / "round.json"
                raise SmgError(f"{path}: damaged (model.json has another site or parent); restore it from a backup")
        return record

    def records(self, upto: int | None = None) -> list[RoundRecord]:
        """Return the records of the rounds that led to a version, first to last."""
        return [self.record(entry.round) for entry in self.line(upto)]

    def records_of(self, site: str, upto: int | None = None) -> list[RoundRecord]:
        """Return the records of the rounds of a site that led to a version, first to last."""
        return [self.record(entry.round) for entry in self.line(upto) if entry.site == site]

    def rounds(self) -> list[Round]:
        """Return all rounds, including held and rolled-back ones, with the fault of each damaged round."""
        return [self._round(entry) for entry in self.model.rounds]

    def _round(self, entry: RoundEntry) -> Round:
        try:
            record = self.record(entry.round)
        except SmgError as error:
            return Round(entry, None, None, str(error))
        try:
            for name in record.files:
                self._facts(entry.round, name)
            return Round(entry, record, self.kept(entry.round), None)
        except SmgError as error:
            return Round(entry, record, None, str(error))

    def journal(self) -> list[JournalLine]:
        """Return the events of the model's journal, oldest first."""
        return self.store.journal()

    def held(self, number: int) -> bool:
        """Return whether a round is held and not yet accepted."""
        accepted = [line.round for line in self.journal() if line.event == "accepted"]
        return self.record(number).held and number not in accepted

    def standings(self, upto: int | None = None) -> list[Standing]:
        """Return whether a version, the current one by default, still knows each site that it learned."""
        return standings(self.records(upto))

    def lost(self) -> dict[str, tuple[float, float]]:
        """Return the sites that the current version has lost: their best DSC so far, and the one last measured."""
        lost = [one for one in self.standings() if one.state == "lost"]
        return {one.site: (one.best or 0.0, one.after or 0.0) for one in lost}

    def effects(self, number: int) -> list[Effect]:
        """Return what a round did to its own site and to every site learned before it."""
        record = self.record(number)
        return effects_of(record, [entry.site for entry in self.line(record.parent)])

    # --- what is kept -------------------------------------------------------------------------------------------------

    def stored(self) -> list[Stored]:
        """Return the stored data of each round's site, and the state of its method."""
        used = {entry.site: entry.round for entry in self.line()}
        return [
            Stored(e.site, e.round, self.kept(e.round), used.get(e.site) == e.round, self.state(e.round))
            for e in self.model.rounds
        ]

    def kept_by_site(self) -> dict[str, Kept]:
        """Return the exemplars of each learned site in the buffer."""
        return {entry.site: self.kept(entry.round) for entry in self.line()}

    def kept(self, number: int) -> Kept:
        """Return the number and size of the exemplars and spectra (one slice each) that a round stores."""
        exemplars = self._facts(number, EXEMPLARS)
        spectra = self._facts(number, SPECTRA) if SPECTRA in self.record(number).files else NOTHING
        return Kept(subjects=exemplars.subjects, spectra=spectra.rows, bytes=exemplars.bytes + spectra.bytes)

    def sentinels(self, number: int) -> FileFacts:
        """Return the number and size of the sentinels that a round stores."""
        return self._facts(number, SENTINELS) if SENTINELS in self.record(number).files else NOTHING

    def state(self, number: int) -> State:
        """Return the size of the state of a round's method and merging, and a description of the patient data in it."""
        record = self.record(number)
        found = [self._facts(number, name) for name in (STATE, MERGING) if name in record.files]
        return State(sum(one.bytes for one in found), record.keeps_of_patients) if found else State()

    def under_way(self) -> UnderWay | None:
        """Return the round that was begun and is not yet a version; an unreadable checkpoint is skipped."""
        found: list[CheckpointFacts] = []
        for path in (self.store.folder / "progress").glob("[!.]*.safetensors"):
            try:
                found.append(checkpoint_facts(safetensors_header(path)[1], path))
            except (SmgError, OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        about = max(found, key=lambda one: one.iteration, default=None)
        if about is None or about.round in self.model.numbers:
            return None
        folder = self.store.folder
        at_work = (folder / "lock").exists() and not left_alone(folder)
        return UnderWay(about.round, about.site, about.iteration, about.iterations, about.parent, at_work)

    def _facts(self, number: int, name: str) -> FileFacts:
        """Return what a round's file holds, by its header, if the file has the length that the header states."""
        path = self.store.round_folder(number) / name
        try:
            return facts_in(path)
        except OSError as error:
            raise SmgError(f"{path}: {error.strerror}; restore it from a backup") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SmgError(f"{path}: cut short or altered since it was written; restore it from a backup") from None


def described(origin: AnyOrigin) -> str:
    """Return in a few words where a model's first weights came from (smg.learner.origin)."""
    where = f"{origin.name} (sha256 {origin.sha256[:16]})"
    if isinstance(origin, NnunetOrigin):
        return f"nnU-Net's {origin.dataset}/{where}, fold {origin.fold}"
    if isinstance(origin, FileOrigin):
        return f"the file {where}"
    return f"the model {where}, round {origin.round}, which had learned {', '.join(origin.sites) or 'no site'}"
