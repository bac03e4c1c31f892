"""The two classes that run inside NVFLARE's job processes; they carry bytes and know nothing of networks or scans.

    learner --socket--> Port (incoming hospital) --Collab, by the relay--> Port (other hospital) --socket--> its service

A job is one attempt and lasts as long as the learner's connection. Only the learner and the services interpret
questions and answers. A `Port` forwards bytes. The `Relay` only starts the incoming port. With certificates,
questions and answers are also encrypted between the hospitals, so that the relay cannot read them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError, RunAborted

from smg.federation.family import end_with_parent
from smg.federation.local_socket import ANSWERS, FOLDER, LEARNER, Frames, connect

DAYS = 100 * 86400.0  # no timeout, since a round may take long; the job ends with the learner's connection


class Relay:
    """The server's part, which waits while the incoming hospital's port works."""

    def __init__(self, incoming: str) -> None:
        self.incoming = incoming

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """End this process when NVFLARE's server is killed."""
        end_with_parent()

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Run the incoming hospital's port until its learner has finished or died."""
        (port,) = collab.get_clients([self.incoming])
        port(timeout=DAYS).carry()


class Port:
    """A hospital's part, which carries questions from its learner, or to its service."""

    def __init__(self, secure: bool = True) -> None:
        self.secure = secure  # encrypt between hospitals; needs certificates

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """End this process when NVFLARE's client is killed."""
        end_with_parent()

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, question: bytes) -> bytes:
        """Pass a question to this hospital's service and return the answer."""
        service = connect(_folder() / ANSWERS)
        try:
            service.send({"caller": collab.caller}, question)
            return service.receive()[1]
        finally:
            service.close()

    @collab.publish  # type: ignore[untyped-decorator]
    def carry(self) -> None:
        """Carry the learner's questions until it closes its connection."""
        if collab.caller != "server":
            raise PermissionError("only the relay starts a round")
        learner = connect(_folder() / LEARNER)
        peers = {proxy.name: proxy for proxy in collab.other_clients}
        with ThreadPoolExecutor(2 * max(len(peers), 1)) as threads:
            try:
                learner.send({"members": sorted(peers)})
                while True:
                    header, question = learner.receive()
                    threads.submit(self._carried, learner, peers, header, question)
            except (EOFError, OSError):
                pass  # the learner has finished, stopped or died; the job ends, and smg resumes from its checkpoint
            finally:
                learner.close()

    def _carried(self, learner: Frames, peers: dict[str, Any], header: dict[str, Any], question: bytes) -> None:
        reply = {"number": header["number"]}
        try:
            peer = peers[header["hospital"]]
            answer = peer(timeout=header["timeout"], secure=self.secure).answer(question)
        except (CollabCallError, RunAborted, KeyError, RuntimeError) as error:
            reply, answer = reply | {"absent": f"{type(error).__name__}: {error}"[:300]}, b""
        with suppress(OSError):  # the learner is gone; `carry` notices it too
            learner.send(reply, answer)


def _folder() -> Path:
    return Path(os.environ[FOLDER])
