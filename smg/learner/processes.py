"""Several processes of a data-parallel job on one model: they meet, and one of them writes."""

from __future__ import annotations

import torch.distributed as distributed


def meet() -> None:
    """Processes of a job wait for one another."""
    if distributed.is_initialized():
        distributed.barrier()


def first_process() -> bool:
    """Whether this process writes: the only one, or the first of a job."""
    return not distributed.is_initialized() or distributed.get_rank() == 0
