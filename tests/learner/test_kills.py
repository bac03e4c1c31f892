"""Killed at any moment, started again, the same to the bit."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smg.methods import METHODS
from tests.learner.streams import Moments, fingerprint, tiny_stream, write_sites

KILLS = 5  # for each case: one in every kind of moment, fifty-five in all
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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


CASES = [(name, {"method": name}) for name in METHODS]
CASES[0] = ("finetune", {"method": "finetune", "select": "best", "keep_optimiser": True})
BATCH_NORM = {"width": 4, "depth": 1, "norm": "batch"}
CASES.append(("sga+c", {"method": "sga+c", "augment": "strong", "select": "average", "network": BATCH_NORM}))


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_killed_anywhere_and_started_again_it_ends_the_same(
    name: str, changes: dict[str, object], data: Path, tmp_path: Path
) -> None:
    rng = random.Random(name)
    assert _in_a_process(data, tmp_path / "straight", changes) == 0
    for kind in rng.sample(Moments.KINDS, KILLS):
        fatal = 1 if kind == "before removing" else rng.randint(1, 4)
        assert _in_a_process(data, tmp_path / "killed", changes, kind, fatal) == -signal.SIGKILL, (kind, fatal)
    assert _in_a_process(data, tmp_path / "killed", changes) == 0
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "straight")


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
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "straight")
