"""Coordinate the processes of a data-parallel job on one model: barriers, and one process that writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as distributed

from smg.errors import Misuse


@contextmanager
def joined() -> Iterator[None]:
    """Join the process group of torchrun in the block, with one GPU for each process where there are any."""
    gpus, here = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    if gpus:
        if here > gpus:
            raise Misuse(f"{here} processes cannot share {gpus} GPU{'s' * (gpus > 1)}; --nproc-per-node {gpus}")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if gpus else "gloo")
    yield
    distributed.destroy_process_group()  # not after an error: it would deadlock with the processes that have not failed


def meet() -> None:
    """Wait until every process of a job has arrived."""
    if distributed.is_initialized():
        distributed.barrier()


def agreed(value: float) -> float:
    """Return the first process's value in every process of a job, so that all decide alike."""
    if not distributed.is_initialized():
        return value
    held = [value]
    distributed.broadcast_object_list(held)
    return held[0]


def first_process() -> bool:
    """Return whether this process writes: the only process, or rank 0 of a job."""
    return not distributed.is_initialized() or distributed.get_rank() == 0
