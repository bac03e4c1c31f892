"""Forget one person: remove what every round of a model, and the cache, hold of a single subject.

A subject is found by its case name, whose pseudonym is computed with the secret of each round, by the pseudonym itself,
or by its scan, whose hashes are in the records. Weights stay as they are: what they learned cannot be taken back.
An interrupted `forget` is run again and ends the same. Rounds are changed last to first, and in each round the arrays
before the record, so the rows of the first round are the last thing that goes, and until then the person is found. The
journal has a line before the first removal and one after the last.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smg.errors import SmgError
from smg.files import sync_folder
from smg.learner.chain import WROTE, read_chain
from smg.learner.history import History
from smg.learner.pseudonyms import pseudonyms_of
from smg.learner.records import PartAliases, RoundRecord, Selection
from smg.learner.store import EMPTY, Store
from smg.learner.undo import unfinished
from smg.prepare.cache import cached_copies
from smg.prepare.encrypted import encrypted_copies
from smg.sites.check import stored, turned
from smg.sites.layouts import case_of
from smg.sites.nnunet_channels import split_case
from smg.sites.volume import read_volume

Names = Mapping[str, frozenset[str]]  # pseudonyms of the person, by site
BEGUN, EVENT = "forgetting a subject", "forgot a subject"  # events before and after
HASHES = "hashes of the scan"
PSEUDONYM = re.compile(r"[0-9a-f]{8}|[0-9a-f]{16}")  # of before there were keys, and since
WORDS = {"exemplars": "exemplar", "sentinels": "sentinel", "state": "arrays of the method's state"}


@dataclass(frozen=True)
class Person:
    """Who is to be forgotten; a case name may be at several sites, a scan is of one person."""

    case: str
    site: str | None = None
    scan: tuple[str, str] | None = None  # hashes of its voxels, as they are stored and as axial slices
    file_case: str = ""  # the case by the name of the scan's file
    by_scan: bool = False  # whether `case` is only that


@dataclass(frozen=True)
class InRound:
    """What one round holds of a person."""

    round: int
    arrays: Mapping[str, tuple[str, ...]]  # file -> arrays to remove; none where an interrupted removal is finished
    said: tuple[str, ...]  # the same and the rows, in words


@dataclass(frozen=True)
class Traces:
    """What was found of a person, or removed."""

    names: Names
    rounds: tuple[InRound, ...]  # last to first
    trained: tuple[int, ...]  # rounds whose weights were trained with the person
    later: tuple[int, ...]  # rounds that go on from these weights
    spectra: tuple[str, ...]  # sites whose spectra may hold slices of the person
    cached: tuple[Path, ...]  # prepared copies of its scan
    hashes_stay: bool  # whether a hash of its scan may be in the records, which only the scan can tell


def person_of(case: str | None, scans: Sequence[Path], site: str | None = None) -> Person:
    """Return who is meant by a case name, by a scan (one file for each channel), or by both."""
    if not scans:
        return Person(case or "", site)
    images = [read_volume(path) for path in scans]
    file_case = case_of(scans[0])
    return Person(case or file_case, site, (stored(images), turned(images)), file_case, by_scan=case is None)


def find(history: History, person: Person) -> Traces:
    """Return what every round and the cache hold of a person; an error where nothing does."""
    folder, records = history.store.folder, [history.record(number) for number in history.model.numbers]
    person = _as_learned(folder, records, person)
    names = _names(records, person)
    rounds = [_in_round(history.store, record, names, person) for record in reversed(records)]
    vault = history.store.vault  # the files that hold a person can only be separated by their key
    cached = tuple(cached_copies(*person.scan)) if person.scan else ()
    cached += tuple(encrypted_copies(*person.scan, vault)) if person.scan and vault else ()
    if not any(one.said for one in rounds) and not cached:
        unknown = any(pseudonyms_of(one.pseudonyms) is None for one in records)
        keys = ", as far as is known without the secret of its pseudonyms (SMG_SECRET)" if unknown else ""
        raise SmgError(f"{folder}: nothing is kept of this person{keys}; give the case's name, alias or scan")
    at = [site for site in names if any(_named(record, site, names) for record in records)]
    if len(at) > 1 and not any(_hashes(record, person) for record in records):
        raise SmgError(f"{folder}: a case of this name was learned at {', '.join(at)}; --site says which one is meant")
    of_site = [record for record in records if names.get(record.site)]
    trained = [r.round for r in of_site if names[r.site] & {*r.parts.train, *r.selection.candidates}]
    later: list[int] = []
    for entry in history.model.rounds:
        if entry.round not in trained and entry.parent in (*trained, *later):
            later.append(entry.round)
    spectra = {r.site for r in of_site if r.round in trained and r.files.get("spectra.safetensors", EMPTY) != EMPTY}
    hashes_stay = person.scan is None and any(record.scans for record in of_site if record.site in at)
    found = tuple(one for one in rounds if one.said or one.arrays)
    return Traces(names, found, tuple(trained), tuple(later), tuple(sorted(spectra)), cached, hashes_stay)


def forget(history: History, person: Person) -> Traces:
    """Remove what every round and the cache hold of a person; the journal notes it without a name."""
    store = history.store
    with store.locked():
        history.reload()
        refuse_under_way(history)
        store.remove_leftovers()
        begun = _begun(store)
        try:
            traces = find(history, person)
        except SmgError:
            if begun and _all_written(store, begun):  # a process died after it had removed everything
                store.note(EVENT, rounds=begun)
            raise
        numbers = sorted(one.round for one in traces.rounds if one.said)
        if begun and set(numbers) <= set(begun):
            numbers = begun
        elif numbers:
            store.note(BEGUN, rounds=numbers)
        for path in traces.cached:
            path.unlink(missing_ok=True)
            sync_folder(path.parent)
        for one in traces.rounds:
            for name, gone in one.arrays.items():
                there = store.read_tensors(one.round, name)
                store.replace_tensors(one.round, name, {key: t for key, t in there.items() if key not in gone})
            record = store.read_round(one.round)
            if (left := _without(record, traces.names, person)[0]) != record:
                store.replace_record(left)
        if numbers:
            store.note(EVENT, rounds=numbers)
        return traces


def _begun(store: Store) -> list[int]:
    """Return the rounds of a forgetting that a process began and did not end; none if there is no such."""
    line = unfinished(store.journal(), BEGUN, EVENT)
    rounds = line.details().get("rounds") if line else None
    return [number for number in rounds if isinstance(number, int)] if isinstance(rounds, list) else []


def _all_written(store: Store, rounds: Sequence[int]) -> bool:
    """Return whether the records of all these rounds were written since the journal's last event."""
    chain = read_chain(store.folder / "journal.jsonl")
    since = itertools.takewhile(lambda link: link.content.get("event") == WROTE, reversed(chain))
    written = {link.content.get("file") for link in since}
    return all(f"rounds/{number:03d}/round.json" in written for number in rounds)


def refuse_under_way(history: History) -> None:
    """Raise an error where a checkpoint is there, which holds what its round has read so far."""
    folder = history.store.folder
    if any((folder / "progress").glob("[!.]*.safetensors")):
        raise SmgError(f"{folder}: a round is under way; finish it, or give it up: `smg abandon {folder}`")


def _as_learned(folder: Path, records: Sequence[RoundRecord], person: Person) -> Person:
    """Return a person who is known by a scan under the case name it was learned by.

    The case is the file's name, or that without nnU-Net's number of a channel. A scan that was learned under any other
    name is an error, and so is a name given beside a scan that was learned under its file's: the hashes alone would be
    removed, and then nothing would lead to its rows and slices.
    """
    knowing = [record for record in records if _hashes(record, person)]
    if not knowing or (not person.by_scan and _is_known_as(person, records, knowing)):
        return person
    cases = dict.fromkeys((person.file_case, split_case(person.file_case)[0]))
    by_file = [named for case in cases if _is_known_as(named := replace(person, case=case), records, knowing)]
    if person.by_scan and by_file:
        return by_file[0]
    site = knowing[0].site
    if person.by_scan:
        raise SmgError(
            f"{folder}: knows this scan, of site {site}, but by another case name than its file's; "
            "give the name too, with --case, also if only the scan's hash is left"
        )
    if by_file:
        raise SmgError(
            f"{folder}: knows this scan, of site {site}, by its file's name; correct --case, or leave it out"
        )
    return person


def _is_known_as(person: Person, records: Sequence[RoundRecord], knowing: Sequence[RoundRecord]) -> bool:
    """Return whether all records that know the person's scan have rows of a subject of the person's case name."""
    names = _names(records, person)
    return all(_named(record, record.site, names) for record in knowing)


def _names(records: Sequence[RoundRecord], person: Person) -> Names:
    """Return the pseudonyms that a person may have at each site; only at sites that know the scan, if one is given."""
    found: dict[str, set[str]] = {}
    known = {record.site for record in records if _hashes(record, person)}
    for record in records:
        if person.site not in (None, record.site) or (record.site not in known and _tells_scans(record, person)):
            continue
        found.setdefault(record.site, set()).update({person.case} if PSEUDONYM.fullmatch(person.case) else ())
        if by_key := pseudonyms_of(record.pseudonyms):
            found[record.site].add(by_key.subject(record.config.seed, record.site, person.case))
    return {site: frozenset(names) for site, names in found.items()}


def _tells_scans(record: RoundRecord, person: Person) -> bool:
    """Return whether a record would show that it knows the person's scan; a name alone may be another person's."""
    has_hashes = bool(record.scans) and pseudonyms_of(record.pseudonyms) is not None
    return person.by_scan or (person.scan is not None and has_hashes)


def _hashes(record: RoundRecord, person: Person) -> set[str]:
    """Return the hashes of the person's scan that a record holds."""
    by_key = pseudonyms_of(record.pseudonyms)
    if person.scan is None or by_key is None or person.site not in (None, record.site):
        return set()
    return set(record.scans) & set(by_key.hashes(*person.scan))


def _named(record: RoundRecord, site: str, names: Names) -> bool:
    """Return whether a record has rows of the person as a subject of this site."""
    own = {*record.parts.part_of(), *record.selection.candidates, *(row.subject for row in record.test)}
    return bool(names[site] & {*(own if record.site == site else ()), *record.sentinels.get(site, ())})


def _in_round(store: Store, record: RoundRecord, names: Names, person: Person) -> InRound:
    arrays: dict[str, tuple[str, ...]] = {}
    said: list[str] = []
    for name in [one for one in WORDS if f"{one}.safetensors" in record.files]:
        file = f"{name}.safetensors"
        there = store.read_tensors(record.round, name)
        own = frozenset[str]().union(*names.values()) if name == "state" else names.get(record.site, frozenset())
        where = slice(None) if name == "state" else slice(1, 2)  # 0000.PSEUDONYM.images
        gone = tuple(key for key in there if own & set(re.split(r"[/.]", key)[where]))
        unsettled = file in record.replaced or (not there and record.files[file] != EMPTY)  # a process died there
        if gone or unsettled:
            arrays[name] = gone
        if gone:
            said.append(WORDS[name] + " and stored outputs" * any(key.endswith(".outputs") for key in gone))
    return InRound(record.round, arrays, (*said, *_without(record, names, person)[1]))


def _without(record: RoundRecord, names: Names, person: Person) -> tuple[RoundRecord, list[str]]:
    """Return a record without the person's rows, and what they were, in words."""
    own = names.get(record.site, frozenset())
    parts = PartAliases(**{part: tuple(one for one in of if one not in own) for part, of in record.parts})
    test = tuple(row for row in record.test if row.subject not in own)
    selection = _other_candidates(record.selection, own)
    scores = {
        site: {name: dsc for name, dsc in of.items() if name not in names.get(site, ())}
        for site, of in record.sentinels.items()
    }
    scans = tuple(one for one in record.scans if one not in _hashes(record, person))
    familiar, validation = record.familiar, record.parts.validation
    if familiar and len(familiar.validation) == len(validation):
        apart = tuple(d for d, name in zip(familiar.validation, validation, strict=True) if name not in own)
        familiar = familiar.model_copy(update={"validation": apart})
    changes = {"parts": parts, "test": test, "selection": selection, "sentinels": scores, "scans": scans}
    words = ("part", "test metrics", "selection scores and features", "sentinel scores", HASHES)
    said = [word for word, key in zip(words, changes, strict=True) if changes[key] != getattr(record, key)]
    return record.model_copy(update={**changes, "familiar": familiar}), said


def _other_candidates(selection: Selection, own: frozenset[str]) -> Selection:
    """Return how exemplars were chosen without the rows of a person."""
    stays = [name not in own for name in selection.candidates]
    changes = {
        key: tuple(one for one, kept in zip(rows, stays, strict=True) if kept)
        for key in ("candidates", "R", "V", "H", "features")
        if len(rows := getattr(selection, key)) == len(stays)
    }
    return selection.model_copy(update={**changes, "chosen": tuple(n for n in selection.chosen if n not in own)})
