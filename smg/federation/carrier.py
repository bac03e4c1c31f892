"""What runs inside NVFLARE's job processes: two classes that carry bytes and know nothing of networks or scans.

    learner --socket--> Port (incoming hospital) --Collab, by the relay--> Port (other hospital) --socket--> its service

A job is one attempt: it lasts as long as the learner's connection. What is asked and answered is between the learner
and the services; a `Port` hands on bytes, and the `Relay` only starts the incoming hospital's. With certificates,
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

DAYS = 100 * 86400.0  # a round may take long: the job ends with the learner's connection


class Relay:
    """The server's part: it waits while the incoming hospital's port is at work."""

    def __init__(self, incoming: str) -> None:
        self.incoming = incoming

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """End with NVFLARE's server, should that be killed."""
        end_with_parent()

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Let the incoming hospital ask, until its learner is done or gone."""
        (port,) = collab.get_clients([self.incoming])
        port(timeout=DAYS).carry()


class Port:
    """A hospital's part: it carries questions out for a learner, or in to the service."""

    def __init__(self, secure: bool = True) -> None:
        self.secure = secure  # encrypt between hospitals; needs certificates

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """End with NVFLARE's client, should that be killed."""
        end_with_parent()

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, question: bytes) -> bytes:
        """Hand a question to this hospital's service and return its answer."""
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
                pass  # the learner is done, stopped or dead; the job ends and smg's checkpoint says what is left
            finally:
                learner.close()

    def _carried(self, learner: Frames, peers: dict[str, Any], header: dict[str, Any], question: bytes) -> None:
        reply = {"number": header["number"]}
        try:
            peer = peers[header["hospital"]]
            answer = peer(timeout=header["timeout"], secure=self.secure).answer(question)
        except (CollabCallError, RunAborted, KeyError, RuntimeError) as error:
            reply, answer = reply | {"absent": f"{type(error).__name__}: {error}"[:300]}, b""
        with suppress(OSError):  # the learner is gone, and `carry` sees it, too
            learner.send(reply, answer)


def _folder() -> Path:
    return Path(os.environ[FOLDER])
