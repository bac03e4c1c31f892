"""A whole federation on one machine: relay and hospitals as processes of their own, with mutual TLS on loopback.

    FOLDER/federation/          the folders of all participants, and a log of each process
    FOLDER/hospitals/NAME/model the model's folder at hospital NAME

The demo and the experiments use it. The commands are those that users type, so nothing here is a second way.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from smg.errors import SmgError
from smg.federation.family import WITH_PARENT
from smg.federation.kit import RELAY, provision


class Loopback:
    """Run a relay and the services of some hospitals inside a `with` block; none of them is left afterwards."""

    def __init__(self, folder: Path, hospitals: Sequence[str]) -> None:
        self.folder, self.hospitals = folder, tuple(hospitals)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Loopback:
        provision(self.folder / "federation", list(self.hospitals), "localhost", free_port())
        try:
            self._start(RELAY, "serve", str(self.kit(RELAY)))
            for name in self.hospitals:
                self.model(name).parent.mkdir(parents=True, exist_ok=True)
                self._start(name, "join", str(self.model(name)), "--federation", str(self.kit(name)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kit(self, name: str) -> Path:
        """Return a participant's folder."""
        return self.folder / "federation" / name

    def model(self, name: str) -> Path:
        """Return the model's folder at a hospital."""
        return self.folder / "hospitals" / name / "model"

    def learn(self, name: str, data: Path, settings: Path, *words: str) -> None:
        """Let a hospital learn its site, while the others answer for theirs."""
        given = [str(self.model(name)), str(data), "--federation", str(self.kit(name)), "--config", str(settings)]
        command = smg("learn", *given, "--unguarded", "--quiet", *words)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SmgError(f"hospital {name}: {done.stderr.strip() or done.stdout.strip()}")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / "federation" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                smg("federation", *words),
                env=os.environ | {WITH_PARENT: "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running.append(process)


def smg(*words: str) -> Sequence[str]:
    """Return a command of smg, by the Python that runs now."""
    return [sys.executable, "-m", "smg", *words]


def free_port() -> int:
    """Return a port of loopback on which nothing listens."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
