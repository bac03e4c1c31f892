"""How model.json describes a model's encryption: the identities of its keys, and the data key, wrapped."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from smg.json_records import Record

VERSION: Literal[1] = 1  # of the format: AES-256-GCM in chunks (smg.vault.sealed), HKDF and scrypt
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # of a key
Salt = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
LARGEST = 1 << 30  # bytes of memory that a model may ask for when its passphrase is tried


class ScryptRecord(Record):
    """How a passphrase was turned into a key; the cost is bounded, since a model may come from elsewhere."""

    salt: Salt
    n: int = Field(default=1 << 17, ge=1 << 14, le=1 << 20)
    r: int = Field(default=8, ge=8, le=32)
    p: int = Field(default=1, ge=1, le=4)

    @model_validator(mode="after")
    def _is_affordable(self) -> ScryptRecord:
        if self.n & (self.n - 1) or 128 * self.n * self.r > LARGEST:
            raise ValueError("a cost of scrypt that smg does not use")
        return self


class WrappedKey(Record):
    """A data key, encrypted by a user's key."""

    data: Identity  # of the data key
    user: Identity  # of the wrapping key, by which the right key is recognised
    scrypt: ScryptRecord | None  # None for a key that is no passphrase
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    wrapped: Annotated[str, Field(pattern=r"^[0-9a-f]{96}$")]  # 32 bytes and their tag


class EncryptionRecord(Record):
    """A model's encryption. While all files are encrypted again there are two data keys and two users' keys."""

    version: Literal[1] = VERSION
    model: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # random: binds every file to this model
    current: Identity  # of the data key by which files are written
    keys: tuple[WrappedKey, ...] = Field(min_length=1, max_length=4)
    changing_to: Identity | None = None  # the user's key that stays, while files are encrypted again

    @model_validator(mode="after")
    def _has_its_keys(self) -> EncryptionRecord:
        if not any(one.data == self.current for one in self.keys):
            raise ValueError(f"no wrapped key {self.current}")
        if self.changing_to is not None and not any(one.user == self.changing_to for one in self.keys):
            raise ValueError(f"no key is wrapped by {self.changing_to}")
        return self

    @property
    def users(self) -> tuple[str, ...]:
        """Return the identities of the users' keys that open the model."""
        return tuple(dict.fromkeys(one.user for one in self.keys))
