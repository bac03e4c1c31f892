"""Randomness as a function of where we are, not of what was drawn before.

Every draw comes from a generator made from (seed, round, iteration) and a word for its purpose, so the batch of
iteration 700 is the same whether or not the process was restarted before it, and two purposes never share a stream.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def digest(*parts: object) -> int:
    """A 64-bit number that is a function of the parts alone: the same on every machine, in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8], "little")


def numpy_generator(purpose: str, *place: int) -> np.random.Generator:
    """A numpy generator for one purpose at one place, usually `(seed, round, iteration)`."""
    return np.random.Generator(np.random.Philox(key=digest(purpose, *place)))


def torch_generator(purpose: str, *place: int, device: str | torch.device = "cpu") -> torch.Generator:
    """The same for torch, on the device where the draw happens."""
    import torch

    return torch.Generator(device=device).manual_seed(digest(purpose, *place) >> 1)
