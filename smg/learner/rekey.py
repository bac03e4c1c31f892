"""Change the key of an encrypted model.

The user's key only wraps the data key, so a change is one write of model.json: before it the old key opens the model,
after it the new one. Who has had both the old key and the folder could have kept the data key; against that, all files
are encrypted again by a new data key:

1. model.json gets the new data key, and both data keys under both users' keys: either opens everything.
2. File after file is encrypted again and put in the place of the old one (`Store.replace_tensors`).
3. model.json keeps the new data key under the new user's key alone.

A process that is killed on the way leaves a model that both keys open; the same command goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from smg.errors import SmgError
from smg.files import safetensors_header
from smg.learner.forget import refuse_under_way
from smg.learner.history import History
from smg.learner.records import JournalLine
from smg.learner.sealing import READABLE
from smg.learner.store import Store
from smg.learner.undo import unfinished
from smg.prepare.encrypted import remove_encrypted
from smg.vault.key import Key
from smg.vault.keyring import found_for
from smg.vault.sealed import data_key_of
from smg.vault.vault import Vault, opened_by, settled, users_of
from smg.vault.wrapped_keys import EncryptionRecord

BEGUN, EVENT = "changing the key", "changed the key"  # events before files are encrypted again, and after


@dataclass(frozen=True)
class Changed:
    """What a change of key did."""

    key: str  # identity of the user's key that opens the model now
    files: int  # that were encrypted again


def change_key(history: History, new: Key, again: bool = False) -> Changed:
    """Put a model under another user's key, and return what was done; `again` also encrypts every file again.

    The model is opened by its store's key or the one at hand. A change that was interrupted is finished, if it was to
    the same key.
    """
    store = history.store
    with store.locked():
        history.reload()
        record = encryption_of(history)
        path = store.folder / "model.json"
        already = opened_by(record, new, path)
        if already and record.changing_to in users_of(record, new):
            return _encrypt_again(history, already, new)
        if record.changing_to is not None:
            raise SmgError(
                f"{store.folder}: a change to another key ({record.changing_to}) was interrupted; give that key to "
                "finish it first"
            )
        try:
            vault, old = found_for(record, store.folder, store.key)
        except SmgError:
            if already is None:
                raise
            return _noted(store, record, 0)  # the change was made, and the old key opens nothing any more
        if again:
            refuse_under_way(history)
            changing = vault.with_new_data_key(old, new)
            store.write(history.model.model_copy(update={"encryption": changing.record}))
            return _encrypt_again(history, changing, new)
        changed = record if already else vault.under(new)
        if not already:
            store.write(history.model.model_copy(update={"encryption": changed}))
        store.key = new
        history.reload()
        return _noted(store, changed, 0)


def encryption_of(history: History) -> EncryptionRecord:
    """Return a model's encryption; raise an error if it has none."""
    record = history.model.encryption
    if record is None:
        raise SmgError(f"{history.store.folder}: not encrypted; a new model is, by `smg init MODEL --encrypt`")
    return record


def _encrypt_again(history: History, vault: Vault, new: Key) -> Changed:
    """Encrypt every file by the current data key, then leave the old keys out of model.json."""
    store = history.store
    store.key = new
    history.reload()
    todo = [
        (number, name)
        for number in history.model.numbers
        for name in [file.removesuffix(".safetensors") for file in store.files_of(number)]
        if name not in READABLE and _is_to_be_done(store, number, name, vault.current)
    ]
    user = encryption_of(history).changing_to or ""
    begun = unfinished(store.journal(), BEGUN, EVENT, key=user)
    count = _files_of(begun) if begun else len(todo)
    if begun is None:
        store.note(BEGUN, key=user, files=count)
    for number, name in todo:
        store.replace_tensors(number, name, store.read_tensors(number, name))
    store.remove_leftovers()
    record = encryption_of(history)
    left = settled(record)
    for data in {one.data for one in record.keys} - {left.current}:
        remove_encrypted(data)  # before the last write, after which nothing names them
    store.write(history.model.model_copy(update={"encryption": left}))
    history.reload()
    return _noted(store, left, count)


def _is_to_be_done(store: Store, number: int, name: str, data_key: str) -> bool:
    """Return whether a file is still under an old data key, or its replacement was interrupted."""
    path, is_empty = store.check_file(number, name)
    try:
        by = data_key_of(safetensors_header(path)[1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: damaged; restore it from a backup") from None
    return not is_empty and (by != data_key or path.name in store.replaced_in(number))


def _files_of(line: JournalLine) -> int:
    """Return the number of files that a line on a change of key tells."""
    files = line.details().get("files")
    return files if isinstance(files, int) else 0


def _noted(store: Store, record: EncryptionRecord, files: int) -> Changed:
    """Note the change in the journal, unless its last line on keys says so already, and return it."""
    (user,) = record.users
    files = _files_of(begun) if (begun := unfinished(store.journal(), BEGUN, EVENT, key=user)) else files
    said = [line.details().get("key") for line in store.journal() if line.event in ("created", EVENT)]
    if files or user not in said[-1:]:
        store.note(EVENT, key=user, files=files)
    return Changed(user, files)
