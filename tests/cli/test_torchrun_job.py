"""The commands that torchrun starts several times: several processes equal one, and speak as one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import smg.learner.processes as group
from smg.cli import torchrun_job
from smg.cli.terminal import TrainingProgress
from smg.errors import Misuse, SmgError
from smg.learner.learner import Learner
from smg.learner.processes import joined
from smg.learner.round import Stopped
from tests.cli.commands import TINY, smg
from tests.learner.streams import fingerprint, write_sites

ROOT = Path(__file__).parents[2]
STREAM = ("--data", "sites", "--order", "A", "--unseen", "B", "--method", "jm")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    write_sites(folder / "sites")
    return folder


def by_two(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "smg"]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*torchrun, *words], cwd=cwd, env=paths, capture_output=True, text=True, timeout=600, check=False
    )


def weights(model: Path, number: int) -> torch.Tensor:
    state = Learner(model).store.read_tensors(number, "weights") if number else Learner(model).network(0).state_dict()
    return torch.cat([state[name].flatten() for name in sorted(state)])


def is_like(two: Path, one: Path, number: int) -> bool:
    """As near as sums of floating-point numbers in another order are, measured by how far the round has gone."""
    apart, way = weights(two, number) - weights(one, number), weights(one, number) - weights(one, number - 1)
    return bool(apart.norm() < 2e-3 * way.norm())


def test_learn(desk: Path) -> None:
    words = ("sites/B", "--tolerance", "100", "--json")
    assert smg("learn", "one", "sites/A", *TINY, cwd=desk).returncode == 0
    shutil.copytree(desk / "one", desk / "two")
    assert smg("learn", "one", *words, cwd=desk).returncode == 0
    result = by_two("learn", "two", *words, cwd=desk)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["site"] == "B"  # once
    assert result.stderr.count("preparing B 4/4") == 1
    assert is_like(desk / "two", desk / "one", 2)
    assert [event.event for event in Learner(desk / "two").store.journal()] == ["created", "learned", "learned"]


def test_run(desk: Path) -> None:
    for out, run in (("alone", smg), ("together", by_two)):
        result = run("run", *STREAM, *TINY, "--json", "--out", out, cwd=desk)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["stream"] == {"order": ["A"], "unseen": "B"}
    assert fingerprint(desk / "together").keys() == fingerprint(desk / "alone").keys()
    events = [json.loads(line)["event"] for line in (desk / "together/log.jsonl").read_text().splitlines()]
    assert (events[0], events[-1], events.count("evaluation")) == ("begin", "end", 2)
    assert is_like(desk / "together/model", desk / "alone/model", 1)


# --- what one process of several does ---------------------------------------------------------------------------------


@pytest.fixture(params=["0", "1"])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process, as if it were one of two; what it does with signals is undone."""
    for name in torchrun_job.TORCHRUN:
        monkeypatch.setenv(name, request.param if "RANK" in name else "2")
    monkeypatch.setattr(torchrun_job, "GRACE", 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield request.param
    for number, handler in before.items():
        signal.signal(number, handler)


def test_other_commands_are_work_for_one(rank: str, tmp_path: Path) -> None:
    result = smg("bench", "demo", cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("smg: bench")
    assert "torchrun" in line


def test_a_usage_error_is_printed_once(rank: str) -> None:
    result = smg("learn", "--no-such-option")
    assert result.returncode == 2
    assert bool(result.stderr) == (rank == "0")


def say_and_fail(fault: Exception) -> None:
    with torchrun_job.one_voice():
        print("this is said")
        raise fault


def test_the_first_is_heard_and_waits_for_none(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(torchrun_job, "time", SimpleNamespace(sleep=waited.append))
    with pytest.raises(SmgError, match="no such site"):
        say_and_fail(SmgError("no such site"))
    assert waited == [torchrun_job.GRACE] * (rank == "1")  # in which torchrun ends it, if the first has failed as well


def test_one_that_has_lost_the_others(rank: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SmgError, SystemExit)) as end:
        say_and_fail(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert isinstance(end.value, SmgError) == (rank == "0")
    assert capsys.readouterr().out == ("this is said\n" if rank == "0" else "")
    with pytest.raises(RuntimeError, match="a fault of ours"):
        say_and_fail(RuntimeError("a fault of ours"))


def test_ctrl_c_is_reported_once(rank: str) -> None:
    with pytest.raises(KeyboardInterrupt if rank == "0" else SystemExit), torchrun_job.one_voice():
        raise KeyboardInterrupt


def test_the_first_decides_when_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    with TrainingProgress(9) as on_step:
        os.kill(os.getpid(), signal.SIGINT)
        assert on_step.stopping
        monkeypatch.setattr(group, "first_process", lambda: False)
        on_step._end(3)
        monkeypatch.setattr(group, "first_process", lambda: True)
        with pytest.raises(Stopped, match="iteration 3 of 9"):
            on_step._end(3)


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Misuse, match=r"2 processes .*1 GPU; .*--nproc-per-node 1"), joined():
        pass


def test_some_of_torchruns_words_are_not_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # as other starters of jobs leave them
        monkeypatch.setenv(name, "2")
    assert torchrun_job.processes() == 1


def test_who_is_stopped_does_not_wait_to_be_heard(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun_job, "GRACE", 1e6)
    with pytest.raises(Stopped if rank == "0" else SystemExit), torchrun_job.one_voice():
        raise Stopped("stopped")
