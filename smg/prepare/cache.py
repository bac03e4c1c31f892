"""Cache of prepared subjects: one memory-mapped safetensors file each, named by a hash of what it was made from.

The hash covers the bytes of the source files and the options, so an entry is never stale, and its name does not reveal
the patient. An entry is written whole or not at all. The folder may be deleted at any time. Entries of an encrypted
model are encrypted (smg.prepare.encrypted).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from smg.errors import SmgError
from smg.files import make_private, placing, remove_temporaries, safetensors_header
from smg.prepare.arrays import map_safetensors
from smg.prepare.grid import Crop, Grid
from smg.sites.formats import Array
from smg.sites.outliers import MaskShape
from smg.sites.site import Subject
from smg.sites.volume import source_files

if TYPE_CHECKING:
    import torch

FORMAT = 6  # of an entry; raise it when entries change, and each is made again
_PRIVATE: set[Path] = set()  # folders that this process has made private
_VERIFIED: dict[Path, tuple[int, int, int]] = {}  # identities of the entries whose hash this process has verified


def cache_folder() -> Path:
    """Return the cache's folder, and make it: `SMG_CACHE`, or `smg` in the user's cache folder.

    It is readable by its owner alone, with everything in it, since it holds images of patients.
    """
    folder = cache_path()
    try:
        if folder not in _PRIVATE:
            make_private(folder)
            remove_temporaries(folder)
            _PRIVATE.add(folder)
    except OSError as error:
        raise SmgError(
            f"{folder}: prepared scans cannot be written there: {error.strerror}; set SMG_CACHE to another folder"
        ) from None
    return folder


def cache_path() -> Path:
    """Return the path of the cache's folder, whether it exists or not."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smg"
    return Path(os.environ.get("SMG_CACHE") or default)


def is_cache_empty() -> bool:
    """Return whether the cache holds nothing; it is not made."""
    path = cache_path()
    return not (path.is_dir() and any(path.iterdir()))


def key_of(subject: Subject, stored_options: dict[str, object]) -> str:
    """Return a hash of the options and of every byte that the entry is made from."""
    whole = hashlib.sha256(json.dumps([FORMAT, stored_options], sort_keys=True).encode())
    for path in (*subject.images, subject.mask):
        for file in source_files(path):
            with file.open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
        whole.update(b"|")
    if subject.roi:
        whole.update(json.dumps(subject.roi).encode())
    return whole.hexdigest()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A prepared subject: arrays that stay on disk until they are read, and their grid in the scan."""

    subject: Subject
    images: torch.Tensor  # [slices, channels, rows, columns] float32
    labels: torch.Tensor  # [slices, rows, columns] uint8, class indices
    foreground: tuple[bool, ...]  # for each slice, whether it holds foreground
    grid: Grid
    content: str  # hash of the scan's voxels as they are stored
    turned: str = ""  # hash of the voxels as axial slices
    needed: float = 0.0  # mm: the smallest central field that holds all its foreground
    values: tuple[float, ...] = ()  # in its mask, without those of the background
    shape: MaskShape | None = None  # of its mask
    outputs: torch.Tensor | None = None  # [slices, classes, rows, columns] float16: the network's, of some exemplars

    @property
    def image_slices(self) -> BySlice:
        """Return the images, to be indexed by slice; nothing else is read."""
        return self.images

    @property
    def label_slices(self) -> BySlice:
        """Return the labels, to be indexed by slice; nothing else is read."""
        return self.labels


class BySlice(Protocol):
    """An array along whose first axis are slices: a tensor, or one that is decrypted slice by slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int | torch.Tensor, /) -> torch.Tensor: ...


def write_entry(
    path: Path,
    subject: Subject,
    images: Array,
    labels: Array,
    grid: Grid,
    content: str,
    turned: str = "",
    needed: float = 0.0,
    values: tuple[float, ...] = (),
    shape: MaskShape | None = None,
) -> None:
    """Write a prepared subject, whole or not at all; one that another run has written meanwhile stays.

    It is not flushed to disk: a cache may be lost in a power failure.
    """
    from safetensors.numpy import save

    about = entry_about(images, labels, grid, content, turned, needed, values, shape)
    with placing(path, is_good=lambda there: open_entry(there, subject) is not None) as temporary:
        try:  # not by safetensors' save_file, which writes a file of its own that nobody removes if it is killed
            temporary.write_bytes(save({"images": images, "labels": labels}, metadata={"about": json.dumps(about)}))
        except OSError as error:  # of a full disk, which names no file
            raise OSError(error.errno, error.strerror, str(path)) from None


def entry_about(
    images: Array,
    labels: Array,
    grid: Grid,
    content: str,
    turned: str,
    needed: float,
    values: tuple[float, ...],
    shape: MaskShape | None,
) -> dict[str, Any]:
    """Return what an entry says of its subject, and the hash of all of it."""
    about = {
        "foreground": labels.any(axis=(1, 2)).tolist(),
        "shape": list(grid.shape),
        "affine": grid.affine.tolist(),
        "size": grid.size,
        "spacing": grid.spacing,
        "field": grid.field,
        "crop": asdict(grid.crop) if grid.crop else None,
        "needed": needed,
        "content": content,
        "turned": turned,
        "values": list(values),
        "mask_shape": shape.as_json() if shape else None,
    }
    about["sha256"] = _digest(about, images, labels)
    return about


def open_entry(path: Path, subject: Subject) -> Prepared | None:
    """Return an entry mapped into memory; None if there is none, or if it was damaged from outside."""
    try:
        tensors, metadata = map_safetensors(path)
        about = json.loads(metadata["about"])
        images, labels = tensors["images"], tensors["labels"]
        is_intact = verified(path, lambda: _digest(about, images.numpy(), labels.numpy()) == about["sha256"])
        return Prepared(subject, images, labels, *described(about)) if is_intact else None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


Described = tuple[tuple[bool, ...], Grid, str, str, float, tuple[float, ...], MaskShape | None]


def described(about: dict[str, Any]) -> Described:
    """Return what an entry says of its subject, in the order of the fields of `Prepared`."""
    import numpy as np

    shape = about["shape"]
    way = {key: _as_made(about[key]) for key in ("size", "spacing", "field")}
    crop = about.get("crop") and Crop(**{name: _as_made(value) for name, value in about["crop"].items()})
    grid = Grid((shape[0], shape[1], shape[2]), np.array(about["affine"]), **way, crop=crop)
    mask_shape = about["mask_shape"] and MaskShape.from_json(about["mask_shape"])
    more = about["content"], about["turned"], about["needed"], tuple(about["values"]), mask_shape
    return tuple(about["foreground"]), grid, *more


def cached_copies(content: str, turned: str) -> list[Path]:
    """Return the cache's entries of a scan, however it was prepared, by the hashes of its voxels."""
    found = []
    for path in sorted(cache_path().glob("[!.]*.safetensors")):
        try:
            about = json.loads(safetensors_header(path)[1]["about"])
            if about["content"] == content or (turned and about["turned"] == turned):
                found.append(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged, or not an entry
            continue
    return found


def verified(path: Path, is_intact: Callable[[], bool]) -> bool:
    """Return whether an entry is as it was written; each entry is looked at once by a process."""
    at = path.stat()
    identity = at.st_ino, at.st_ctime_ns, at.st_size
    if _VERIFIED.get(path) != identity:
        if not is_intact():
            return False
        _VERIFIED[path] = identity
    return True


def _digest(about: dict[str, Any], images: Array, labels: Array) -> str:
    """Return the hash of an entry's arrays and metadata."""
    facts = {key: value for key, value in about.items() if key != "sha256"}
    whole = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for array in (images, labels):
        whole.update(f"|{array.dtype}{array.shape}".encode())
        whole.update(array.data if array.flags.c_contiguous else array.tobytes())
    return whole.hexdigest()


def _as_made(value: Any) -> Any:
    """Return a grid's arguments with tuples in place of the lists of JSON."""
    return tuple(_as_made(one) for one in value) if isinstance(value, list) else value
