"""Tensors that share memory, such as a module that a network holds under two names: copied and stored once.

nnU-Net's PlainConvUNet has 240 names for 88 tensors, because its decoder holds the encoder and every block holds its
layers twice. In a file each tensor stands under the first of its names; the metadata has the others:

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
    """Return copies in the CPU's memory; those that shared memory share that of one copy."""
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
    """Return what a file's metadata says of the names that are not in it."""
    return {KEY: json.dumps(others)} if others else {}


def under_all_names(stored: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> dict[str, Tensor]:
    """Return a file's tensors under every name. A name that leads nowhere is a ValueError."""
    others = json.loads((metadata or {}).get(KEY, "{}"))
    if not isinstance(others, dict) or any(name in stored or of not in stored for name, of in others.items()):
        raise ValueError("names of shared tensors that lead nowhere")
    return {**stored, **{name: stored[of] for name, of in others.items()}}


def _place(tensor: Tensor) -> object | None:
    """Return what two names for the same numbers have in common; None for a tensor without any."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
