"""A bench on a real Slurm of one node: preempted, left, rejoined, cancelled, and equal to the local one to the bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smg.bench.slurm_queue import queue, queued_runs, submitted
from smg.bench.workers import Bench
from smg.errors import SmgError
from smg.learner.events import read_events
from smg.report.watching import watch_all
from tests.bench.grids import grid, run_all
from tests.bench.slurm_node import installed, slurm_node
from tests.bench.test_workers import wait_for
from tests.learner.streams import fingerprint, write_sites

WANTED = "needs root and Slurm: apt-get install --no-install-recommends slurm-wlm munge"
needs_slurm = pytest.mark.skipif(not installed() and "SMG_SLURM" not in os.environ, reason=WANTED)
SHORT = "import smg.bench.slurm as s; s.POLL, s.SETTLE = 0.3, 2.0; from smg.__main__ import main; main()"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_node(tmp_path_factory.mktemp("slurm")) as environment, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        yield environment


def start(folder: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start `smg bench --slurm` with a shorter look at the queue."""
    words = ["bench", str(folder / "grid.yaml"), "--data", str(folder / "sites"), "--out", str(out), "--slurm", *more]
    return subprocess.Popen(
        [sys.executable, "-c", SHORT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def trains(run: Path) -> bool:
    return any(event.event == "step" for event in read_events(run))


@pytest.mark.long
@needs_slurm
def test_a_bench_that_is_preempted_left_and_rejoined_equals_the_local_one(tmp_path: Path, node: dict[str, str]) -> None:
    write_sites(tmp_path / "sites")
    plan = grid(tmp_path, methods=["finetune", "sga+c"], seeds=[0, 1], iterations=150, log_every=5, validate_every=50)
    out = tmp_path / "a bench"
    first = start(tmp_path, out, "--partition", "low")
    wait_for(lambda: trains(out / "stream/finetune/seed-0"))
    subprocess.run(["sbatch", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap=true"], check=True)
    (name,) = submitted(out)
    wait_for(lambda: queue([name]).get((name, 0), ("", ""))[0] == "PENDING")  # preempted
    runs, _ = watch_all([out])
    assert "stopped" not in {run.state for run in runs}
    first.send_signal(signal.SIGINT)
    _, printed = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "jobs go on" in printed.splitlines()[-1]
    again = start(tmp_path, out, "--partition", "low")
    text, printed = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    assert "[4/4]" in printed
    assert "tables:" in text
    assert list(submitted(out)) == [name]  # nothing was submitted twice

    begun = [event.event for event in read_events(out / "stream/finetune/seed-0")].count("begin")
    assert begun == 2
    log = (out / "slurm" / f"{name}_0.log").read_text()
    assert "smg: stopped at iteration" in log
    run_all(Bench(plan, tmp_path / "local", tmp_path / "sites", workers=2, threads=1))
    for run in plan.runs():
        here, there = (fingerprint(run.folder(bench)) for bench in (tmp_path / "local", out))
        assert here == there


@pytest.mark.long
@needs_slurm
def test_failures_are_reported_and_a_cancelled_bench_stays_cancelled(tmp_path: Path, node: dict[str, str]) -> None:
    write_sites(tmp_path / "sites")
    grid(tmp_path, methods=[{"name": "jumpy", "method": "jm", "optimiser": {"rate": 1e30}}, "finetune"],
         iterations=100_000)  # fmt: skip
    out = tmp_path / "out"
    bench = start(tmp_path, out)
    wait_for(lambda: trains(out / "stream/finetune/seed-0"))
    wait_for(lambda: (out / "stream/jumpy/seed-0/failure.txt").exists())
    cancelled = start(tmp_path, out, "--cancel")
    assert "cancelled" in cancelled.communicate(timeout=60)[0]
    _, printed = bench.communicate(timeout=120)
    assert bench.returncode == 1
    assert "the loss of the incoming batch is nan" in printed
    assert "left the queue without results" in printed
    assert queue(list(submitted(out))) == {}
    assert list((out / "stream/finetune/seed-0/model/progress").iterdir())  # with a checkpoint


def test_what_slurm_does_not_say_is_not_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SmgError, match="squeue: no such command"):
        queue(["smg-a"])
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2; exit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    with pytest.raises(SmgError, match=r"squeue failed: .*Unable to contact; jobs .*go on"):
        queue(["smg-a"])
    folder = tmp_path / "bench"
    (folder / "slurm").mkdir(parents=True)
    (folder / "slurm/smg-a.json").write_text(json.dumps({"runs": ["s/jm/seed-0"]}))
    assert queued_runs(folder) == set()
