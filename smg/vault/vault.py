"""A model's data keys, unwrapped: files are sealed by them and opened; the user's key only wraps them.

Every model has a random data key of 32 bytes. model.json holds it encrypted by the user's key (AES-256-GCM; the model's
and both keys' identities are authenticated with it). So a change of the user's key is one write of model.json, and no
file has to be encrypted again unless the old key is known to somebody who should not have it.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.vault.key import LENGTH, MISSING, Key, derived, identity_of
from smg.vault.wrapped_keys import EncryptionRecord, ScryptRecord, WrappedKey


@dataclass(frozen=True, repr=False)
class Vault:
    """The data keys of one model."""

    record: EncryptionRecord  # as in model.json
    keys: Mapping[str, bytes]  # data keys by identity
    _names: bytes = field(init=False)  # the key of names in the cache

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", derived(self.keys[self.record.current], b"", b"smg cache names 1"))

    @classmethod
    def make(cls, key: Key) -> Vault:
        """Return the vault of a new model, with a new data key that the user's key wraps."""
        model, data = secrets.token_hex(16), secrets.token_bytes(LENGTH)
        wrapped = wrap(model, data, _Wrapping.of(key))
        return cls(EncryptionRecord(model=model, current=wrapped.data, keys=(wrapped,)), {wrapped.data: data})

    @property
    def current(self) -> str:
        """Return the identity of the data key by which files are written."""
        return self.record.current

    def file_key(self, data: str, salt: bytes) -> bytes | None:
        """Return the key of one file, by the identity of its data key and its salt; None without that data key."""
        return derived(self.keys[data], salt, b"smg sealed file 1") if data in self.keys else None

    def hidden(self, word: str) -> str:
        """Return a keyed hash of a word: the same for the same word, and telling nothing without the key."""
        return hmac.digest(self._names, word.encode(), "sha256").hex()

    def under(self, key: Key) -> EncryptionRecord:
        """Return the record with the same data key under another user's key alone."""
        wrapped = wrap(self.record.model, self.keys[self.current], _Wrapping.of(key))
        return EncryptionRecord(model=self.record.model, current=self.current, keys=(wrapped,))

    def with_new_data_key(self, old: Key, new: Key) -> Vault:
        """Return the vault while files are encrypted again: both users' keys open both data keys."""
        model, data = self.record.model, secrets.token_bytes(LENGTH)
        keys = {**self.keys, identity_of(data): data}
        (one, *_), another = self.record.keys, _Wrapping.of(new)
        mine = _Wrapping(_wrapping_key(old, one.scrypt), one.scrypt)
        ways = {by.identity: by for by in (mine, another)}.values()
        wrapped = tuple(wrap(model, each, by) for by in ways for each in keys.values())
        changing = EncryptionRecord(model=model, current=identity_of(data), keys=wrapped, changing_to=another.identity)
        return Vault(changing, keys)


@dataclass(frozen=True, repr=False)
class NewModel:
    """The key and the vault of a model that is about to be made."""

    key: Key
    vault: Vault

    @classmethod
    def under(cls, key: Key) -> NewModel:
        """Return a new vault under a user's key."""
        return cls(key, Vault.make(key))


def settled(record: EncryptionRecord) -> EncryptionRecord:
    """Return the record after all files were encrypted again: the new data key under the new user's key."""
    kept = tuple(one for one in record.keys if one.data == record.current and one.user == record.changing_to)
    return EncryptionRecord(model=record.model, current=record.current, keys=kept)


def opened_by(record: EncryptionRecord, key: Key, path: Path) -> Vault | None:
    """Return the vault that a user's key opens; None if it is another key.

    Raises an error that names the record's file, `path`, if the record was altered.
    """
    for user in users_of(record, key):
        keys = {one.data: _unwrapped(record.model, one, key, path) for one in record.keys if one.user == user}
        if record.current not in keys:
            raise SmgError(f"{path}: damaged (its data key is not under this key); restore it from a backup")
        return Vault(record, keys)
    return None


def users_of(record: EncryptionRecord, key: Key) -> tuple[str, ...]:
    """Return the identities by which a record knows a user's key; a passphrase has one for each salt."""
    fitting = [one for one in record.keys if key.is_passphrase == (one.scrypt is not None)]
    return tuple(dict.fromkeys(one.user for one in fitting if _identity(key, one.scrypt) == one.user))


# --- wrapping ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class _Wrapping:
    """A wrapping key, and how it was derived from a passphrase."""

    key: bytes
    scrypt: ScryptRecord | None

    @classmethod
    def of(cls, key: Key) -> _Wrapping:
        """Return a new wrapping key; a passphrase gets a new salt."""
        key.check_new()
        stretched = ScryptRecord(salt=secrets.token_hex(16)) if key.is_passphrase else None
        return cls(_wrapping_key(key, stretched), stretched)

    @property
    def identity(self) -> str:
        return identity_of(self.key)


def wrap(model: str, data: bytes, by: _Wrapping) -> WrappedKey:
    """Return a data key encrypted by a wrapping key."""
    nonce = secrets.token_bytes(12)
    facts: dict[str, Any] = {"data": identity_of(data), "user": by.identity, "scrypt": by.scrypt}
    sealed = aes(by.key).encrypt(nonce, data, _bound_to(model, facts))
    return WrappedKey(**facts, nonce=nonce.hex(), wrapped=sealed.hex())


def _unwrapped(model: str, one: WrappedKey, key: Key, path: Path) -> bytes:
    from cryptography.exceptions import InvalidTag

    facts = {"data": one.data, "user": one.user, "scrypt": one.scrypt}
    try:
        wrapping = aes(_wrapping_key(key, one.scrypt))
        return bytes(wrapping.decrypt(bytes.fromhex(one.nonce), bytes.fromhex(one.wrapped), _bound_to(model, facts)))
    except InvalidTag:
        raise SmgError(f"{path}: its encrypted data key was altered; restore it from a backup") from None


def _bound_to(model: str, facts: dict[str, Any]) -> bytes:
    """Return what is authenticated with a wrapped key."""
    plain = {key: value.model_dump() if isinstance(value, ScryptRecord) else value for key, value in facts.items()}
    return json.dumps(["smg wrapped key 1", model, plain], sort_keys=True).encode()


@lru_cache(maxsize=16)
def _wrapping_key(key: Key, stretched: ScryptRecord | None) -> bytes:
    """Return a wrapping key; remembered, since a passphrase takes a quarter of a second."""
    return key.wrapping_key(stretched)


def _identity(key: Key, stretched: ScryptRecord | None) -> str:
    return identity_of(_wrapping_key(key, stretched))


def aes(key: bytes) -> Any:
    """Return AES-GCM under a key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise SmgError(MISSING) from None
    return AESGCM(key)
