"""Which key is at hand for a model: given on the call, in the environment, or asked for on the terminal.

    --key-file FILE, SMG_KEY_FILE   a file of 32 random bytes
    SMG_KEY                         the key itself, in hexadecimal or base64
    SMG_PASSPHRASE                  a passphrase

A model names the identities of the keys that open it, so the right one among several is recognised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from smg.errors import Misuse, SmgError
from smg.vault.key import Key
from smg.vault.vault import Vault, opened_by
from smg.vault.wrapped_keys import EncryptionRecord

KEY_FILE, KEY, PASSPHRASE = "SMG_KEY_FILE", "SMG_KEY", "SMG_PASSPHRASE"
GIVE = f"give --key-file FILE, or set {KEY_FILE}, {KEY} or {PASSPHRASE}"
_given: list[Key] = []  # by the words of this call
_ask: list[Callable[[str], str]] = []  # asks for a passphrase, where there is a terminal
_answered: list[Key] = []  # passphrases that were asked for


def begin_call(ask: Callable[[str], str] | None = None) -> None:
    """Forget the keys of the call before; `ask` asks the user for a passphrase, if there is a terminal."""
    for one in (_given, _ask, _answered):
        one.clear()
    if ask is not None:
        _ask.append(ask)


def use(key: Key) -> None:
    """Use a key that was given on this call, and no other."""
    _given[:] = [key]


def given() -> Key | None:
    """Return the key that was given on this call."""
    return _given[0] if _given else None


def in_environment(before: str = "SMG_") -> list[Key]:
    """Return the keys that environment variables name or hold."""
    found, variables = [], os.environ
    if path := variables.get(f"{before}KEY_FILE"):
        found.append(Key.from_file(Path(path)))
    if text := variables.get(f"{before}KEY"):
        found.append(Key.from_text(text, f"{before}KEY"))
    if words := variables.get(f"{before}PASSPHRASE"):
        found.append(Key.from_passphrase(words, f"{before}PASSPHRASE"))
    return found


def open_vault(record: EncryptionRecord, folder: Path, key: Key | None = None) -> Vault:
    """Return a model's vault, opened by `key` or by a key at hand; raise an error that says which key is missing."""
    return found_for(record, folder, key)[0]


def found_for(record: EncryptionRecord, folder: Path, key: Key | None = None) -> tuple[Vault, Key]:
    """Return a model's vault, and the key that opens it."""
    at_hand = [key] if key else _given or [*in_environment(), *_answered]
    for one in at_hand:
        if vault := opened_by(record, one, folder / "model.json"):
            return vault, one
    wanted = " or ".join(record.users)
    asks_for_words = any(one.scrypt for one in record.keys)
    if not at_hand and asks_for_words and _ask:
        _answered.append(Key.from_passphrase(_ask[0](f"Passphrase of {folder}: ")))
        return found_for(record, folder)
    if not at_hand:
        kind = "a passphrase" if asks_for_words else f"key {wanted}"
        raise SmgError(f"{folder}: encrypted, and {kind} is needed for what it keeps of patients; {GIVE}")
    sources = ", ".join(one.source for one in at_hand)
    raise SmgError(f"{folder}: not encrypted by this key ({sources}), but by key {wanted}; {GIVE}")


def new_key(folder: Path, path: Path | None, before: str = "SMG_", option: str = "--key-file") -> tuple[Key, bool]:
    """Return the key for a new model or a change of key, and whether its file was made just now.

    It is in the file at `path`, which is made if there is none, in the environment, or a passphrase that is asked for.
    """
    made = False
    if path is not None:
        refuse_inside(folder, path)
        made = not path.exists()
        key = Key.make_file(path) if made else Key.from_file(path)
    elif found := in_environment(before):
        if named := os.environ.get(f"{before}KEY_FILE"):
            refuse_inside(folder, Path(named))
        key = found[0]
    elif _ask:
        words = _ask[0](f"New passphrase of {folder}: ")
        if _ask[0]("The same again: ") != words:
            raise SmgError("the two passphrases differ; nothing was done")
        key = Key.from_passphrase(words)
    else:
        raise Misuse(
            f"{folder}: no key; give {option} FILE (a new file gets a new key), or set {before}KEY_FILE, "
            f"{before}KEY or {before}PASSPHRASE"
        )
    key.check_new()
    return key, made


def refuse_inside(folder: Path, path: Path) -> None:
    """Refuse a key that lies in the model's folder: who takes the folder would have it."""
    if path.resolve().is_relative_to(folder.resolve()):
        raise Misuse(f"{path}: the key must not lie in the model's folder; give a file elsewhere")
