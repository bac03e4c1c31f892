"""Copy and store tensors that share memory once, such as a module that a network holds under two names.

nnU-Net's PlainConvUNet has 240 names for 88 tensors, because its decoder holds the encoder and every block holds its
layers twice. In a file each tensor has the first of its names; the metadata lists the others:

    {"shared": '{"decoder.encoder.stem.weight": "encoder.stem.weight", ...}'}

A file in which nothing is shared has no such metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KEY = "shared"  # of a safetensors file's metadata


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the CPU's memory; tensors that shared memory share one copy."""
    copies: dict[object, Tensor] = {}
    made = {}
    for name, tensor in tensors.items():
        place = _place(tensor)
        if place is None or place not in copies:
            copies[place] = tensor.detach().clone().cpu()
        made[name] = copies[place]
    return made


def stored_once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor under the first of its names, and for every other name that first one."""
    first: dict[object, str] = {}
    once, others = {}, {}
    for name, tensor in tensors.items():
        place = _place(tensor)
        if place is not None and place in first:
            others[name] = first[place]
        else:
            first[place] = name
            once[name] = tensor
    return once, others


def metadata_of(others: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata for the names that are not in the file."""
    return {KEY: json.dumps(others)} if others else {}


def under_all_names(stored: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> dict[str, Tensor]:
    """Return a file's tensors under every name; raise ValueError for a name without a tensor."""
    others = json.loads((metadata or {}).get(KEY, "{}"))
    if not isinstance(others, dict) or any(name in stored or of not in stored for name, of in others.items()):
        raise ValueError("names of shared tensors that lead nowhere")
    return {**stored, **{name: stored[of] for name, of in others.items()}}


def _place(tensor: Tensor) -> object | None:
    """Return a key that is equal for tensors of the same memory; None for an empty tensor."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
