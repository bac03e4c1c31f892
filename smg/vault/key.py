"""The user's key, which is stored outside every model: 32 random bytes in a file or a variable, or a passphrase.

A model's data key is wrapped by a key that is derived from the user's. From random bytes it is derived at once (HKDF);
from a passphrase by scrypt, whose salt and cost stand in the model (`smg.vault.wrapped_keys`), so that every guess
costs a quarter of a second and 128 MiB.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from smg.errors import SmgError
from smg.files import make_folder, naming, placing, sync_folder
from smg.vault.wrapped_keys import ScryptRecord

LENGTH = 32  # bytes of a key
LEAST = 12  # characters of a new passphrase
HOW = "32 random bytes, as they are or in hexadecimal or base64"
MISSING = "encryption needs the package cryptography: pip install 'smg-learning[vault]'"


@dataclass(frozen=True, repr=False)
class Key:
    """A user's key: random bytes, or a passphrase.

    smg.Key.from_file("/safe/model.key")
    smg.Key.from_passphrase("nine words that nobody else would think of")
    """

    secret: bytes
    is_passphrase: bool
    source: str  # for messages: where the key came from

    def __repr__(self) -> str:
        return f"Key({self.source})"

    @classmethod
    def from_file(cls, path: str | Path) -> Key:
        """Read a key from a file: 32 random bytes, as they are or in hexadecimal or base64."""
        try:
            with Path(path).open("rb") as file:
                data = file.read(1024)
        except OSError as error:
            raise SmgError(f"{path}: {error.strerror}; it is to hold a key ({HOW})") from None
        if len(data) == LENGTH:
            return cls(data, False, str(path))
        return cls(_parsed(data.decode("ascii", "replace"), str(path)), False, str(path))

    @classmethod
    def from_text(cls, text: str, source: str = "the key") -> Key:
        """Return the key that a text spells in hexadecimal or base64."""
        return cls(_parsed(text, source), False, source)

    @classmethod
    def from_passphrase(cls, words: str, source: str = "the passphrase") -> Key:
        """Return a passphrase as a key."""
        plain = unicodedata.normalize("NFC", words)
        if not plain:
            raise SmgError(f"{source}: it is empty; give a passphrase")
        return cls(plain.encode(), True, source)

    @classmethod
    def make_file(cls, path: str | Path) -> Key:
        """Write a new random key to a file that is readable by its owner alone, and return the key."""
        path = Path(path)
        with naming(path):
            make_folder(path.parent)
            with placing(path, is_good=lambda there: True) as temporary:
                temporary.chmod(0o600)
                temporary.write_bytes(secrets.token_bytes(LENGTH))
                with temporary.open("rb+") as file:  # what is encrypted by it must never outlive it
                    os.fsync(file.fileno())
            sync_folder(path.parent)
        return cls.from_file(path)

    def check_new(self) -> None:
        """Raise an error if the key is a passphrase too short to protect anything new."""
        if self.is_passphrase and len(self.secret.decode()) < LEAST:
            raise SmgError(f"{self.source}: too short; a new passphrase has {LEAST} characters or more")

    def wrapping_key(self, stretched: ScryptRecord | None) -> bytes:
        """Return the key that wraps a data key; `stretched` says how a passphrase is turned into one."""
        if stretched is None:
            return derived(self.secret, b"", b"smg wrapping key 1")
        try:
            from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
        except ImportError:
            raise SmgError(MISSING) from None
        salt, cost = bytes.fromhex(stretched.salt), stretched
        return Scrypt(salt=salt, length=LENGTH, n=cost.n, r=cost.r, p=cost.p).derive(self.secret)


def derived(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes derived from another one for one purpose (HKDF with SHA-256)."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise SmgError(MISSING) from None
    return HKDF(algorithm=SHA256(), length=LENGTH, salt=salt, info=purpose).derive(key)


def identity_of(key: bytes) -> str:
    """Return the identity of a key, by which it is recognised and from which it cannot be computed."""
    return hmac.digest(key, b"identity", "sha256").hex()[:16]


def _parsed(text: str, source: str) -> bytes:
    """Return the 32 bytes that a text spells."""
    word = text.strip()
    if re.fullmatch(r"[0-9a-fA-F]{64}", word):
        return bytes.fromhex(word)
    try:
        found = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != LENGTH:
        raise SmgError(f"{source}: not a key ({HOW}); `openssl rand -hex 32` makes one")
    return found
