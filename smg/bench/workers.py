"""Carry out a plan in worker processes: each run is a `smg run` in a process of its own.

Finished runs are not run again, interrupted ones resume from their checkpoint. A run that fails is reported with its
reason, and the others continue. A run's process ends with the bench.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from smg.bench.folder import FAILURE, all_of
from smg.bench.plan import Plan, PlannedRun
from smg.cores import cores
from smg.errors import SmgError
from smg.files import locked, replacing, write_json
from smg.learner.config import LearnerConfig
from smg.learner.configure import over
from smg.learner.events import Standing, standing

POLL = 0.5  # seconds between two looks at the workers
PATIENCE = 15  # seconds a worker has for its last iteration and checkpoint
OnPoll = Callable[["Bench"], None]
OnFinished = Callable[[PlannedRun, str | None], None]  # the run, and why it failed if it did


@dataclass
class Worker:
    """A run under way."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    begun: float
    begun_at: float  # share of the run that was done when this process started
    gpu: str | None = None  # the GPU it was given, if there are any
    stands: Standing = field(default_factory=Standing)

    def seconds_a_run(self) -> float | None:
        """Return the time that the whole run would take at this worker's pace."""
        advanced = self.stands.share - self.begun_at
        return (time.monotonic() - self.begun) / advanced if advanced > 0 else None

    def seconds_left(self) -> float | None:
        """Return the time left for this run, if its pace is known."""
        whole = self.seconds_a_run()
        return None if whole is None else whole * (1 - self.stands.share)


@dataclass
class Bench:
    """A plan's runs: those done, under way, failed, and still to come."""

    plan: Plan
    folder: Path
    data: Path
    workers: int
    threads: int = 0  # CPU threads of each worker; 0: its share of the cores, as more would wait for each other
    options: tuple[str, ...] = ()  # added to every run's command
    todo: list[PlannedRun] = field(default_factory=list)
    active: list[Worker] = field(default_factory=list)
    done: list[PlannedRun] = field(default_factory=list)
    failed: list[tuple[PlannedRun, str]] = field(default_factory=list)  # with the reason
    pace: dict[str, float] = field(default_factory=dict)  # method's name -> seconds per run, as measured here

    def go(self, on_poll: OnPoll, on_finished: OnFinished) -> None:
        """Carry out every run that is not done; `on_poll` is called twice a second, `on_finished` at a run's end."""
        with locked(self.folder):
            for run in self.plan.runs():
                (self.done if self._is_done(run) else self.todo).append(run)
            self._claim()
            try:
                while self.todo or self.active:
                    while self.todo and len(self.active) < self.workers:
                        self.active.append(self._start(self.todo.pop(0)))
                    time.sleep(POLL)
                    for worker in list(self.active):
                        self._look_at(worker, on_finished)
                    on_poll(self)
            finally:
                self._stop()

    def _is_done(self, run: PlannedRun) -> bool:
        """Return whether the run's results are there; results of another run under its name raise an error."""
        folder = run.folder(self.folder)
        if (results := results_of(folder)) is None:
            return False
        stream = {"order": list(run.stream.order), "unseen": run.stream.unseen}
        try:
            same = LearnerConfig.model_validate(results["config"]) == run.config and results["stream"] == stream
        except (ValidationError, SmgError):  # of another version
            same = False
        if not same:
            raise SmgError(
                f"{folder}: holds a run of another configuration; give the method another name, or give another --out"
            )
        return True

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

    def seconds_left(self) -> float | None:
        """Return the time left for the bench, by the pace of each method; a method not seen yet has the mean pace."""
        if not self.pace:
            return None
        usual = sum(self.pace.values()) / len(self.pace)
        coming = sum(self.pace.get(run.name, usual) for run in self.todo)
        active = [worker.seconds_left() or self.pace.get(worker.run.name, usual) for worker in self.active]
        return max((coming + sum(active)) / self.workers, max(active, default=0.0))

    def _claim(self) -> None:
        """Write the plan into the folder; methods, streams and seeds may be added later, but not other settings."""
        path = self.folder / "bench.json"
        fixed = {"settings": over(self.plan.settings, self.plan.words), "part": self.plan.part}
        streams = [{"name": n, "order": list(s.order), "unseen": s.unseen} for n, s in self.plan.streams.items()]
        methods = [{"name": name, **made} for name, made in self.plan.methods.items()]
        seeds = set(self.plan.seeds or (0,))
        now = [str(run.folder(Path())) for run in self.plan.runs()]
        runs = list(now)
        if path.exists():
            before = json.loads(path.read_text())
            for key, value in fixed.items():
                if before[key] != value:
                    raise SmgError(f"{self.folder}: holds a bench with other {key}; give another --out")
            streams = self._joined("stream", before["streams"], streams)
            methods = self._joined("method", before["methods"], methods)
            seeds |= set(before["seeds"])
            runs += [run for run in before.get("runs", all_of(before)) if run not in runs]
        write_json(
            path, fixed | {"streams": streams, "methods": methods, "seeds": sorted(seeds), "runs": runs, "now": now}
        )

    def _joined(self, what: str, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return both lists as one, in the order they came; a name must mean the same in both."""
        known = {one["name"]: one for one in before}
        for one in now:
            if known.setdefault(one["name"], one) != one:
                raise SmgError(
                    f"{self.folder}: holds another {what} called {one['name']!r}; "
                    f"give this one another name, or give another --out"
                )
        return list(known.values())

    def _start(self, run: PlannedRun) -> Worker:
        folder = run.folder(self.folder)
        with replacing(folder / "run.yaml") as temporary:
            temporary.write_text(run.as_file())
        (folder / FAILURE).unlink(missing_ok=True)
        threads = self.threads or _openmp_threads() or max(1, cores() // self.workers)
        command = [sys.executable, "-m", "smg", "run", "--quiet", str(folder / "run.yaml")]
        command += ["--data", str(self.data), "--out", str(folder), "--threads", str(threads), *self.options]
        gpu = self._free_gpu()
        errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # a terminal's Ctrl-C goes to the bench alone, which passes it on once
            preexec_fn=_die_with_parent,
            env=None if gpu is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
        )
        stands = self._stands(run)
        return Worker(run, process, errors, time.monotonic(), stands.share, gpu, stands)

    def _free_gpu(self) -> str | None:
        """Return the GPU that the fewest workers use."""
        taken = [worker.gpu for worker in self.active]
        return min(gpus(), key=taken.count, default=None)

    def _stands(self, run: PlannedRun) -> Standing:
        rounds = len(run.stream.sites)
        return standing(run.folder(self.folder), rounds, run.config.iterations)

    def _look_at(self, worker: Worker, on_finished: OnFinished) -> None:
        """Note how far a worker has come, and whether it has ended."""
        worker.stands = self._stands(worker.run)
        code = worker.process.poll()
        if not code and (pace := worker.seconds_a_run()) is not None:
            self.pace[worker.run.name] = pace
        if code is None:
            return
        self.active.remove(worker)
        fault = None if code == 0 else self._fault(worker, code)
        if fault is None:
            self.done.append(worker.run)
        else:
            self.failed.append((worker.run, fault))
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


def results_of(folder: Path) -> dict[str, Any] | None:
    """Return a finished run's results, or None if it has not finished."""
    path = folder / "results.json"
    if not path.exists():
        return None
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def _openmp_threads() -> int:
    """Return the number of threads that OMP_NUM_THREADS sets, or 0."""
    word = os.environ.get("OMP_NUM_THREADS", "")
    return int(word) if word.isdigit() else 0


@cache
def gpus() -> tuple[str, ...]:
    """Return the GPUs this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",")[:count] if named else map(str, range(count)))


def _die_with_parent() -> None:
    """Ask Linux to end this process when its bench ends, however it ends; elsewhere the run continues alone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
