"""Read the arrays of a safetensors file, mapped into memory or from bytes that are there already."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smg.files import read_safetensors_header, safetensors_header

if TYPE_CHECKING:
    import torch

KINDS = {  # safetensors' name of a data type -> torch's
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64"},
}


def map_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return a file's tensors and metadata; the tensors are views of one memory map."""
    head, metadata, begin = safetensors_header(path)
    return _views(_map(path), head, begin), metadata


def tensors_in(data: bytearray) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and metadata of a safetensors file in memory; the tensors are views of it."""
    import torch

    head, metadata, begin = read_safetensors_header(io.BytesIO(data).read, len(data))
    return _views(torch.frombuffer(data, dtype=torch.uint8), head, begin), metadata


def mapped(path: Path) -> memoryview:
    """Return a file's bytes, mapped into memory."""
    return memoryview(_map(path).numpy())  # type: ignore[arg-type]


def _map(path: Path) -> torch.Tensor:
    """Map a file into memory. The map keeps no file open, since a site may have thousands of files."""
    import torch

    whole = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    return torch.tensor([], dtype=torch.uint8).set_(whole)  # type: ignore[arg-type]


def _views(whole: torch.Tensor, head: dict[str, Any], begin: int) -> dict[str, torch.Tensor]:
    """Return the arrays of a safetensors file by its header, as views of its bytes."""
    tensors = {}
    for name, entry in head.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        tensors[name] = whole[start:end].view(kind_of(entry)).view(entry["shape"])
    return tensors


def kind_of(entry: dict[str, Any]) -> torch.dtype:
    """Return the data type of an array by its entry in a header."""
    import torch

    found: torch.dtype = getattr(torch, KINDS[entry["dtype"]])
    return found
