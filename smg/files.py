"""Writing a file so that it is there whole or not at all, and a folder that one process has to itself."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smg.errors import SmgError


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well it takes the place of `path`.

    It is flushed to disk first, unless it is only a cache (`durable=False`), which a power failure may take.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        temporary.touch(exist_ok=False)  # not tempfile's: it would hide the file from the user's group
        yield temporary
        if durable:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk does not say whose write it refused
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A disk that is full or may not be written: one line, with the file; `path`, where the system names none."""
    try:
        yield
    except OSError as error:
        raise SmgError(f"{error.filename or path}: {error.strerror}; nothing was lost") from None


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """A temporary folder, for files that are made whole there and then moved; it is gone when the block ends."""
    folder = _beside(parent / "writing")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A name beside `path` that tells whose it is; what a killed process of this machine has left so named goes."""
    ours = f".{path.name}-{socket.gethostname()}-"
    for left in path.parent.glob(f"{glob.escape(ours)}*-*"):
        process = left.name.split("-")[-2]
        if process.isdigit() and not _alive(int(process)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return path.with_name(f"{ours}{os.getpid()}-{secrets.token_hex(4)}")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that a rename in it outlives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    with naming(path), replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def append_line(path: Path, value: object, durable: bool = False) -> None:
    """Add a JSON object to a file of lines, on a line of its own even where a crash has cut the last one short."""
    with naming(path), path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(value).encode() + b"\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())


def safetensors_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """What a safetensors file says of its arrays, its metadata, and where the arrays begin; no array is read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            raise ValueError("cut short")
        head = json.loads(file.read(length))
    metadata = head.pop("__metadata__", {})
    if max((entry["data_offsets"][1] for entry in head.values()), default=0) + 8 + length != size:
        raise ValueError("cut short")
    return head, metadata, 8 + length


def left_alone(folder: Path) -> bool:
    """Whether no process of this machine works in a folder, by what its lock says: to ask the lock would take it."""
    try:
        words = (folder / "lock").read_text().split()
    except OSError:
        return False
    if len(words) != 4 or words[3] != socket.gethostname():
        return not words  # whoever left in peace has emptied it; of another machine nothing is known
    return not (words[1].isdigit() and _alive(int(words[1])))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when its holder dies, however it dies."""
    path = folder / "lock"
    with naming(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise SmgError(f"{folder}: in use by {holder}; wait for it, or give another folder") from None
        with naming(path):
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        try:
            yield
        finally:  # also where the process lives on after a fault
            file.truncate(0)
