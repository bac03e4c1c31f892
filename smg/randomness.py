"""Random generators that depend on a place in training, not on what was drawn before.

Each generator is made from (seed, round, iteration) and a word for its purpose. So the batch of iteration 700 is the
same whether or not the process was restarted before it, and two purposes never share a stream of numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def digest(*parts: object) -> int:
    """Return a 64-bit hash of the parts, the same on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8], "little")


def numpy_generator(purpose: str, *place: int) -> np.random.Generator:
    """Return a numpy generator for one purpose at one place, usually `(seed, round, iteration)`."""
    return np.random.Generator(np.random.Philox(key=digest(purpose, *place)))


def torch_generator(purpose: str, *place: int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a torch generator for one purpose at one place, on the device that draws."""
    import torch

    return torch.Generator(device=device).manual_seed(digest(purpose, *place) >> 1)
