"""Entries of the cache for an encrypted model: encrypted, and decrypted slice by slice where they are read.

They lie in a folder of their model's data key, under keyed hashes, so that without the key neither the scan nor the
patient can be identified. Nothing of them is written in the clear: a slice is decrypted into memory when training draws
it, and a whole subject when it is evaluated.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.errors import SmgError
from smg.files import placing, read_safetensors_header, safetensors_header, sync_folder
from smg.prepare.arrays import kind_of, mapped
from smg.prepare.cache import Described, Prepared, cache_folder, cache_path, described, verified
from smg.sites.formats import Array
from smg.sites.site import Subject
from smg.vault.sealed import Sealed, Sealing, facts_of
from smg.vault.vault import Vault

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class SealedArray:
    """An array in an encrypted file, indexed by slice; reading a slice decrypts that slice alone."""

    file: Sealed
    begin: int  # byte of the first slice, in the decrypted file
    kind: torch.dtype
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | torch.Tensor, /) -> torch.Tensor:
        """Return one slice, or for a tensor of indices their slices."""
        import torch

        if isinstance(index, int):
            return self._read(range(len(self))[index], 1)[0]
        rows = [self[int(one)] for one in index.flatten()]
        return torch.stack(rows).view(*index.shape, *self.shape[1:])

    def whole(self) -> torch.Tensor:
        """Return all slices."""
        return self._read(0, len(self))

    def _read(self, first: int, count: int) -> torch.Tensor:
        import torch

        size = math.prod(self.shape[1:]) * self.kind.itemsize
        start = self.begin + first * size
        plain = self.file.read(start, start + count * size)
        return torch.frombuffer(plain, dtype=self.kind).view(count, *self.shape[1:])


class SealedPrepared(Prepared):
    """A prepared subject whose arrays stay encrypted until they are read."""

    def __init__(self, subject: Subject, images: SealedArray, labels: SealedArray, facts: Described) -> None:
        """Take the place of the fields `images` and `labels` by arrays that are decrypted when they are asked for."""
        names = ("foreground", "grid", "content", "turned", "needed", "values", "shape")
        values = {"subject": subject, "_images": images, "_labels": labels, "outputs": None}
        for name, value in {**values, **dict(zip(names, facts, strict=True))}.items():
            object.__setattr__(self, name, value)

    _images: SealedArray
    _labels: SealedArray

    @property
    def images(self) -> torch.Tensor:
        """Return all images, decrypted."""
        return self._images.whole()

    @property
    def labels(self) -> torch.Tensor:
        """Return all labels, decrypted."""
        return self._labels.whole()

    @property
    def image_slices(self) -> SealedArray:
        """Return the images, to be indexed by slice."""
        return self._images

    @property
    def label_slices(self) -> SealedArray:
        """Return the labels, to be indexed by slice."""
        return self._labels


def encrypted_folder(vault: Vault, cache: Path) -> Path:
    """Return the folder of a model's entries, by its data key."""
    return cache / "encrypted" / vault.current


def encrypted_path(vault: Vault, cache: Path, key: str) -> Path:
    """Return the file of an entry, by the hash of what it is made from."""
    return encrypted_folder(vault, cache) / f"{vault.hidden(key)}.safetensors"


def write_encrypted(
    path: Path, subject: Subject, arrays: dict[str, Array], about: dict[str, Any], vault: Vault
) -> None:
    """Write an encrypted entry, whole or not at all; one that another run has written meanwhile stays."""
    from safetensors.numpy import save

    plain = save(arrays, {"about": json.dumps(about)})
    facts = {"content": vault.hidden(about["content"]), "turned": vault.hidden(about["turned"])}
    pieces = Sealing(vault, _place(path), plain, facts)
    good = partial(_is_good, subject=subject, vault=vault)
    with placing(path, is_good=good) as temporary, temporary.open("wb") as file:
        for piece in pieces:
            file.write(piece)


def open_encrypted(path: Path, subject: Subject, vault: Vault) -> Prepared | None:
    """Return an encrypted entry; None if there is none, or if it was damaged."""
    try:
        file = Sealed(mapped(path), vault, _place(path), str(path))
        if not verified(path, lambda: _is_intact(file)):
            return None
        head, metadata, begin = read_safetensors_header(_reader(file), file.size)
        arrays = {
            name: SealedArray(file, begin + entry["data_offsets"][0], kind_of(entry), tuple(entry["shape"]))
            for name, entry in head.items()
        }
        return SealedPrepared(subject, arrays["images"], arrays["labels"], described(json.loads(metadata["about"])))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SmgError):
        return None


def encrypted_copies(content: str, turned: str, vault: Vault) -> list[Path]:
    """Return a model's encrypted entries of a scan, however it was prepared, by the hashes of its voxels."""
    found, hidden = [], (vault.hidden(content), vault.hidden(turned))
    for path in sorted(encrypted_folder(vault, cache_path()).glob("[!.]*.safetensors")):
        try:
            facts = facts_of(safetensors_header(path)[1]) or {}
            if facts["content"] == hidden[0] or (turned and facts["turned"] == hidden[1]):
                found.append(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged, or not an entry
            continue
    return found


def remove_encrypted(data_key: str) -> None:
    """Remove the entries under a data key that is no longer used, by its identity."""
    folder = cache_folder() / "encrypted" / data_key
    if folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        sync_folder(folder.parent)


def _place(path: Path) -> str:
    return f"cache/{path.stem}"


def _is_good(path: Path, subject: Subject, vault: Vault) -> bool:
    return open_encrypted(path, subject, vault) is not None


def _is_intact(file: Sealed) -> bool:
    try:
        file.verify()
    except SmgError:
        return False
    return True


def _reader(file: Sealed) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a file."""
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        at += count
        return bytes(file.read(at - count, at))

    return read
