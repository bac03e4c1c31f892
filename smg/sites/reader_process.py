"""The process that reads scans for another one, and that a bad scan may end (`smg.sites.readers`).

Requests and answers are lines of JSON on a socket. Voxels come in a file without a name whose descriptor is sent along
with the answer; the other process maps it into its memory, and nothing is copied.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from smg import patience
from smg.errors import SmgError
from smg.sites.formats import META, NRRD, Array, Header, Truncated

IDLE_SECONDS = 60.0  # without a request, until the process ends


def serve(descriptor: int) -> None:
    """Answer requests until the socket is closed, or none has come for a minute."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the process that asks decides when to end
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with socket.socket(fileno=descriptor) as link:
        pending = b""
        while True:
            link.settimeout(IDLE_SECONDS)
            try:
                received = link.recv(1 << 16)
            except TimeoutError:
                return
            if not received:
                return
            pending += received
            if pending.endswith(b"\n"):
                link.settimeout(None)
                _answer(link, json.loads(pending))
                pending = b""


def _answer(link: socket.socket, request: dict[str, Any]) -> None:
    """Carry out one request within the limits, and send what came of it."""
    os.chdir(request["folder"])
    _load_library(Path(request["path"]))
    voxels: int | None = None
    try:
        patience.begin(lambda seconds: _send(link, {"wait": seconds}))
        answer, array = _carry_out(request)
        if array is not None:
            voxels, answer = _shared(array), answer | {"kind": array.dtype.str, "shape": array.shape}
    except MemoryError:
        answer = {
            "error": f"{request['path']}: reading it takes over {patience.BYTES >> 30} GiB more memory than the scan "
            "itself: its header or its data are damaged; export the scan again"
        }
    except SmgError as error:
        answer = {"error": str(error), "truncated": isinstance(error, Truncated)}
    finally:
        patience.end()
    _send(link, {"answer": answer}, voxels)
    if voxels is not None:
        os.close(voxels)


def _carry_out(request: dict[str, Any]) -> tuple[dict[str, Any], Array | None]:
    """Return the answer to a request: its facts, and apart from them the voxels."""
    from smg.sites import in_process

    path = Path(request["path"])
    if request["do"] == "header":
        return _header(in_process.read_header(path)), None
    if request["do"] == "volume":
        array, affine = in_process.read_voxels(path, request["limit"])
        return {"affine": affine.tolist()}, array
    if request["do"] == "mask":
        array, affine = in_process.read_dicom_mask(path, Path(request["image"]), request["roi"], request["limit"])
        return {"affine": affine.tolist()}, array
    if request["do"] == "structures":
        return {"names": list(in_process.structure_names(path))}, None
    return {"files": [str(file) for file in in_process.series_files(path)]}, None


def _header(header: Header) -> dict[str, Any]:
    return {"shape": header.shape, "affine": header.affine.tolist(), "bytes": header.bytes}


def _load_library(path: Path) -> None:
    """Import what reads the scan before its memory and time are limited."""
    if path.suffix.lower() in (*META, *NRRD):
        import SimpleITK  # noqa: F401


def _shared(array: Array) -> int:
    """Return the descriptor of a file without a name, in memory where the system has such files, with the voxels."""
    descriptor = os.memfd_create("scan") if hasattr(os, "memfd_create") else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    os.ftruncate(descriptor, array.nbytes)
    with mmap.mmap(descriptor, array.nbytes) as mapped:
        target = np.frombuffer(mapped, array.dtype).reshape(array.shape)
        target[...] = array
        del target  # or the map could not be closed
    return descriptor


def _send(link: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    """Send a message as one line; with its first bytes, a descriptor."""
    line = json.dumps(message).encode() + b"\n"
    if descriptor is not None:
        sent = socket.send_fds(link, [line], [descriptor])
        line = line[sent:]
    link.sendall(line)
