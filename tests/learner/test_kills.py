"""Killed at any moment, or out of disk, and started again, the same to the bit."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401, which torch's optimisers import when they are first made: once, not in every victim

from smg.errors import SmgError
from smg.learner.store import Store
from smg.learner.stream import Stream
from smg.methods import METHODS
from tests.learner.streams import Moments, fingerprint, noted, tiny_stream, write_sites

FORK = multiprocessing.get_context("fork")  # torch is imported once, and not again by every victim


def _run(data: Path, folder: Path, changes: dict[str, object], kind: str, fatal: int) -> None:
    Moments(kind, fatal)
    tiny_stream(data, **changes).run(folder)


def _in_a_process(data: Path, folder: Path, changes: dict[str, object], kind: str = "", fatal: int = 0) -> int:
    process = FORK.Process(target=_run, args=(data, folder, changes, kind, fatal))
    process.start()
    process.join(timeout=120)
    assert process.exitcode is not None
    return process.exitcode


def assert_alike(run: Path, other: Path) -> None:
    assert fingerprint(run) == fingerprint(other)
    assert noted(run / "model") == noted(other / "model")
    assert not (run / "model" / "progress").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


BATCH_NORM = {"width": 4, "depth": 1, "norm": "batch"}
MORE = {  # what else there is to go on with
    "finetune": {"select": "best", "keep_optimiser": True},
    "sga+c": {"augment": "strong", "select": "average", "network": BATCH_NORM},
}
WINDOWS = {"method": "sga+c", "augment": "mild", "preparation": {"size": 16, "spacing": 0.4, "adjacent": 3}}
STYLE = {"method": "lwf", "memory": "style", "select": "average", "preparation": {"size": 16, "spacing": 0.4}}
MERGED = {"method": "ewc", "merge": 0.6, "merge_by": "fisher", "select": "best", "validate_every": 1}
CASES = [(name, {"method": name} | MORE.get(name, {})) for name in (*METHODS, "sga+c")] + [
    ("windows", WINDOWS),
    ("style", STYLE),
    ("merged", MERGED),
    ("shared", {"method": "sga", "share": True, "batch": 4}),
]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_killed_anywhere_and_started_again_it_ends_the_same(
    name: str, changes: dict[str, object], data: Path, tmp_path: Path
) -> None:
    rng = random.Random(name)
    assert _in_a_process(data, tmp_path / "straight", changes) == 0
    for kind in rng.sample(Moments.KINDS, len(Moments.KINDS)):
        fatal = rng.randint(1, {"before removing": 1, "closing": 8}.get(kind, 4))
        assert _in_a_process(data, tmp_path / "killed", changes, kind, fatal) == -signal.SIGKILL, (kind, fatal)
    assert _in_a_process(data, tmp_path / "killed", changes) == 0
    assert_alike(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.remembers()])
def test_killed_while_a_method_looks_at_a_round_it_ends_the_same(name: str, data: Path, tmp_path: Path) -> None:
    """In begin_round, and twice in end_round: before it, and after some of its passes or all of it."""
    changes = {"method": name, "select": "average"}
    assert _in_a_process(data, tmp_path / "straight", changes) == 0
    for fatal in (2, 1, 5 if name != "lwf" else 2):
        assert _in_a_process(data, tmp_path / "killed", changes, Moments.LOOKING, fatal) == -signal.SIGKILL, fatal
    assert _in_a_process(data, tmp_path / "killed", changes) == 0
    assert_alike(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.parametrize("method", ["jm", "ewc"])
def test_killed_while_importances_for_merging_are_found_it_ends_the_same(
    method: str, data: Path, tmp_path: Path
) -> None:
    """Among the passes over the site, in the first round and in the second, before and after a method's own."""
    changes = {"method": method, "merge": 0.6, "merge_by": "fisher", "select": "best", "validate_every": 1}
    assert _in_a_process(data, tmp_path / "straight", changes) == 0
    for fatal in (3, 14) if method == "jm" else (5, 24):
        assert _in_a_process(data, tmp_path / "killed", changes, Moments.LOOKING, fatal) == -signal.SIGKILL, fatal
    assert _in_a_process(data, tmp_path / "killed", changes) == 0
    assert_alike(tmp_path / "killed", tmp_path / "straight")


class Killed(BaseException):
    """As good as SIGKILL where a death leaves nothing behind but what was written, and faster."""


@contextlib.contextmanager
def killing(name: str, call: int, after: bool) -> Iterator[None]:
    """Dies before or after the n-th call of one of the store's methods."""
    original, calls = getattr(Store, name), itertools.count(1)

    def fatal(store: Store, *args: object, **more: object) -> None:
        last = next(calls) == call
        if after or not last:
            original(store, *args, **more)
        if last:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, name, fatal)
        with pytest.raises(Killed):
            yield


def test_killed_anywhere_in_the_closing_of_the_last_round(data: Path, tmp_path: Path) -> None:
    """After which no other round begins that could tidy up: noted once all the same, and nothing left lying about."""
    tiny_stream(data).run(tmp_path / "straight")
    with killing("write_round", 3, after=False):
        tiny_stream(data).run(tmp_path / "trained")
    for name, after in itertools.product(Moments.CLOSING, (False, True)):
        killed = tmp_path / f"{name} {after}"
        shutil.copytree(tmp_path / "trained", killed)
        with killing(name, 1, after):
            tiny_stream(data).run(killed)
        tiny_stream(data).run(killed)
        assert_alike(killed, tmp_path / "straight")


class Refusing:
    """Every write is refused once, when half of it has reached the file; tried again, it succeeds."""

    def __init__(self, patch: pytest.MonkeyPatch, error: Callable[[], BaseException]) -> None:
        self.refused: dict[str, str] = {}  # what was, and the name of its file
        self.open, self.error = io.open, error
        patch.setattr(io, "open", self._opened)

    def _opened(self, path: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        file = self.open(path, mode, *args, **more)
        if mode[0] in "wa" and Path(path).name != "lock":
            write = file.write

            def half(data: Any) -> int:
                what = _identity(Path(path), data)
                if what in self.refused:
                    return write(data)
                self.refused[what] = _meant(Path(path))
                write(data[: len(data) // 2])
                raise self.error()

            file.write = half
        return file


TIMES = ("time", "when", "previous", "sha256")  # what no two attempts have in common


def _identity(path: Path, data: Any) -> str:
    """The file that is meant to be written; of a file of lines, the line but for its time; of checkpoints, how far.

    A checkpoint is named by its own hash, and holds the seconds that were spent: no attempt's is another's.
    """
    if path.suffix == ".jsonl":
        line = json.loads(data.decode().strip())
        return f"{path.name} {[line[key] for key in sorted(line) if key not in TIMES]}"
    if path.parent.name == "progress":
        whole = bytes(data)
        head = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
        about = json.loads(head["__metadata__"]["about"])
        return f"progress {[about[key] for key in ('round', 'iteration', 'ended')]}"
    return str(path.with_name(_meant(path)))


def _meant(path: Path) -> str:
    """The name that a temporary file is to get."""
    return path.name.split("-")[0].lstrip(".")


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, "No space left")


@pytest.mark.parametrize("error", [full_disk, Killed])
def test_stopped_once_in_the_middle_of_every_write(
    error: Callable[[], BaseException], data: Path, tmp_path: Path
) -> None:
    """By a full disk, which is one line that names the file, or for good."""

    def stream() -> Stream:
        made = tiny_stream(data, method="sga+c", iterations=2)
        return replace(made, unseen=None)

    stream().run(tmp_path / "straight")
    said, finished = [], False
    with pytest.MonkeyPatch.context() as patch:
        refusing = Refusing(patch, error)
        while not finished:
            try:
                stream().run(tmp_path / "run")
                finished = True
            except (SmgError, Killed) as stopped:
                said.append(str(stopped))
    for name, line in zip(refusing.refused.values(), said, strict=True):
        assert error is Killed or f"{name}: No space left; nothing was lost" in line
    kinds = "model.json round.json weights exemplars progress journal log.jsonl evaluations results.json split.json"
    assert all(any(kind in what for what in refusing.refused) for kind in kinds.split())
    assert_alike(tmp_path / "run", tmp_path / "straight")


def test_a_job_of_two_processes_killed_and_started_again(data: Path, tmp_path: Path) -> None:
    def job(folder: Path) -> subprocess.Popen[bytes]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        script = Path(__file__).with_name("torchrun_stream.py")
        root = Path(__file__).parents[2]
        return subprocess.Popen(
            [*torchrun, str(script), str(data), str(folder), "12"],
            env=os.environ | {"PYTHONPATH": str(root)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    assert job(tmp_path / "straight").wait(timeout=300) == 0
    for number, sign in enumerate(("model/model.json", "model/rounds/001", "model/rounds/002")):
        victim = job(tmp_path / "killed")
        deadline = time.monotonic() + 120
        while not (tmp_path / "killed" / sign).exists() and time.monotonic() < deadline and victim.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05 * number)
        workers = (
            Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
        )  # each a session of its own
        os.killpg(victim.pid, signal.SIGKILL)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(worker), signal.SIGKILL)
        victim.wait()
        time.sleep(0.2)
    assert job(tmp_path / "killed").wait(timeout=300) == 0
    assert_alike(tmp_path / "killed", tmp_path / "straight")
