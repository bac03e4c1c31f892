"""What a pass does only on a GPU: copies from pinned memory, and random numbers of the GPU's own generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on the device of a pass; a GPU copies it from pinned memory, so that the process does not wait.

    The pinned memory is reused only when the copy has ended, which torch's allocator sees to.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, dtype, non_blocking=True)


@contextlib.contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which dropout uses, on the CPU and on a GPU if given; restore them at the end."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed queues a call for absent GPUs
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield
