"""The transport of messages between hospitals, and an implementation within one process for trials and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from smg.errors import SmgError

Answering = Callable[[str, bytes], bytes]  # (asking hospital, question) -> answer, at a hospital


class Absent(SmgError):
    """Error for a hospital that does not answer now; it may answer later."""

    def __init__(self, hospital: str, why: str) -> None:
        super().__init__(f"hospital {hospital}: {why}")
        self.hospital = hospital


class Refused(SmgError):
    """Error for a hospital that refuses a question, for good or for now (`later`)."""

    def __init__(self, why: str, later: bool = False) -> None:
        super().__init__(why)
        self.later = later


class NotGreeted(Refused):
    """Error for a hospital whose service was restarted after the greeting."""

    def __init__(self, why: str) -> None:
        super().__init__(why, later=True)


class Transport(Protocol):
    """The interface of a transport."""

    def ask(self, hospital: str, question: bytes) -> Future[bytes]:
        """Send a question and return a future of the answer, whose error is `Absent` or `Refused`."""

    def close(self) -> None:
        """Close the transport."""


@dataclass
class Traffic:
    """The traffic of a transport: counted, and kept if a test inspects it."""

    keeps: bool = False
    journeys: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)  # (from, to, message)

    def note(self, sender: str, receiver: str, data: bytes) -> None:
        """Count a message, and keep it if asked to."""
        if self.keeps:
            self.messages.append((sender, receiver, data))


class InProcess:
    """Hospitals within this process: messages are serialised and threads answer, without a network."""

    def __init__(self, hospitals: Mapping[str, Answering], me: str = "incoming", keeps: bool = False) -> None:
        self.hospitals, self.me = dict(hospitals), me
        self.traffic = Traffic(keeps)
        self._threads = ThreadPoolExecutor(max(len(self.hospitals), 1), thread_name_prefix="hospital")

    def ask(self, hospital: str, question: bytes) -> Future[bytes]:
        return self._threads.submit(self._asked, hospital, question)

    def _asked(self, hospital: str, question: bytes) -> bytes:
        if hospital not in self.hospitals:
            raise Absent(hospital, "is not there")
        begun = time.monotonic()
        self.traffic.note(self.me, hospital, question)
        answer = self.hospitals[hospital](self.me, question)
        self.traffic.note(hospital, self.me, answer)
        self.traffic.journeys += 1
        self.traffic.sent += len(question)
        self.traffic.received += len(answer)
        self.traffic.seconds += time.monotonic() - begun
        return answer

    def close(self) -> None:
        self._threads.shutdown(wait=True)
