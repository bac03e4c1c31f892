"""Read scans in processes that may die, so that no scan ends a batch.

SimpleITK and DICOM's decoders are large libraries in C and C++: a damaged file can end the process that reads it, or
occupy it without end. So scans of those formats are read in processes of their own (`smg.sites.reader_process`), each
with a limit on processor time without progress and on memory beyond the scan's own size (`smg.patience`). A process is
started when it is first needed, serves one scan after another, and ends after a minute without work. On Windows, which
cannot pass open files between processes in this way, scans are read in the process itself.
"""

from __future__ import annotations

import atexit
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smg import patience
from smg.errors import SmgError
from smg.sites.formats import Array, Header, Truncated

AVAILABLE = os.name == "posix"
DAMAGED = "its header or its data are damaged; export the scan again"
NO_START = 97  # exit code of a process in which this package, or a library that reads scans, cannot be imported
PROGRAM = f"""
import sys
sys.path[:] = {{path!r}}
try:
    from smg.sites.reader_process import serve
    serve({{descriptor}})
except ImportError:
    sys.exit({NO_START})
"""


def import_path() -> list[str]:
    """Return where a process without start-up files finds modules: as here, and this package wherever it was found.

    An editable installation finds it by a hook of the start-up files, not by `sys.path`.
    """
    package = str(Path(__file__).parents[2])
    here = [os.path.abspath(path) for path in sys.path]
    return here if package in here else [*here, package]


class _Ended(Exception):
    """The process ended without an answer."""


class _Reader:
    """One reading process and the socket to it."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        with theirs:
            program = PROGRAM.format(path=import_path(), descriptor=theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        self.asked = 0

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """Return the answer to a request, and the descriptor of the voxels if there are any."""
        self.asked += 1
        descriptors: list[int] = []
        try:
            self.link.settimeout(patience.WAIT)
            self.link.sendall(json.dumps(request).encode() + b"\n")
            pending = b""
            while True:
                received, more, _, _ = socket.recv_fds(self.link, 1 << 16, 1)
                descriptors += more
                if not received:
                    raise _Ended
                *lines, pending = (pending + received).split(b"\n")
                for message in map(json.loads, lines):
                    if "answer" in message:
                        return message["answer"], descriptors.pop() if descriptors else None
                    self.link.settimeout(message["wait"])
        except (ConnectionError, ValueError):
            raise _Ended from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def end(self) -> int:
        """End the process, and return its exit code: that of its own end, where it has ended already."""
        self.link.close()
        try:
            return self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class _Readers:
    """The reading processes of this process: as many as threads ask at a time."""

    def __init__(self) -> None:
        self.process, self.lock, self.idle = os.getpid(), threading.Lock(), list[_Reader]()

    def take(self) -> _Reader:
        with self.lock:
            if self.process != os.getpid():  # a fork: the readers are the parent's
                self.process, self.idle = os.getpid(), []
            if self.idle:
                return self.idle.pop()
        return _Reader()

    def give_back(self, reader: _Reader) -> None:
        with self.lock:
            self.idle.append(reader)

    def end(self) -> None:
        """Close the sockets, which ends the processes."""
        with self.lock:
            ending, self.idle = self.idle, []
        if self.process == os.getpid():
            for reader in ending:
                reader.link.close()
            for reader in ending:
                reader.end()


_readers = _Readers()
atexit.register(_readers.end)


def read_header(path: Path) -> Header:
    """Return shape, geometry and size of a scan."""
    answer, _ = _ask(path, {"do": "header"})
    return Header(tuple(answer["shape"]), np.array(answer["affine"]), answer["bytes"])


def read_voxels(path: Path, limit: int) -> tuple[Array, Array]:
    """Return a scan's voxels, [k, j, i], and its affine; refuse a scan of more than `limit` bytes."""
    return _voxels(path, {"do": "volume", "limit": limit})


def read_dicom_mask(mask: Path, image: Path, roi: Sequence[str], limit: int) -> tuple[Array, Array]:
    """Return a SEG or RTSTRUCT on the grid of its image, and the affine."""
    return _voxels(mask, {"do": "mask", "image": str(image), "roi": list(roi), "limit": limit})


def structure_names(mask: Path) -> tuple[str, ...]:
    """Return the names of the structures in a SEG or RTSTRUCT, each once."""
    return tuple(_ask(mask, {"do": "structures"})[0]["names"])


def series_files(path: Path) -> list[Path]:
    """Return the files that the DICOM series at a path is made of."""
    return [Path(file) for file in _ask(path, {"do": "files"})[0]["files"]]


def _ask(path: Path, request: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Return a reader's answer; raise its error, or one that says how the reader ended."""
    request = {**request, "path": str(path), "folder": os.getcwd()}  # paths may be relative
    while True:
        reader = _readers.take()
        try:
            answer, descriptor = reader.ask(request)
        except TimeoutError:
            reader.process.kill()
            reader.end()
            raise SmgError(
                f"{path}: nothing was read of it for {patience.WAIT:g} s; check that its drive answers"
            ) from None
        except _Ended:
            code = reader.end()
            if code == 0 and reader.asked > 1:  # it was idle for too long and ended before it was asked
                continue  # with the next one, and at last with a new one
            raise SmgError(f"{path}: {_how_it_ended(code)}") from None
        except BaseException:  # such as Ctrl-C
            reader.process.kill()
            reader.end()
            raise
        _readers.give_back(reader)
        if "error" in answer:
            raise (Truncated if answer.get("truncated") else SmgError)(answer["error"])
        return answer, descriptor


def _voxels(path: Path, request: dict[str, Any]) -> tuple[Array, Array]:
    """Return the voxels of an answer, mapped into memory, and the affine."""
    answer, descriptor = _ask(path, request)
    assert descriptor is not None
    try:
        kind, shape = np.dtype(answer["kind"]), tuple(answer["shape"])
        size = math.prod(shape) * kind.itemsize
        if kind.kind not in "iufb" or os.fstat(descriptor).st_size != size:
            raise SmgError(f"{path}: {DAMAGED}")
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        array = np.frombuffer(mmap.mmap(descriptor, size, flags=flags), kind).reshape(shape)
    finally:
        os.close(descriptor)
    return array, np.array(answer["affine"])


def _how_it_ended(code: int) -> str:
    """Return why a process ended without an answer, by its exit code."""
    if code == -signal.SIGPROF:
        return f"reading it made no progress in {patience.SECONDS:g} s of processor time: {DAMAGED}"
    if code == -signal.SIGKILL:
        return "the system ended the process that read it, perhaps for want of memory; close other programs"
    if code == NO_START:
        return "the process that reads files of this format cannot import what it needs; install smg again"
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"it ended the process that read it ({how}): {DAMAGED}"
