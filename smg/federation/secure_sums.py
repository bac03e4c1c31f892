"""Secure sums: each hospital adds masks that cancel in the sum over hospitals, so that only the sum can be read.

Two hospitals i < j agree on a key by X25519. For query q of exchange e, i adds and j subtracts the same stream of
AES-CTR under that key:

    y_i = round(2^40 x_i) + Σ_{j > i} m_ij(e, q) - Σ_{j < i} m_ji(e, q)   mod 2^64,      Σ y_i = Σ round(2^40 x_i)

Keys last as long as a greeting, within which other keys are refused and the same ones change nothing. The number of an
exchange is used once: a hospital refuses a number that is not above the last one, unless the identical question is
repeated, which gets the identical answer.

With masks the incoming hospital cannot see the contribution of a single hospital if two or more have rows in a query.
With one other hospital nothing is hidden. Masks protect against an incoming hospital that reads the messages, not
against one that distributes keys of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from torch import Tensor

from smg.federation.transport import Refused

SCALE = 2.0**40
LARGEST = 2.0**20  # of a summed gradient's entries: far above what trains, far below where sums wrap


class Masks:
    """The keys of one hospital in a session."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self._given: dict[str, str] = {}  # the public keys of the session
        self._keys: dict[str, tuple[bytes, int]] = {}  # peer -> key and sign
        self._last = -1

    @property
    def public(self) -> str:
        """Return the public key, in hexadecimal."""
        return self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def agree(self, own: str, keys: Mapping[str, str]) -> None:
        """Derive a key with each other hospital of the session."""
        if keys.get(own) != self.public:
            raise Refused("keys of another session were sent; greet the hospital again")
        if len(keys) < 2:
            raise Refused("secure sums need two hospitals that answer; go on without --secure-sums")
        if self._given:
            if self._given != dict(keys):
                raise Refused("other keys were sent within a session; greet the hospital again")
            return  # sent again: masks that were used stay used
        derived = {}
        for peer, public in sorted(keys.items()):
            if peer != own:
                shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
                info = "/".join(["smg secure sum", *sorted((own, peer))]).encode()
                key = HKDF(SHA256(), 32, salt=None, info=info).derive(shared)
                derived[peer] = key, 1 if own < peer else -1
        self._given, self._keys = dict(keys), derived  # only once every key could be read

    def use(self, exchange: int) -> None:
        """Refuse an exchange whose masks may have been used."""
        if not self._keys:
            raise Refused("a secure sum was asked for before keys were sent; greet the hospital again")
        if exchange <= self._last:
            raise Refused("an exchange's masks were asked for twice; greet the hospital again")
        self._last = exchange

    def masked(self, values: Tensor, exchange: int, query: int) -> Tensor:
        """Return values as fixed-point numbers under this hospital's masks."""
        if not bool(values.isfinite().all()) or float(values.abs().max()) > LARGEST:
            raise Refused("a gradient is too large for a secure sum; a lower rate may help")
        total = fixed(values).numpy().view(np.uint64).copy()
        for key, sign in self._keys.values():
            stream = _stream(key, exchange, query, len(total))
            total = total + stream if sign > 0 else total - stream
        return torch.from_numpy(total.view(np.int64))


def fixed(values: Tensor) -> Tensor:
    """Return numbers as int64 in units of 2^-40."""
    return (values.detach().cpu().double() * SCALE).round().to(torch.int64)


def opened(masked: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the sum of all hospitals' masked values."""
    total = np.zeros(masked[0].numel(), np.uint64)
    for one in masked:
        total += one.numpy().view(np.uint64)
    return torch.from_numpy(total.view(np.int64).astype(np.float64) / SCALE).to(like)


def _stream(key: bytes, exchange: int, query: int, length: int) -> np.ndarray:
    nonce = exchange.to_bytes(8, "big") + query.to_bytes(2, "big") + bytes(6)  # 2^48 blocks of counter are left
    encryptor = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), np.uint64)
