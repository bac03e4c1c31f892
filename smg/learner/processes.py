"""Several processes of a data-parallel job on one model: they meet, and one of them writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as distributed

from smg.errors import Misuse


@contextmanager
def joined() -> Iterator[None]:
    """In the group of those that torchrun has started, each with a GPU of its own where there are any."""
    gpus, here = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        if here > gpus:
            raise Misuse(f"{here} processes cannot share {gpus} GPU{'s' * (gpus > 1)}; --nproc-per-node {gpus}")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if gpus else "gloo")
    yield
    distributed.destroy_process_group()  # not after a fault: it would wait for those that have not failed


def meet() -> None:
    """Processes of a job wait for one another."""
    if distributed.is_initialized():
        distributed.barrier()


def first_process() -> bool:
    """Whether this process writes: the only one, or the first of a job."""
    return not distributed.is_initialized() or distributed.get_rank() == 0
