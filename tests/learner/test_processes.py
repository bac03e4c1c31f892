"""Processes of a job take a GPU each where there are any; the GPUs are stood in for."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as distributed

from smg.errors import Misuse
from smg.learner.processes import joined


@pytest.mark.parametrize(("gpus", "backend", "device"), [(2, "nccl", [1]), (0, "gloo", [])])
def test_each_process_takes_its_own_gpu(
    gpus: int, backend: str, device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    devices: list[int] = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(distributed, "init_process_group", chosen.append)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    with joined():
        pass
    assert (chosen, devices) == ([backend], device)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(Misuse, match="3 processes cannot share 2 GPUs"), joined():
        pass
