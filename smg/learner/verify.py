"""Check every file of a model against its records, and the records against the journal's chain; offline, no torch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from smg.errors import SmgError
from smg.learner.chain import bad_signatures, broken_links, hashes_of, read_chain
from smg.learner.store import EMPTY, PLAN, Store

LEFT_OUT = ("lock",)  # written by every command, and of no meaning afterwards
CHECKPOINT = re.compile(r"progress/([0-9a-f]{32})\.safetensors")


@dataclass(frozen=True)
class Verified:
    """The result of a check: each fault names a file."""

    files: int  # files that are unchanged
    lines: int  # of the journal
    faults: tuple[str, ...]
    uncovered: tuple[str, ...]  # files without a recorded hash: of an older version, or not written by smg


def verify(folder: Path, public_key: Path | None = None) -> Verified:
    """Return the faults of a model's folder; with a key, check also that it has signed the journal's lines."""
    store = Store(folder)
    store.check_folder()
    chain = read_chain(folder / "journal.jsonl")
    faults = [f"journal.jsonl: {fault}" for fault in broken_links(chain)]
    if public_key is not None:
        faults += [f"journal.jsonl: {fault}" for fault in bad_signatures(chain, public_key)]
    expected = hashes_of(chain)
    there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    uncovered = [name for name in there if name.startswith("rounds/.")]  # a round that was being written
    there, good = [name for name in there if name not in uncovered], 0
    arrays: dict[str, set[str]] = {}
    for name in there:
        if name.endswith("round.json") or name == "model.json" or (name == PLAN and name in expected):
            found = _sha256(folder / name)
            if name not in expected:
                uncovered.append(name)
            elif found not in expected[name]:
                faults.append(f"{name}: differs from the hash in the journal")
            else:
                good += 1
            if name.endswith("round.json"):
                arrays |= _arrays_of(store, Path(name), faults)
    missing = [
        name for name, hashes in expected.items() if name not in there and "" not in hashes and _entered(store, name)
    ]
    faults += [f"{name}: missing" for name in [*missing, *(name for name in arrays if name not in there)]]
    for name in there:
        if name in arrays:
            if (found := _sha256(folder / name)) in arrays[name] or found == EMPTY:
                good += 1
            else:
                faults.append(f"{name}: differs from what its round's record says")
        elif checkpoint := CHECKPOINT.fullmatch(name):
            if _sha256(folder / name)[:32] == checkpoint[1]:
                good += 1
            else:
                faults.append(f"{name}: differs from the hash that is its name")
        elif name not in ("journal.jsonl", *LEFT_OUT, *expected) and not name.endswith(("round.json", "model.json")):
            uncovered.append(name)
    return Verified(good, len(chain), tuple(faults), tuple(uncovered))


def _entered(store: Store, name: str) -> bool:
    """Return whether a record is one that the model needs: its own, or that of a round in its list."""
    try:
        rounds = [f"rounds/{number:03d}/round.json" for number in store.read().numbers]
    except SmgError:
        return True
    return name in ("model.json", "rounds/000/round.json", *rounds)


def _arrays_of(store: Store, record: Path, faults: list[str]) -> dict[str, set[str]]:
    """Return the valid hashes of the files beside a record."""
    try:
        number = int(record.parent.name)
        files, replaced = store.files_of(number), store.replaced_in(number)
    except (SmgError, ValueError) as error:
        faults.append(f"{record}: its files cannot be checked ({error})")
        return {}
    return {
        str(record.with_name(name)): {sha256, *([replaced[name]] if name in replaced else [])}
        for name, sha256 in files.items()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
