"""Pseudonyms of subjects and hashes of scans, keyed with a secret that is stored outside every model.

A plain hash of a case number can be reversed by trying all case numbers, and a plain hash of a scan by anyone who has
the scan. With HMAC and a secret of the hospital nobody else can try. The secret is a file of random bytes that is
created when a round first needs it. `SMG_SECRET` names the file; the default is `smg/secret` in the user's data folder
(XDG_DATA_HOME). No command copies or exports the secret. A record holds the key's identity, a hash of the secret, which
shows the key that made its pseudonyms. Older records have plain hashes, which are still recognised.

Splits and weights do not depend on the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from smg.errors import SmgError
from smg.files import make_folder, placing, remove_temporaries
from smg.prepare.cache import Prepared

LENGTH = 32  # bytes of a secret


@dataclass(frozen=True)
class Pseudonyms:
    """Pseudonyms of subjects and hashes of scans under one key; without a key, the plain hashes of older models."""

    key: bytes | None

    @property
    def identity(self) -> str | None:
        """Return the identity of the key, for a record."""
        return None if self.key is None else hmac.digest(self.key, b"identity", "sha256").hex()[:16]

    def subject(self, seed: int, site: str, case: str) -> str:
        """Return a subject's pseudonym."""
        words = f"alias/{seed}/{site}/{case}".encode("utf-8", "surrogateescape")
        if self.key is None:
            return hashlib.sha256(words).hexdigest()[:8]
        return hmac.digest(self.key, words, "sha256").hex()[:16]

    def scans(self, scan: Prepared) -> tuple[str, str]:
        """Return two hashes that re-identify a scan: of its voxels as stored, and as axial slices."""
        return self.hashes(scan.content, scan.turned)

    def hashes(self, content: str, turned: str) -> tuple[str, str]:
        """Return the two keyed hashes of a scan from the plain hashes of its voxels."""
        if self.key is None:
            return content[:16], turned[:16]
        found = (hmac.digest(self.key, f"scan/{one}".encode(), "sha256").hex()[:16] for one in (content, turned))
        return next(found), next(found)


def own_pseudonyms() -> Pseudonyms:
    """Return the pseudonyms of this hospital; create its secret if there is none."""
    path = secret_file()
    remove_temporaries(path.parent, path.name)  # a copy of the secret that a process left when it died
    if not path.exists():
        try:
            _make_secret(path)
        except OSError as error:
            raise SmgError(
                f"{path}: the secret of pseudonyms cannot be made ({error.strerror}); let SMG_SECRET name a file in a "
                "folder that can be written"
            ) from None
    return Pseudonyms(_read(path))


def _make_secret(path: Path) -> None:
    make_folder(path.parent)
    with placing(path, is_good=lambda there: there.stat().st_size == LENGTH, durable=True) as temporary:
        temporary.chmod(0o600)
        temporary.write_bytes(secrets.token_bytes(LENGTH))


def pseudonyms_of(identity: str | None) -> Pseudonyms | None:
    """Return the pseudonyms that a record was made with, by its key's identity; None if the key is not here."""
    if identity is None:
        return Pseudonyms(None)
    path = secret_file()
    own = Pseudonyms(_read(path)) if path.exists() else None
    return own if own and own.identity == identity else None


def secret_file() -> Path:
    """Return the path of the secret."""
    default = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "smg" / "secret"
    return Path(os.environ.get("SMG_SECRET") or default)


def _read(path: Path) -> bytes:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; it is the secret of pseudonyms (SMG_SECRET)") from None
    if len(found) < LENGTH:
        raise SmgError(f"{path}: too short for a secret of pseudonyms ({LENGTH} bytes); restore it from a backup")
    return found
