"""Carry out a plan in worker processes: each run is a `smg run` in a process of its own.

Finished runs are not run again, interrupted ones resume from their checkpoint. A run that fails is reported with its
reason, and the others continue. A run's process ends with the bench.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from typing import IO

from smg.bench.folder import FAILURE
from smg.bench.planned_runs import PlannedRun
from smg.bench.state import Active, OnFinished, OnPoll, PlannedBench, openmp_threads
from smg.cores import cores
from smg.files import locked

POLL = 0.5  # seconds between two looks at the workers
PATIENCE = 15  # seconds a worker has for its last iteration and checkpoint


@dataclass
class Worker(Active):
    """A run under way in a process of this machine."""

    process: subprocess.Popen[bytes] = field(kw_only=True)
    errors: IO[bytes] = field(kw_only=True)
    gpu: str | None = None  # the GPU it was given, if there are any


@dataclass
class Bench(PlannedBench[Worker]):
    """A plan's runs, carried out by worker processes of this machine.

    Without `threads` each has its share of the cores, as more would wait for each other.
    """

    def go(self, on_poll: OnPoll, on_finished: OnFinished) -> None:
        """Carry out every run that is not done; `on_poll` is called twice a second, `on_finished` at a run's end."""
        with locked(self.folder):
            self.sort()
            try:
                while self.todo or self.active:
                    while self.todo and len(self.active) < self.workers:
                        self.active.append(self._start(self.todo.pop(0)))
                    time.sleep(POLL)
                    for worker in list(self.active):
                        self._look_at(worker, on_finished)
                    on_poll()
            finally:
                self._stop()

    def threads_of_a_run(self) -> int:
        return self.threads or openmp_threads() or max(1, cores() // self.workers)

    def _stop(self) -> None:
        """Let every worker stop after its iteration, with a checkpoint; kill one that takes too long."""
        for worker in self.active:
            worker.process.send_signal(signal.SIGTERM)  # works even if the shell makes its children ignore Ctrl-C
        for worker in self.active:
            try:
                worker.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _start(self, run: PlannedRun) -> Worker:
        command = self.command(run)
        gpu = self._free_gpu()
        errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # a terminal's Ctrl-C goes to the bench alone, which passes it on once
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # Windows refuses any
            env=None if gpu is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
        )
        stands = self.stands(run)
        return Worker(run, time.monotonic(), stands.share, stands, gpu=gpu, process=process, errors=errors)

    def _free_gpu(self) -> str | None:
        """Return the GPU that the fewest workers use."""
        taken = [worker.gpu for worker in self.active]
        return min(gpus(), key=taken.count, default=None)

    def _look_at(self, worker: Worker, on_finished: OnFinished) -> None:
        """Note how far a worker has come, and whether it has ended."""
        code = worker.process.poll()
        if not code:
            self.look_at(worker)
        if code is None:
            return
        fault = None if code == 0 else self._fault(worker, code)
        self.end(worker, fault)
        on_finished(worker.run, fault)

    def _fault(self, worker: Worker, code: int) -> str:
        """Return the last line a failed process printed; everything it printed is kept in the run's folder."""
        worker.errors.seek(0)
        printed = worker.errors.read().decode(errors="replace").strip()
        (worker.run.folder(self.folder) / FAILURE).write_text(printed + "\n")
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (too little memory?)" if name == "SIGKILL" else "")
        return printed.splitlines()[-1].removeprefix("smg: ") if printed else f"exit {code}"


@cache
def gpus() -> tuple[str, ...]:
    """Return the GPUs this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",")[:count] if named else map(str, range(count)))


def _die_with_parent() -> None:
    """Ask Linux to end this process when its bench ends, however it ends; elsewhere the run continues alone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
