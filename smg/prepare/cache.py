"""Cache of prepared subjects: one memory-mapped safetensors file each, named by a hash of what it was made from.

The hash covers the bytes of the source files and the options, so an entry is never stale, and its name does not reveal
the patient. An entry is written whole or not at all. The folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.errors import SmgError
from smg.files import make_private, placing, safetensors_header
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

KINDS = {  # safetensors' name of a data type -> torch's
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64"},
}


def cache_folder() -> Path:
    """Return the cache's folder, and make it: `SMG_CACHE`, or `smg` in the user's cache folder.

    It is readable by its owner alone, with everything in it, since it holds images of patients.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smg"
    folder = Path(os.environ.get("SMG_CACHE") or default)
    try:
        if folder not in _PRIVATE:
            make_private(folder)
            _PRIVATE.add(folder)
    except OSError as error:
        raise SmgError(
            f"{folder}: prepared scans cannot be written there: {error.strerror}; set SMG_CACHE to another folder"
        ) from None
    return folder


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
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

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
    with placing(path, is_good=lambda there: open_entry(there, subject) is not None) as temporary:
        try:
            save_file({"images": images, "labels": labels}, temporary, metadata={"about": json.dumps(about)})
        except SafetensorError as error:  # as it reports a full disk
            raise OSError(0, str(error).rpartition(": ")[2], str(path)) from None


def open_entry(path: Path, subject: Subject) -> Prepared | None:
    """Return an entry mapped into memory; None if there is none, or if it was damaged from outside."""
    import numpy as np

    try:
        tensors, metadata = map_safetensors(path)
        about = json.loads(metadata["about"])
        images, labels = tensors["images"], tensors["labels"]
        if not _is_intact(path, about, images, labels):
            return None
        shape = about["shape"]
        way = {key: _as_made(about[key]) for key in ("size", "spacing", "field")}
        crop = about.get("crop") and Crop(**{name: _as_made(value) for name, value in about["crop"].items()})
        grid = Grid((shape[0], shape[1], shape[2]), np.array(about["affine"]), **way, crop=crop)
        foreground = tuple(about["foreground"])
        described = about["mask_shape"] and MaskShape.from_json(about["mask_shape"])
        more = about["content"], about["turned"], about["needed"], tuple(about["values"]), described
        return Prepared(subject, images, labels, foreground, grid, *more)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def cached_copies(content: str, turned: str) -> list[Path]:
    """Return the cache's entries of a scan, however it was prepared, by the hashes of its voxels."""
    found = []
    for path in sorted(cache_folder().glob("[!.]*.safetensors")):
        try:
            about = json.loads(safetensors_header(path)[1]["about"])
            if about["content"] == content or (turned and about["turned"] == turned):
                found.append(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged, or not an entry
            continue
    return found


def _is_intact(path: Path, about: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> bool:
    """Return whether an entry is as it was written, by its hash; each entry is hashed once by a process."""
    at = path.stat()
    identity = at.st_ino, at.st_ctime_ns, at.st_size
    if _VERIFIED.get(path) != identity:
        if _digest(about, images.numpy(), labels.numpy()) != about["sha256"]:
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


def map_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a file's tensors and metadata; the tensors are views of one memory map.

    The map keeps no file open, since a site may have thousands of files.
    """
    import torch

    head, metadata, begin = safetensors_header(path)
    whole = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    tensors = {}
    for name, entry in head.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        flat = torch.tensor([], dtype=torch.uint8).set_(whole)[start:end]  # type: ignore[arg-type]
        tensors[name] = flat.view(getattr(torch, KINDS[entry["dtype"]])).view(entry["shape"])
    return tensors, metadata
