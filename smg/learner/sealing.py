"""The arrays of a model's files as bytes, encrypted if the model is: every file but the weights.

Weights stay readable, since prediction needs no patient. Exemplars, sentinels and spectra are of patients; a method's
state, the optimiser's moments and checkpoints may be. A file without arrays has nothing to encrypt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.errors import SmgError
from smg.files import naming, replacing, safetensors_header
from smg.learner.shared_tensors import metadata_of, stored_once, under_all_names
from smg.vault.sealed import Sealed, Sealing, facts_of

if TYPE_CHECKING:
    from torch import Tensor

    from smg.vault.vault import Vault

READABLE = ("weights",)  # files of an encrypted model that are not encrypted
CHECKPOINT = "progress"  # the place of a checkpoint, whose round is in its authenticated metadata


@dataclass(frozen=True)
class FileFacts:
    """What a file of arrays holds, as far as it is known without a key."""

    subjects: int  # prepared subjects
    rows: int  # along the first axis of all arrays: of spectra, slices
    bytes: int
    encrypted: bool


def place_of(number: int, name: str) -> str:
    """Return the place that an encrypted file of a round is bound to."""
    return f"rounds/{number:03d}/{name}"


def encoded(
    tensors: Mapping[str, Tensor], vault: Vault | None, place: str, about: Mapping[str, str] | None = None
) -> Iterable[bytes]:
    """Return a file's bytes in pieces, the same each time; encrypted if there is a vault and anything to encrypt.

    `about` are metadata that stay readable.
    """
    from safetensors.torch import save

    once, others = stored_once(tensors)
    plain = {name: tensor.contiguous() for name, tensor in once.items()}
    if vault is None or not tensors:
        return [save(plain, {**(about or {}), **metadata_of(others)} or None)]
    sizes = [t.numel() * t.element_size() for t in plain.values()]
    facts = {
        "subjects": sum(name.endswith(".images") for name in plain),
        "rows": sum(t.shape[0] for t in plain.values() if t.ndim),
        "bytes": sum(sizes),
    }
    return Sealing(vault, place, save(plain, metadata_of(others) or None), facts, about or {})


def decoded(path: Path, vault: Vault | None, place: str) -> dict[str, Tensor]:
    """Return a file's arrays: memory-mapped, or decrypted into memory."""
    from smg.prepare.arrays import map_safetensors, mapped, tensors_in

    try:
        _, metadata, _ = safetensors_header(path)
        if (facts_of(metadata) is not None) != (vault is not None):
            what = "encrypted, and model.json names no key" if vault is None else "not encrypted, unlike its model"
            raise SmgError(f"{path}: {what}; restore it from a backup")
        if vault is None:
            return under_all_names(*map_safetensors(path))
        plain = Sealed(mapped(path), vault, place, str(path)).read()
        return under_all_names(*tensors_in(plain))
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SmgError(f"{path}: damaged ({error}); restore it from a backup") from None


def facts_in(path: Path) -> FileFacts:
    """Return what a file holds, from its header; raise ValueError and the like if that is damaged."""
    head, metadata, _ = safetensors_header(path)
    facts = facts_of(metadata)
    if facts is not None:
        return FileFacts(int(facts["subjects"]), int(facts["rows"]), int(facts["bytes"]), encrypted=True)
    return FileFacts(
        subjects=sum(name.endswith(".images") for name in head),
        rows=sum(entry["shape"][0] for entry in head.values() if entry["shape"]),
        bytes=_size(head),
        encrypted=False,
    )


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file of pieces, whole or not at all."""
    left = iter(pieces)
    with naming(path), replacing(path) as temporary:
        temporary.write_bytes(next(left))
        with temporary.open("ab") as file:
            for piece in left:
                file.write(piece)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to a safetensors file, shared memory once, and return the file's sha256."""
    pieces = encoded(tensors, None, path.name)
    write_pieces(path, pieces)
    return sha256_of_pieces(pieces)


def sha256_of_pieces(pieces: Iterable[bytes]) -> str:
    """Return the sha256 of a file of pieces, in hexadecimal."""
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()


def _size(header: dict[str, Any]) -> int:
    """Return the bytes of all arrays."""
    return sum(end - begin for begin, end in (entry["data_offsets"] for entry in header.values()))
