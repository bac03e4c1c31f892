"""A federation of real processes on loopback, as users run it: a relay, and a service for each hospital."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from smg.federation.family import WITH_PARENT
from smg.federation.kit import provision

TINY = (
    "iterations=4", "batch=2", "replay.batch=4", "preparation.size=16", "network.width=2", "network.depth=2",
    "validate_every=2", "augment=mild",
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class Processes:
    """Commands in the background; none is left at the end, nor any of their children."""

    def __init__(self, folder: Path, hospitals: list[str]) -> None:
        self.folder, self.hospitals = folder, hospitals
        provision(folder / "fed", hospitals, "localhost", free_port())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: set[int] = set()

    def __enter__(self) -> Processes:
        self.start("relay")
        for name in self.hospitals:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        orphans = [
            one for one in psutil.wait_procs(_alive(self.seen), timeout=10)[1] if str(self.folder) in _words(one)
        ]
        for process in orphans:
            process.kill()
        assert not orphans

    def start(self, name: str) -> None:
        """Start the relay, or a hospital's service."""
        words = ["serve", "fed/relay"] if name == "relay" else ["join", f"{name}/model", "--federation", f"fed/{name}"]
        self.running[name] = self.popen("federation", *words, log=self.folder / f"{name}.log")

    def popen(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "smg", *words],
                cwd=self.folder,
                env=os.environ | {WITH_PARENT: "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def learning(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a round at a hospital."""
        given = [setting for setting in TINY if not ("--iterations" in words and setting.startswith("iterations"))]
        settings = [word for setting in given for word in ("--set", setting)]
        more = ["--federation", f"fed/{name}", "--unguarded", *settings, *words]
        return self.popen("learn", f"{name}/model", f"data/{name}", *more, log=self.folder / f"learn-{name}.log")

    def learn(self, name: str, *words: str) -> None:
        """Run a round at a hospital, to its end."""
        process = self.learning(name, *words)
        process.wait(600)
        self.look()
        assert process.returncode == 0, (self.folder / f"learn-{name}.log").read_text()

    def look(self) -> list[psutil.Process]:
        """Return all processes of the federation that run now, and remember them."""
        found = []
        for process in self.running.values():
            if process.poll() is None:
                with suppress(psutil.NoSuchProcess):
                    parent = psutil.Process(process.pid)
                    found += [parent, *parent.children(recursive=True)]
        self.seen |= {one.pid for one in found}
        return found


def _alive(pids: set[int]) -> list[psutil.Process]:
    """Return the processes with these ids that still run."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _words(process: psutil.Process) -> str:
    """Return a process's command line; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
