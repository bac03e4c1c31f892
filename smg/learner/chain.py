"""Chain the journal's lines by hashes, so that a change of a model's history or records is detected.

Each line has the sha256 of the line before it (`previous`). Before model.json or a round.json is written, a `wrote`
line records the hash that the file will have. The records in turn have the hash of every file of arrays. So to change a
file or a line unnoticed, every later line has to be written again. Where lines are signed (`SMG_SIGNING_KEY`, an
ed25519 key stored outside the model), this is impossible without the key.

A process that is killed between a `wrote` line and its file leaves the old file in place, so the earlier hash is valid
too. The next process that writes records in another `wrote` line which file is there. After any other event only the
last hash is valid. Lines written before the chain was introduced have no `previous`; the first line that has one
covers all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.errors import SmgError

WROTE = "wrote"  # the event of a file that is about to be written
SIGNING_KEY = "SMG_SIGNING_KEY"  # the environment variable that names a file with an ed25519 private key (PEM)


@dataclass(frozen=True)
class Link:
    """One complete line of the journal."""

    number: int  # in the file, from 1
    content: dict[str, Any]
    sha256: str  # of the line's bytes


def read_chain(path: Path) -> list[Link]:
    """Return the complete lines of a journal, without a line that a crash has cut short."""
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    links = []
    for number, raw in enumerate(whole.split(b"\n"), start=1):
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):  # cut short, or nested deeper than any line of ours
            continue
        if isinstance(content, dict):
            links.append(Link(number, content, hashlib.sha256(raw).hexdigest()))
    return links


def next_line(chain: Sequence[Link], content: dict[str, Any], **hashes: str) -> dict[str, Any]:
    """Return the line to append to a chain, signed if there is a key."""
    line = {"previous": chain[-1].sha256 if chain else "", **hashes, **content}
    if path := os.environ.get(SIGNING_KEY):
        key = _private_key(Path(path))
        line["signature"] = key.sign(_signed_bytes(line)).hex()
    return line


def hashes_of(chain: Sequence[Link]) -> dict[str, tuple[str, ...]]:
    """Return the valid hashes of each recorded file: the last one written, and earlier ones that may still be in place.

    A file's name is relative to the model's folder. An empty hash means that the file may be missing.
    """
    found: dict[str, tuple[str, ...]] = {}
    for link in chain:
        if link.content.get("event") == WROTE:
            name = str(link.content.get("file"))
            found[name] = (str(link.content.get("sha256")), *found.get(name, ("",)))
        else:
            found = {name: hashes[:1] for name, hashes in found.items()}
    return found


def broken_links(chain: Sequence[Link]) -> list[str]:
    """Return the places where a line does not follow the one before it."""
    faults, begun = [], False
    for before, link in zip([None, *chain], chain, strict=False):
        if "previous" not in link.content:
            if begun:
                faults.append(f"line {link.number} has no link to the line before it")
            continue
        begun = True
        if link.content["previous"] != (before.sha256 if before else ""):
            faults.append(
                f"line {link.number} does not follow the line before it: a line was changed, added or removed"
            )
    return faults


def bad_signatures(chain: Sequence[Link], public_key: Path) -> list[str]:
    """Return the faults of signatures by a key; from the first signed line on, every line must be signed."""
    from cryptography.exceptions import InvalidSignature

    key, faults, begun = _public_key(public_key), [], False
    for link in chain:
        signature = link.content.get("signature")
        if signature is None:
            if begun:
                faults.append(f"line {link.number} is not signed")
            continue
        begun = True
        try:
            key.verify(bytes.fromhex(str(signature)), _signed_bytes(link.content))
        except (InvalidSignature, ValueError):
            faults.append(f"line {link.number} is not signed by this key")
    return faults if begun else ["no line is signed"]


def _signed_bytes(line: dict[str, Any]) -> bytes:
    return json.dumps({key: value for key, value in line.items() if key != "signature"}, sort_keys=True).encode()


def _private_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; {SIGNING_KEY} names the key that signs the journal") from None
    except (ValueError, TypeError):
        raise SmgError(f"{path}: not a private key in PEM; give a PEM file without a passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SmgError(f"{path}: not an ed25519 key; `openssl genpkey -algorithm ed25519` makes one")
    return key


def _public_key(path: Path) -> Any:
    """Return the public key in a file, or the public half of a private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        data = path.read_bytes()
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    if b"PRIVATE KEY" in data:
        return _private_key(path).public_key()
    try:
        key = load_pem_public_key(data)
    except ValueError:
        raise SmgError(f"{path}: not a public key in PEM; give the file of the signer's public key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SmgError(f"{path}: not an ed25519 key; make one with `openssl genpkey -algorithm ed25519`")
    return key
