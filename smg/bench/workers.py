"""Worker processes go through a plan: each takes one run at a time, in a process of its own, as `smg run` would.

What is done is not done again, what was under way goes on from its checkpoint, a run that fails is told with its reason
and the rest is done. A run's process dies with the bench.
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
from smg.errors import SmgError
from smg.files import locked, replacing, write_json
from smg.learner.config import LearnerConfig
from smg.learner.configure import over
from smg.learner.events import Standing, standing

POLL = 0.5  # seconds between two looks at the workers
PATIENCE = 15  # seconds a worker has for its last iteration and checkpoint
Told = Callable[["Bench"], None]


@dataclass
class Worker:
    """A run under way."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    begun: float
    begun_at: float  # share of the run done when this process took it up
    gpu: str | None = None  # the one it was given, where there are any
    stands: Standing = field(default_factory=Standing)

    def seconds_a_run(self) -> float | None:
        """What the whole run would take at this pace."""
        advanced = self.stands.share - self.begun_at
        return (time.monotonic() - self.begun) / advanced if advanced > 0 else None

    def seconds_left(self) -> float | None:
        whole = self.seconds_a_run()
        return None if whole is None else whole * (1 - self.stands.share)


@dataclass
class Bench:
    """A plan's runs: which are done, under way, failed, and still to come."""

    plan: Plan
    folder: Path
    data: Path
    workers: int
    threads: int = 0  # of each worker; 0 for its share of the cores: more only wait for one another
    options: tuple[str, ...] = ()  # for every run's command
    todo: list[PlannedRun] = field(default_factory=list)
    active: list[Worker] = field(default_factory=list)
    done: list[PlannedRun] = field(default_factory=list)
    failed: list[tuple[PlannedRun, str]] = field(default_factory=list)  # with the reason
    pace: dict[str, float] = field(default_factory=dict)  # method's name -> seconds a run, as seen here

    def go(self, told: Told, finished: Callable[[PlannedRun, str | None], None]) -> None:
        """Every run that is not done; `told` is called all the time, `finished` at each one's end, with its fault."""
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
                        self._look_at(worker, finished)
                    told(self)
            finally:
                self._stop()

    def _is_done(self, run: PlannedRun) -> bool:
        """Whether its results are there; those of another run under its name are not taken for them."""
        folder = run.folder(self.folder)
        if (told := results_of(folder)) is None:
            return False
        stream = {"order": list(run.stream.order), "unseen": run.stream.unseen}
        try:
            same = LearnerConfig.model_validate(told["config"]) == run.config and told["stream"] == stream
        except (ValidationError, SmgError):  # of another version
            same = False
        if not same:
            raise SmgError(f"{folder}: holds a run of another configuration; give the method another name, or --out")
        return True

    def _stop(self) -> None:
        """Let those under way stop after their iteration, with a checkpoint; who does not in time is killed."""
        for worker in self.active:
            worker.process.send_signal(signal.SIGTERM)  # heard even where a shell has its children ignore Ctrl-C
        for worker in self.active:
            try:
                worker.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def seconds_left(self) -> float | None:
        """For the whole bench, by the pace of each method's runs; of those not seen yet, by the mean of the others."""
        if not self.pace:
            return None
        usual = sum(self.pace.values()) / len(self.pace)
        coming = sum(self.pace.get(run.name, usual) for run in self.todo)
        active = [worker.seconds_left() or self.pace.get(worker.run.name, usual) for worker in self.active]
        return max((coming + sum(active)) / self.workers, max(active, default=0.0))

    def _claim(self) -> None:
        """The plan, in the folder; more methods, streams and seeds may join it, but no other settings."""
        path = self.folder / "bench.json"
        told = {"settings": over(self.plan.settings, self.plan.words), "part": self.plan.part}
        streams = [{"name": n, "order": list(s.order), "unseen": s.unseen} for n, s in self.plan.streams.items()]
        methods = [{"name": name, **made} for name, made in self.plan.methods.items()]
        seeds = set(self.plan.seeds or (0,))
        now = [str(run.folder(Path())) for run in self.plan.runs()]
        runs = list(now)
        if path.exists():
            before = json.loads(path.read_text())
            for key, value in told.items():
                if before[key] != value:
                    raise SmgError(f"{self.folder}: holds a bench with other {key}; give another --out")
            streams = self._joined("stream", before["streams"], streams)
            methods = self._joined("method", before["methods"], methods)
            seeds |= set(before["seeds"])
            runs += [run for run in before.get("runs", all_of(before)) if run not in runs]
        write_json(
            path, told | {"streams": streams, "methods": methods, "seeds": sorted(seeds), "runs": runs, "now": now}
        )

    def _joined(self, what: str, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Both, in the order they came; one name has one meaning."""
        known = {one["name"]: one for one in before}
        for one in now:
            if known.setdefault(one["name"], one) != one:
                raise SmgError(
                    f"{self.folder}: holds a {what} called {one['name']!r} that is another; "
                    f"give this one another name, or another --out"
                )
        return list(known.values())

    def _start(self, run: PlannedRun) -> Worker:
        folder = run.folder(self.folder)
        with replacing(folder / "run.yaml") as temporary:
            temporary.write_text(run.as_file())
        (folder / FAILURE).unlink(missing_ok=True)
        threads = self.threads or _asked_for() or max(1, cores() // self.workers)
        command = [sys.executable, "-m", "smg", "run", "--quiet", str(folder / "run.yaml")]
        command += ["--data", str(self.data), "--out", str(folder), "--threads", str(threads), *self.options]
        gpu = self._free_gpu()
        errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # a terminal's Ctrl-C is for the bench, which passes it on, once
            preexec_fn=_die_with_parent,
            env=None if gpu is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpu},
        )
        stands = self._stands(run)
        return Worker(run, process, errors, time.monotonic(), stands.share, gpu, stands)

    def _free_gpu(self) -> str | None:
        """The one that the fewest workers have."""
        taken = [worker.gpu for worker in self.active]
        return min(gpus(), key=taken.count, default=None)

    def _stands(self, run: PlannedRun) -> Standing:
        rounds = len(run.stream.sites)
        return standing(run.folder(self.folder), rounds, run.config.iterations)

    def _look_at(self, worker: Worker, finished: Callable[[PlannedRun, str | None], None]) -> None:
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
        finished(worker.run, fault)

    def _fault(self, worker: Worker, code: int) -> str:
        """The last line a failed process said; everything it said is in the run's folder."""
        worker.errors.seek(0)
        said = worker.errors.read().decode(errors="replace").strip()
        (worker.run.folder(self.folder) / FAILURE).write_text(said + "\n")
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (too little memory?)" if name == "SIGKILL" else "")
        return said.splitlines()[-1].removeprefix("smg: ") if said else f"exit {code}"


def results_of(folder: Path) -> dict[str, Any] | None:
    """A finished run's results."""
    path = folder / "results.json"
    if not path.exists():
        return None
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def _asked_for() -> int:
    """The threads that OpenMP's own variable names, if it does."""
    word = os.environ.get("OMP_NUM_THREADS", "")
    return int(word) if word.isdigit() else 0


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def gpus() -> tuple[str, ...]:
    """Those this process may use, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",")[:count] if named else map(str, range(count)))


def _die_with_parent() -> None:
    """On Linux the system ends a run whose bench is gone, however it went; elsewhere it goes on alone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
