"""Exchange frames between smg's and NVFLARE's processes on one machine, over a Unix socket in a participant's folder.

A frame is a header as JSON and a body of bytes. The folder is readable by its owner alone, so the socket is, too.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

FOLDER = "SMG_FEDERATION"  # environment variable of NVFLARE's processes: the participant's folder
ANSWERS, LEARNER = "answers.socket", "learner.socket"  # sockets of a hospital's service and of the learner
LENGTHS = struct.Struct("<IQ")  # of the header and of the body
LONGEST = 100  # characters of a socket's path; the kernel takes 108


class Frames:
    """One connection; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, Lock()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one frame."""
        head = json.dumps(header).encode()
        with self._sending:
            self._socket.sendall(LENGTHS.pack(len(head), len(body)) + head)
            if body:
                self._socket.sendall(body)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next frame; raise EOFError if the other side is gone."""
        head, body = LENGTHS.unpack(self._exactly(LENGTHS.size))
        header: dict[str, Any] = json.loads(self._exactly(head))
        return header, bytes(self._exactly(body))

    def close(self) -> None:
        """Close the connection, and wake a thread that waits for a frame."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            try:
                more = self._socket.recv_into(view[done:])
            except OSError:
                more = 0
            if not more:
                raise EOFError
            done += more
        return data


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path; replace a socket that a dead process left."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    with _short(path) as address:
        made.bind(address)
    path.chmod(0o600)
    made.listen()
    return made


def connect(path: Path) -> Frames:
    """Return a connection to the listener at a path; raise OSError if there is none."""
    made = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            made.connect(address)
    except OSError:
        made.close()
        raise
    return Frames(made)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path within the kernel's limit, through the folder's descriptor if necessary."""
    if len(str(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
