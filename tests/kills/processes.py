"""Commands in processes that are forked from a warm one, and that die at a chosen moment."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import smg.bench
import smg.bench.workers
import smg.cli
import smg.evaluation
import smg.learner
import smg.learner.round
import smg.methods
import smg.prepare
import smg.report
from tests.kills.operations import Half, Operation, Operations

LATE = (  # what commands import when they need it; torch's optimisers import torch._dynamo when they are first made
    *("torch._dynamo", "filelock", "safetensors.numpy", "safetensors.torch", "rich.progress", "rich.table"),
    *("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf"),
)
PATIENCE = 300  # seconds for one command, on a machine that is busy
RAN, RUNS = "operations.json", "operations of runs.json"  # what an undisturbed command did, beside its desk
KILLED = "killed"  # beside the desk: a process has killed itself


@dataclass(frozen=True)
class Moment:
    """When a process dies: at an operation, or after a time."""

    kind: str = ""  # as `before rename`, `in write`; none: at a time
    number: int = 0  # the how-manieth of its kind, from 1
    seconds: float = 0.0
    in_run: bool = False  # in the process of a bench's run

    @property
    def name(self) -> str:
        """Return the moment's name in the table."""
        return ("run: " * self.in_run) + (self.kind or "any time")


def warm_up() -> None:
    """Import everything that a command would import, so that a fork has it."""
    for name in LATE:
        importlib.import_module(name)
    for package in (smg.cli, smg.learner, smg.methods, smg.prepare, smg.evaluation, smg.bench, smg.report):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    smg.bench.workers.gpus()
    smg.bench.workers.POLL = 0.01
    run = smg.learner.round.Training.run
    smg.learner.round.Training.run = (  # type: ignore[method-assign]
        lambda training, save, seconds=0.0, on_step=None: run(training, save, 0.0, on_step)  # a checkpoint every time
    )


def start(words: list[str], desk: Path, environment: Mapping[str, str], moment: Moment | None = None) -> int:
    """Start a command on a desk and return its process; without a moment, its operations are listed beside the desk."""
    process = os.fork()
    if process:
        return process
    in_child(desk, environment, lambda: _command(words, desk, moment))
    raise AssertionError("not reached")


def wait(process: int, seconds: float | None = None) -> int | None:
    """Return a process's exit code, negative for a signal; None if it runs on after some seconds."""
    end = time.monotonic() + (PATIENCE if seconds is None else seconds)
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            if seconds is not None:
                return None
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise TimeoutError(f"no end after {PATIENCE} s")
        time.sleep(0.002)


def in_child(desk: Path, environment: Mapping[str, str], work: Callable[[], None]) -> None:
    """Do some work with the desk as working directory and its output beside it, and end this process."""

    def prepared() -> None:
        signal.alarm(PATIENCE)
        os.environ.update(environment)
        os.chdir(desk)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(desk.with_name(name), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            os.dup2(file, descriptor)
        work()

    _ending_with(prepared)


def _ending_with(work: Callable[[], None]) -> NoReturn:
    """Do some work and end this process, with the exit code that the work would have ended a program with."""
    code = 70
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _command(words: list[str], desk: Path, moment: Moment | None) -> None:
    here = _Dying(desk, moment if moment and not moment.in_run else None, RAN if moment is None else "")
    _fork_runs(desk, moment if moment and moment.in_run else None, listing=moment is None)
    try:
        run_main(words)
    finally:
        here.list()


def run_main(words: list[str]) -> None:
    sys.argv = ["smg", *words]
    smg.cli.main()


class _Dying:
    """Counts operations by kind, and kills the process at one of them."""

    def __init__(self, desk: Path, moment: Moment | None, listed: str) -> None:
        self.moment, self.left = moment, moment.number if moment else 0
        self.desk, self.listed, self.seen = desk, listed, list[str]()
        if listed or (moment and moment.kind):
            Operations(desk, self.on_operation)

    def on_operation(self, operation: Operation, when: str, half: Half | None) -> None:
        kinds = [f"{when} {operation.kind}", *(["in write"] if half else [])]
        self.seen += kinds
        if self.moment and self.moment.kind in kinds:
            self.left -= 1
            if self.left == 0:
                if half and self.moment.kind == "in write":
                    half()
                os.close(os.open(self.desk.with_name(KILLED), os.O_CREAT | os.O_WRONLY))
                os.kill(os.getpid(), signal.SIGKILL)

    def list(self) -> None:
        """Write which operations there were."""
        if self.listed:
            self.desk.with_name(self.listed).write_text(json.dumps(self.seen))


def _fork_runs(desk: Path, moment: Moment | None, listing: bool) -> None:
    """Let a bench fork its runs from this warm process; everything else of it is as it is."""

    class Forked:
        """As much of subprocess.Popen as a bench uses."""

        def __init__(self, command: list[str], stderr: Any, preexec_fn: Callable[[], None], **_: Any) -> None:
            self.code: int | None = None
            self.pid = os.fork()
            if self.pid:
                return
            _ending_with(partial(self._run, command, stderr, preexec_fn))

        def _run(self, command: list[str], stderr: Any, preexec_fn: Callable[[], None]) -> None:
            os.setsid()
            preexec_fn()
            os.dup2(stderr.fileno(), 2)
            here = _Dying(desk, moment, RUNS if listing else "")
            try:
                run_main(command[3:])
            finally:
                here.list()

        def poll(self) -> int | None:
            if self.code is None:
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if done else None
            return self.code

        def wait(self, timeout: float) -> int | None:
            while self.poll() is None:
                time.sleep(0.005)
            return self.code

        def send_signal(self, number: int) -> None:
            if self.poll() is None:
                os.kill(self.pid, number)

        def kill(self) -> None:
            self.send_signal(signal.SIGKILL)

    fake = SimpleNamespace(Popen=Forked, DEVNULL=-3, TimeoutExpired=TimeoutError)
    smg.bench.workers.subprocess = fake  # type: ignore[assignment]
