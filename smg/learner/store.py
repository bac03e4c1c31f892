"""Read and write a model's folder. Arrays are safetensors, everything else is JSON; nothing is pickled.

    model.json              the model: format, configuration, which round is current, every round's entry
    plan.yaml               the plan that the settings came from, with its reasons, if `smg plan` made them
    journal.jsonl           the events of the model, with their times
    rounds/000/             the first weights, if they were given
    rounds/001/             one folder a round, complete or absent
        weights.safetensors
        exemplars.safetensors
        sentinels.safetensors   subjects that no gradient has seen, by which later rounds are judged
        spectra.safetensors     amplitudes of low frequencies of the site's slices, if there is a style memory
        state.safetensors   the method's state, if it has one
        merging.safetensors the importance of each weight, if rounds are merged by it
        round.json          its record, with the hash of each file beside it
    progress/               the round under way: one checkpoint, whose name holds its own hash
    lock                    held by the working process

In an encrypted model every file of arrays but the weights is encrypted (smg.learner.sealing), checkpoints too.

Every write is atomic, so a process that is killed at any moment leaves a folder from which the next one can resume.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from smg.errors import Misuse, SmgError
from smg.files import (
    append_line,
    locked,
    make_folder,
    make_private,
    naming,
    parse_json,
    refuse_links,
    replacing,
    safetensors_header,
    sync_folder,
)
from smg.json_records import FileRecord, first_fault, parse_record, read_record, record_file, write_record
from smg.learner.chain import WROTE, hashes_of, next_line, read_chain
from smg.learner.records import CheckpointFacts, JournalLine, ModelRecord, RoundRecord, StartRecord
from smg.learner.sealing import (
    CHECKPOINT,
    READABLE,
    decoded,
    encoded,
    place_of,
    sha256_of_pieces,
    write_pieces,
)
from smg.learner.shared_tensors import copied
from smg.vault import keyring

if TYPE_CHECKING:  # so that reading a history (smg.learner.history) does not import torch
    from torch import Tensor

    from smg.vault.key import Key
    from smg.vault.vault import Vault

PLAN = "plan.yaml"
EMPTY = hashlib.sha256(b"\x08" + bytes(7) + b"{}      ").hexdigest()  # hash of a file whose arrays were all removed
TEMPORARY = re.compile(r"\..+-\d+-[0-9a-f]{8}")  # a file that a process was writing (smg.files.replacing)
Tensors: TypeAlias = "dict[str, Tensor]"


class Store:
    """Reader and writer of one model's folder."""

    def __init__(self, folder: Path, key: Key | None = None) -> None:
        """Read and write the model in a folder; `key` opens an encrypted one. Default: the key at hand."""
        self.folder, self.key = folder, key
        self._vault: Vault | None = None
        self._known: tuple[tuple[int, int], dict[str, tuple[str, ...]]] | None = None

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.folder / "model.json").is_file()

    def read(self) -> ModelRecord:
        """Read model.json."""
        self.check_folder()
        if not self.exists:
            then = "give the folder of one" if self.folder.exists() else f"`smg learn {self.folder} SITE` makes one"
            raise SmgError(f"{self.folder}: no model there; {then}")
        record = read_record(self.folder / "model.json", ModelRecord)
        self.check_written(self.folder / "model.json")
        return record

    @property
    def vault(self) -> Vault | None:
        """Return the data keys of an encrypted model, None for one that is not; raise an error without its key."""
        record = self.read().encryption
        if record is None:
            self._vault = None
            if keyring.given():
                raise Misuse(f"{self.folder}: not encrypted; leave --key-file out")
        elif self._vault is None or self._vault.record != record:
            self._vault = keyring.open_vault(record, self.folder, self.key)
        return self._vault

    def check_classes(self, model: ModelRecord) -> None:
        """Refuse a model of format 1 whose classes are not in the order of their values, the order of later formats."""
        preparation = model.config.tree().get("preparation") or {}
        classes = (preparation.get("labels") or {}).get("classes") or {}
        if model.format == 1 and sorted(classes) != sorted(classes, key=lambda name: classes[name][0]):
            raise SmgError(
                f"{self.folder}: made by an older smg that numbered classes in another order; make a new model"
            )

    def write(self, model: ModelRecord) -> None:
        """Write model.json."""
        self._write_record(self.folder / "model.json", model)

    def note(self, event: str, **details: object) -> None:
        """Add a line to the journal, linked to the one before (smg.learner.chain)."""
        self._append({"when": _now(), "event": event, **details})

    def _append(self, content: dict[str, Any], **hashes: str) -> None:
        path = self.folder / "journal.jsonl"
        append_line(path, next_line(read_chain(path), content, **hashes), durable=True)

    def _write_record(self, path: Path, record: FileRecord, place: Path | None = None) -> None:
        """Write a hash to the journal, then its model.json or round.json; `place` is where the file will be moved."""
        name = str((place or path).relative_to(self.folder))
        self._append({"when": _now(), "event": WROTE, "file": name}, sha256=sha256_of(record_file(record)))
        write_record(path, record)

    def check_folder(self) -> None:
        """Raise an error if the folder holds a link or a special file."""
        if self.folder.is_dir():
            refuse_links(self.folder)

    def check_written(self, path: Path) -> None:
        """Raise an error if a record does not have the hash in the journal."""
        expected = self._recorded().get(str(path.relative_to(self.folder)))
        if expected and sha256_of(path.read_bytes()) not in expected:
            raise SmgError(
                f"{path}: altered since smg wrote it; restore it from a backup, or `smg verify {self.folder} --adopt` "
                "takes it as it is"
            )

    def _recorded(self) -> dict[str, tuple[str, ...]]:
        """Return the valid hashes of records by the journal, which is read again when it has grown."""
        path = self.folder / "journal.jsonl"
        at = (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else (0, 0)
        if self._known is None or self._known[0] != at:
            self._known = at, hashes_of(read_chain(path))
        return self._known[1]

    def adopt(self) -> list[str]:
        """Accept records that differ from the journal, note it in the journal, and return their names."""
        with self.locked():
            expected, taken = hashes_of(read_chain(self.folder / "journal.jsonl")), []
            for path in sorted([self.folder / "model.json", *self.folder.glob("rounds/[0-9]*/round.json")]):
                name, found = str(path.relative_to(self.folder)), sha256_of(path.read_bytes())
                if found not in expected.get(name, ()):
                    self._append({"when": _now(), "event": WROTE, "file": name}, sha256=found)
                    taken.append(name)
            if taken:
                self.note("adopted", files=taken)
            return taken

    def check_current(self, model: ModelRecord) -> None:
        """Raise an error if model.json has changed since this process read it."""
        if self.read() != model:
            raise SmgError(
                f"{self.folder / 'model.json'}: another process has changed it meanwhile; this round is not entered, "
                "and nothing of the other's was touched: start the command again"
            )

    def journal(self) -> list[JournalLine]:
        """Return the journal, oldest line first; a line that a crash has cut short is skipped."""
        path = self.folder / "journal.jsonl"
        events = []
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), start=1):
            try:
                events.append(JournalLine.model_validate(parse_json(line)))
            except ValidationError as error:
                raise SmgError(
                    f"{path}, line {number}: damaged ({first_fault(error)}); restore it from a backup"
                ) from None
            except ValueError:
                continue
        return [line for line in events if line.event != WROTE]

    @property
    def has_plan(self) -> bool:
        """Return whether the settings came from a plan, or were given when the model was made."""
        return (self.folder / PLAN).exists()

    def keep_plan(self, text: str) -> None:
        """Keep the plan that a new model's settings came from, with its reasons."""
        path = self.folder / PLAN
        self._append({"when": _now(), "event": WROTE, "file": PLAN}, sha256=hashlib.sha256(text.encode()).hexdigest())
        with naming(path), replacing(path) as temporary:
            temporary.write_text(text)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the model for this process in the block, and make its files readable by their owner only."""
        self.check_folder()
        with naming(self.folder):
            make_private(self.folder)
        with locked(self.folder):
            self._settle_chain()
            if not any((self.folder / "progress").glob("[!.]*.safetensors")):
                self.forget_progress()  # an empty folder, or what a process was writing there when it died
            yield

    def _settle_chain(self) -> None:
        """Note in the journal which version of a record exists, if a process died between journal line and record."""
        for name, hashes in hashes_of(read_chain(self.folder / "journal.jsonl")).items():
            path = self.folder / name
            found = sha256_of(path.read_bytes()) if path.is_file() else ""
            if found != hashes[0] and found in hashes:
                self._append({"when": _now(), "event": WROTE, "file": name}, sha256=found)

    @property
    def abandoned(self) -> bool:
        """Return whether the folder holds nothing but the remains of an interrupted creation."""
        rounds = self.folder / "rounds"
        own = {*(self.folder / name for name in ("lock", "journal.jsonl", PLAN, "rounds")), *_remains(rounds)}
        there = {*self.folder.iterdir(), *(rounds.iterdir() if rounds.is_dir() else ())}
        return not self.exists and all(path in own or TEMPORARY.fullmatch(path.name) for path in there)

    def clear_abandoned(self) -> None:
        """Remove the remains of an interrupted creation, so that the new model has a journal of its own."""
        if self.abandoned:
            for path in (*_remains(self.folder / "rounds"), self.folder / PLAN, self.folder / "journal.jsonl"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    # --- rounds -------------------------------------------------------------------------------------------------------

    def round_folder(self, number: int) -> Path:
        return self.folder / "rounds" / f"{number:03d}"

    def write_round(self, number: int, tensors: dict[str, Tensors], record: RoundRecord | StartRecord) -> None:
        """Write the round's folder under a temporary name, then move it to its place."""
        making = self.folder / "rounds" / f".{number:03d}"
        with naming(making):
            shutil.rmtree(making, ignore_errors=True)
            make_folder(making)
            hashes = {}
            for name, arrays in tensors.items():
                pieces = self._encoded(number, name, arrays)
                hashes[f"{name}.safetensors"] = sha256_of_pieces(pieces)
                write_pieces(making / f"{name}.safetensors", pieces)
            place = self.round_folder(number)
            self._write_record(making / "round.json", record.model_copy(update={"files": hashes}), place / "round.json")
            if self.exists and number in self.read().numbers:
                raise SmgError(f"{place}: another process has entered this round meanwhile; start the command again")
            shutil.rmtree(place, ignore_errors=True)  # of a round that was never entered
            os.replace(making, self.round_folder(number))
            sync_folder(making.parent)

    def remove_leftovers(self) -> list[str]:
        """Remove the leftovers of killed processes on any host, and return their names. The caller holds the lock.

        Leftovers are folders of rounds that are incomplete or not in model.json, and temporary files.
        """
        entered = {self.round_folder(number).name for number in (0, *self.read().numbers)}
        rounds = self.folder / "rounds"
        left = [path for path in (rounds.iterdir() if rounds.is_dir() else ()) if path.name not in entered]
        left += [path for path in self.folder.rglob(".*-*-*") if not any(path.is_relative_to(one) for one in left)]
        for path in left:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            sync_folder(path.parent)  # so that no power failure brings slices of patients back
        return sorted(str(path.relative_to(self.folder)) for path in left)

    def read_round(self, number: int) -> RoundRecord:
        """Return a round's record; raise an error if the record is of another round than its folder."""
        path = self.round_folder(number) / "round.json"
        record = read_record(path, RoundRecord, first_format=2)
        if record.round != number:
            raise SmgError(f"{path}: damaged (it is the record of round {record.round}); restore it from a backup")
        self.check_written(path)
        return record

    def read_start(self) -> StartRecord:
        """Return the record of the first weights of a model that was given some."""
        return read_record(self.round_folder(0) / "round.json", StartRecord, first_format=2)

    def files_of(self, number: int) -> dict[str, str]:
        """Return the sha256 of each file of a round, or of the first weights (round 0)."""
        return dict(self.read_round(number).files if number else self.read_start().files)

    def replaced_in(self, number: int) -> dict[str, str]:
        """Return the sha256 that files of a round had before a replacement that did not end."""
        return dict(self.read_round(number).replaced if number else {})

    def _encoded(self, number: int, name: str, tensors: Tensors) -> Iterable[bytes]:
        vault = None if name in READABLE or not tensors else self.vault
        return encoded(tensors, vault, place_of(number, name))

    def check_file(self, number: int, name: str) -> tuple[Path, bool]:
        """Return a round's file and whether its arrays were all removed, after comparing it with the record's hash."""
        path = self.round_folder(number) / f"{name}.safetensors"
        expected = {self.files_of(number).get(path.name), self.replaced_in(number).get(path.name)} - {None}
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SmgError(f"{path}: {error.strerror}") from None
        # A process may have been killed after it removed the arrays and before it wrote the record.
        dropped = name in ("exemplars", "sentinels", "spectra", "state") and found == EMPTY
        if found not in expected and not dropped:
            raise SmgError(f"{path}: cut short or altered since it was written; restore it from a backup")
        return path, found == EMPTY

    def read_tensors(self, number: int, name: str) -> Tensors:
        """Return a round's arrays, memory-mapped or decrypted, after comparing the file with the record's hash."""
        path, is_empty = self.check_file(number, name)
        vault = None if name in READABLE or is_empty else self.vault
        return decoded(path, vault, place_of(number, name))

    def replace_tensors(self, number: int, name: str, tensors: Tensors) -> None:
        """Replace a round's arrays, for example when exemplars are dropped.

        If the process is killed between two writes, the round is either in its old or in its new state: the record has
        both hashes while the file may be either. Without new arrays the old ones are removed first, since an empty
        file needs no hash.
        """
        record, folder, file = self.read_round(number), self.round_folder(number), f"{name}.safetensors"
        pending = record.replaced  # of another file, where a process died
        pieces = self._encoded(number, name, tensors)
        files = record.files | {file: sha256_of_pieces(pieces)}
        try:
            before = sha256_of((folder / file).read_bytes())
        except OSError:  # the file is missing, so only the new hash will be valid
            before = files[file]
        if tensors:
            both = {"files": files, "replaced": pending | {file: before}}
            self._write_record(folder / "round.json", record.model_copy(update=both))
        write_pieces(folder / file, pieces)
        left = {other: found for other, found in pending.items() if other != file}
        self._write_record(folder / "round.json", record.model_copy(update={"files": files, "replaced": left}))

    def replace_record(self, record: RoundRecord) -> None:
        """Put another record in the place of a round's, as when a person is forgotten."""
        self._write_record(self.round_folder(record.round) / "round.json", record)

    # --- the round under way ------------------------------------------------------------------------------------------

    def checkpoint(self, tensors: Tensors, about: CheckpointFacts) -> None:
        """Write a checkpoint and remove the previous one."""
        folder = self.folder / "progress"
        pieces = encoded(tensors, self.vault, CHECKPOINT, {"about": about.model_dump_json()})
        path = folder / f"{sha256_of_pieces(pieces)[:32]}.safetensors"
        with naming(path):
            before = [p for p in folder.glob("*.safetensors") if p != path]
            write_pieces(path, pieces)
            for old in before:
                old.unlink(missing_ok=True)

    def under_way(self) -> CheckpointFacts | None:
        """Return the facts of the checkpoint of the highest iteration, or None; no key is needed."""
        found = self._checkpoint()
        return found[1] if found else None

    def resume(self) -> tuple[Tensors, CheckpointFacts] | None:
        """Return the checkpoint of the highest iteration, or None."""
        found = self._checkpoint()
        if found is None:
            return None
        path, about = found
        return copied(decoded(path, self.vault, CHECKPOINT)), about

    def _checkpoint(self) -> tuple[Path, CheckpointFacts] | None:
        """Return the checkpoint of the highest iteration; raise an error if one is damaged."""
        found = []
        for path in sorted((self.folder / "progress").glob("[!.]*.safetensors")):
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest()[:32] != path.stem:
                    raise SmgError(
                        f"{path}: cut short or altered since it was written; delete it to begin this round again"
                    )
            found.append((path, checkpoint_facts(safetensors_header(path)[1], path)))
        return max(found, key=lambda entry: entry[1].iteration) if found else None

    def forget_progress(self) -> None:
        if (self.folder / "progress").exists():
            shutil.rmtree(self.folder / "progress", ignore_errors=True)
            sync_folder(self.folder)


def _remains(rounds: Path) -> tuple[Path, Path]:
    """Return the folders that the creation of a model makes for its first weights."""
    return rounds / "000", rounds / ".000"


def checkpoint_facts(metadata: dict[str, str], path: Path) -> CheckpointFacts:
    """Return the facts in a checkpoint's metadata."""
    advice = "delete it to begin this round again"
    return parse_record(metadata.get("about", ""), CheckpointFacts, str(path), advice, first_format=2)


def sha256_of(data: bytes) -> str:
    """Return the sha256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
