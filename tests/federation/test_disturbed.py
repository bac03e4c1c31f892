"""Rounds while processes are frozen and killed: hospitals, relay and learner, at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from smg.federation.peers import Peers
from smg.federation.roster import Roster
from smg.federation.round_exchange import pseudonyms
from smg.federation.service import Service
from smg.federation.transport import InProcess
from smg.learner.learner import Learner
from tests.federation.land import Processes
from tests.federation.test_processes import settings
from tests.federation.test_round import NAMES, Land, flat

ITERATIONS = 400
WORDS = ("--iterations", str(ITERATIONS), "--timeout", "8")
BLOWS = (
    "freeze service", "freeze relay's server", "freeze learner", "kill port", "kill client", "kill service",
    "kill relay's server", "kill relay", "kill learner",
)  # fmt: skip
FROZEN = 4.0  # seconds
SEED = int(os.environ.get("SMG_DISTURBED_SEED", random.randrange(10**6)))


@pytest.mark.long
def test_the_end_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    """Every kind of process is frozen or killed once while the third hospital learns; the weights are the same bits."""
    print(f"SMG_DISTURBED_SEED={SEED}")
    rng = random.Random(SEED)
    config = settings().model_copy(update={"iterations": ITERATIONS})
    calm = Land(tmp_path / "calm", "", config)
    for name in NAMES:
        calm.learn(name)
    (tmp_path / "data").symlink_to(tmp_path / "calm" / "data")
    with Processes(tmp_path, list(NAMES)) as land:
        for name in NAMES[:2]:
            land.learn(name, *WORDS)
        learner = land.learning("Cedar", *WORDS)
        blows = list(BLOWS)
        rng.shuffle(blows)
        for blow in blows:
            assert _under_way(tmp_path, learner), "the round was over before every blow; raise ITERATIONS"
            time.sleep(rng.uniform(0.5, 3.0))
            print(f"{time.monotonic():.1f} {blow}")
            learner = _struck(land, learner, blow, rng)
        for _ in range(3):
            learner.wait(500)
            if learner.returncode == 0:
                break
            learner = land.learning("Cedar", *WORDS)  # the same command goes on
        assert learner.returncode == 0, (tmp_path / "learn-Cedar.log").read_text()
        land.look()
    assert torch.equal(flat(Learner(tmp_path / "Cedar/model")), flat(Learner(tmp_path / "calm/Cedar/model")))
    for name in NAMES[:2]:
        _catch_up(tmp_path, name)
        assert torch.equal(flat(Learner(tmp_path / name / "model")), flat(Learner(tmp_path / "Cedar/model")))
        assert list(Learner(tmp_path / name / "model").replay()) == [name]


def _catch_up(folder: Path, name: str) -> None:
    """Bring a hospital's rounds to those of Cedar, as the next round does: it may have been away at the end."""
    way = InProcess({"Cedar": Service("Cedar", folder / "Cedar/model", b"Cedar")}, me=name)
    Peers(Roster(way), ["Cedar"], folder / name / "model", pseudonyms(name.encode())).bring_together()


def _under_way(folder: Path, learner: subprocess.Popen[bytes]) -> bool:
    """Wait until the round trains, or has ended."""
    log = folder / "fed/Amber/answers.jsonl"
    before = log.read_text().count("gradients")
    for _ in range(600):
        if learner.poll() is not None:
            return False
        if log.read_text().count("gradients") > before + 4:
            return True
        time.sleep(0.2)
    raise AssertionError((folder / "learn-Cedar.log").read_text())


def _struck(
    land: Processes, learner: subprocess.Popen[bytes], blow: str, rng: random.Random
) -> subprocess.Popen[bytes]:
    """Freeze or kill one process; start again what a user or a service manager would."""
    land.look()
    victim = rng.choice(NAMES[:2])
    service = psutil.Process(land.running[victim].pid)
    (client,) = service.children()
    relay = psutil.Process(land.running["relay"].pid)
    (server,) = relay.children()
    if blow.startswith("freeze"):
        frozen = {"service": service, "relay's server": server, "learner": psutil.Process(learner.pid)}
        one = frozen[blow.removeprefix("freeze ")]
        one.suspend()
        time.sleep(FROZEN)
        one.resume()
    elif blow == "kill port":
        for port in client.children():
            port.kill()
    elif blow == "kill client":
        client.kill()
    elif blow == "kill service":
        service.kill()
        land.running[victim].wait()
        land.start(victim)
    elif blow == "kill relay's server":
        server.kill()
    elif blow == "kill relay":
        relay.kill()
        land.running["relay"].wait()
        land.start("relay")
    else:
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        return land.learning("Cedar", *WORDS)
    return learner


@pytest.mark.long
def test_going_on_without_a_hospital(tmp_path: Path) -> None:
    """With `drop`, a hospital that left is left out, and the record says for how many iterations."""
    calm = Land(tmp_path / "calm", "", settings())
    assert calm.sites
    (tmp_path / "data").symlink_to(tmp_path / "calm" / "data")
    with Processes(tmp_path, list(NAMES)) as land:
        for name in NAMES[:2]:
            land.learn(name)
        learner = land.learning("Cedar", "--iterations", "60", "--timeout", "8", "--absent", "drop")
        assert _under_way(tmp_path, learner)
        land.running["Birch"].send_signal(signal.SIGINT)  # it leaves
        assert land.running["Birch"].wait(30) == 0
        learner.wait(500)
        assert learner.returncode == 0, (tmp_path / "learn-Cedar.log").read_text()
    own = Learner(tmp_path / "Cedar/model")
    without = (own.store.read_round(3).federation or {})["iterations_without"]
    assert set(without) == {"Birch"}
    assert 0 < without["Birch"] < 60
