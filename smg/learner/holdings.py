"""What a model holds of patients: one table for `smg replay show` and for the documentation.

A test compares the table in docs/privacy.md with `KINDS`. Everything is read from records and sizes of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smg.learner.history import EXEMPLARS, MERGING, SENTINELS, SPECTRA, STATE, History
from smg.learner.records import RoundRecord

WEIGHTS, RECORD = "weights.safetensors", "round.json"
SITE_OR_PERSON, PERSON, SITE = "replay drop, forget", "forget", "replay drop"
HEADER = 8  # bytes of a safetensors file before its header: one that was emptied holds little more


@dataclass(frozen=True)
class Kind:
    """One kind of data that is of patients."""

    name: str  # in JSON
    what: str
    file: str  # in a round's folder
    removal: str  # the commands that remove it


KINDS = (
    Kind("exemplars", "slices and masks of exemplars; outputs (der++)", EXEMPLARS, SITE_OR_PERSON),
    Kind("sentinels", "slices and masks of sentinels", SENTINELS, SITE_OR_PERSON),
    Kind("spectra", "amplitudes of training slices, no phases", SPECTRA, SITE),
    Kind("rows", "rows of subjects: part, metrics, features", RECORD, PERSON),
    Kind("hashes", "keyed hashes of scans", RECORD, "forget --scan"),
    Kind("state", "what a method or merging remembers", STATE, "replay drop, delete model"),
    Kind("weights", "weights trained with them", WEIGHTS, "delete model"),
    Kind("checkpoint", "a round under way: weights, method's state", "progress", "abandon"),
)


@dataclass(frozen=True)
class Holding:
    """How much of one kind a model holds, over all its rounds."""

    kind: Kind
    count: int  # of `unit`
    unit: str
    bytes: int | None  # None where it is part of a file with other content


def holdings(history: History) -> list[Holding]:
    """Return how much of each kind all rounds of a model hold, also held and rolled-back ones."""
    records = [history.record(number) for number in history.model.numbers]
    kept = [history.kept(record.round) for record in records]
    scored = [record for record in records if _is_filled(history, record, SENTINELS)]
    under_way = sorted((history.store.folder / "progress").glob("*.safetensors"))
    aliases = {name for record in records for _, names in record.parts for name in names}
    counts: dict[str, tuple[int, str, int | None]] = {
        "exemplars": (sum(one.subjects for one in kept), "subjects", _bytes(history, records, EXEMPLARS)),
        "sentinels": (
            sum(len(record.sentinels.get(record.site, {})) for record in scored),
            "subjects",
            _bytes(history, scored, SENTINELS),
        ),
        "spectra": (sum(one.spectra for one in kept), "slices", _bytes(history, records, SPECTRA)),
        "rows": (len(aliases), "subjects", _bytes(history, records, RECORD)),
        "hashes": (len({scan for record in records for scan in record.scans}), "hashes", None),
        "state": (
            sum(STATE in record.files or MERGING in record.files for record in records),
            "rounds",
            _bytes(history, records, STATE) + _bytes(history, records, MERGING),
        ),
        "weights": (len(records), "rounds", _bytes(history, records, WEIGHTS)),
        "checkpoint": (int(bool(under_way)), "rounds", sum(path.stat().st_size for path in under_way)),
    }
    return [Holding(kind, *counts[kind.name]) for kind in KINDS]


def _is_filled(history: History, record: RoundRecord, name: str) -> bool:
    return name in record.files and _size(history.store.round_folder(record.round) / name) > 2 * HEADER


def _bytes(history: History, records: list[RoundRecord], name: str) -> int:
    """Return the size of a file over rounds; a round that does not have it counts as nothing."""
    return sum(_size(history.store.round_folder(record.round) / name) for record in records)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
