"""The format of an encrypted file: a safetensors file whose one array is the ciphertext of another one.

    header      safetensors' own, JSON; its metadata are readable without the key, and authenticated
        sealed      version, model, data key, place, salt, size, and facts that may be public (counts, sizes)
        about       of a checkpoint: its facts
    sealed      the ciphertext, in chunks of 64 KiB, each with a tag of 16 bytes

Each file has a key of its own, derived from the model's data key and a random salt of 32 bytes (HKDF). A chunk is
encrypted by AES-256-GCM; its nonce is its number and a mark on the last one, as in age and Tink, so that chunks cannot
be swapped, left out or cut off. The hash of the whole header is authenticated with each chunk; it names the model and
the place (`rounds/003/exemplars`), so a file cannot stand in for another one. A reader decrypts only the chunks that it
needs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smg.errors import SmgError
from smg.vault.vault import Vault, aes
from smg.vault.wrapped_keys import VERSION

CHUNK, TAG, SALT = 1 << 16, 16, 32  # bytes
NAME = "sealed"  # of the metadata and of the array
Facts = Mapping[str, int | str]
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, repr=False)
class Sealing:
    """A file that is to be written encrypted: an iterable of its pieces, the same each time."""

    vault: Vault
    place: str
    plain: Buffer
    facts: Facts = field(default_factory=dict)  # readable without the key
    metadata: Mapping[str, str] = field(default_factory=dict)  # readable without the key too
    _salt: bytes = field(default_factory=lambda: os.urandom(SALT))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the header, then chunk after chunk."""
        header = self._header()
        yield header
        key = self.vault.file_key(self.vault.current, self._salt)
        assert key is not None
        cipher, bound, plain = aes(key), hashlib.sha256(header).digest(), memoryview(self.plain)
        count = _chunks(len(plain))
        for number in range(count):
            part = plain[number * CHUNK : (number + 1) * CHUNK]
            yield cipher.encrypt(_nonce(number, count), part, bound)

    def _header(self) -> bytes:
        """Return the file's header, with the length before it."""
        size = len(self.plain)
        about = {
            "version": VERSION,
            "model": self.vault.record.model,
            "key": self.vault.current,
            "place": self.place,
            "salt": self._salt.hex(),
            "size": size,
            "facts": dict(self.facts),
        }
        length = _sealed_size(size)
        head = {
            "__metadata__": {**self.metadata, NAME: json.dumps(about, sort_keys=True)},
            NAME: {"dtype": "U8", "shape": [length], "data_offsets": [0, length]},
        }
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def facts_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the public facts of an encrypted file, from its metadata; None if the file is not encrypted."""
    if NAME not in metadata:
        return None
    try:
        facts = json.loads(metadata[NAME])["facts"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("no header of an encrypted file") from None
    if not isinstance(facts, dict):
        raise ValueError("no header of an encrypted file")
    return facts


def data_key_of(metadata: Mapping[str, str]) -> str | None:
    """Return the identity of the data key that an encrypted file names; None if the file is not encrypted."""
    try:
        return str(json.loads(metadata[NAME])["key"]) if NAME in metadata else None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("no header of an encrypted file") from None


class Sealed:
    """An encrypted file that is open for reading; only the chunks that are read are decrypted."""

    def __init__(self, data: Buffer, vault: Vault, place: str, name: str) -> None:
        """Check the header of a file; `place` is where it is found, `name` how messages call it."""
        self.name, self._data = name, memoryview(data)
        length = int.from_bytes(self._data[:8], "little")
        try:
            if length + 8 > len(self._data):
                raise ValueError
            header = bytes(self._data[: 8 + length])
            about = json.loads(json.loads(header[8:])["__metadata__"][NAME])
            version, self.size, salt = about["version"], about["size"], about["salt"]
            if type(version) is not int or type(self.size) is not int or not re.fullmatch("[0-9a-f]{64}", salt):
                raise ValueError
            named = about["model"], about["place"], about["key"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SmgError(f"{name}: not an encrypted file of smg, or damaged; restore it from a backup") from None
        if version > VERSION:
            raise SmgError(f"{name}: encrypted by a newer version of smg (format {version}); update smg to use it")
        if named[0] != vault.record.model:
            raise SmgError(f"{name}: encrypted for another model; restore this model's own file from a backup")
        if named[1] != place:
            raise SmgError(f"{name}: encrypted as {named[1]!r} and moved here; restore the file from a backup")
        key = vault.file_key(str(named[2]), bytes.fromhex(salt))
        if key is None:
            raise SmgError(f"{name}: encrypted by a data key ({named[2]!r}) that the model does not have; restore it "
                           "from a backup")  # fmt: skip
        self._begin = 8 + length
        if self.size < 0 or len(self._data) != self._begin + _sealed_size(self.size):
            raise SmgError(f"{name}: cut short or altered since it was encrypted; restore it from a backup")
        self._cipher, self._bound = aes(key), hashlib.sha256(header).digest()

    def read(self, start: int = 0, stop: int | None = None) -> bytearray:
        """Return the bytes from `start` to `stop`, decrypted; raise an error if one of their chunks was altered."""
        stop = self.size if stop is None else min(stop, self.size)
        found = bytearray(max(0, stop - start))
        first, last = start // CHUNK, max(start, stop - 1) // CHUNK
        for number in range(first, last + 1):
            chunk = memoryview(self._chunk(number))
            at = number * CHUNK
            part = chunk[max(0, start - at) : max(0, stop - at)]
            place = max(0, at - start)
            found[place : place + len(part)] = part
        return found

    def verify(self) -> None:
        """Decrypt every chunk and keep none; raise an error if one was altered."""
        for number in range(_chunks(self.size)):
            self._chunk(number)

    def _chunk(self, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        at = self._begin + number * (CHUNK + TAG)
        end = min(at + CHUNK + TAG, len(self._data))
        try:
            return bytes(self._cipher.decrypt(_nonce(number, _chunks(self.size)), self._data[at:end], self._bound))
        except InvalidTag:
            raise SmgError(f"{self.name}: altered since it was encrypted; restore it from a backup") from None


def _chunks(size: int) -> int:
    """Return the number of chunks; an empty file has one, so that it is authenticated too."""
    return max(1, math.ceil(size / CHUNK))


def _sealed_size(size: int) -> int:
    return size + TAG * _chunks(size)


def _nonce(number: int, count: int) -> bytes:
    """Return a chunk's nonce: 11 bytes of its number, and 1 on the last chunk. Every file has a key of its own."""
    return number.to_bytes(11, "big") + bytes([number == count - 1])
