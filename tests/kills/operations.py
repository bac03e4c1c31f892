"""See every operation of this process on files below a folder: to end the process at one of them, or to record them."""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = ("write", "resize")
KINDS = ("make", *WRITES, "sync", "rename", "link", "remove")


@dataclass(frozen=True)
class Operation:
    """One operation: its kind, the file or folder, and what belongs to it."""

    kind: str  # one of KINDS
    path: str
    other: str = ""  # the new name
    inode: int = 0  # of what is written, resized, made or synced
    at: int = 0  # offset of a write, or the new size
    data: bytes = b""
    is_folder: bool = False


Half = Callable[[], None]  # writes the first half of what is to be written
OnOperation = Callable[[Operation, str, Half | None], None]  # (operation, "before" or "after", half of a write)


class Operations:
    """Replaces the functions of `os` and `io` by which Python changes files, for the rest of this process.

    Arrays of the cache are written by a library in Rust, whose writes are not seen; what it has written is seen when
    its file is renamed or linked.
    """

    def __init__(self, folder: Path, on_operation: OnOperation) -> None:
        self.folder = os.path.realpath(folder)
        self.on_operation = on_operation
        self.thread = threading.local()  # `inside`: an operation that another one makes is part of it
        self.original = {name: getattr(os, name) for name in ("open", "write", "ftruncate", "fsync", "fstat", "stat")}
        for name, kind in {"replace": "rename", "rename": "rename", "link": "link"}.items():
            self._watch_two(name, kind)
        for name, kind in {"unlink": "remove", "remove": "remove", "rmdir": "remove", "mkdir": "make"}.items():
            self._watch_one(name, kind)
        self._watch_descriptors()
        self._watch_files()

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the path of a name below the folder, or None."""
        if isinstance(path, int):
            found = os.readlink(f"/proc/self/fd/{path}")
        else:
            below = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
            found = os.path.normpath(os.path.join(below, os.fspath(path)))
        return found if isinstance(found, str) and found.startswith(self.folder + os.sep) else None

    def _do(self, operation: Operation, call: Callable[[], Any], half: Half | None = None) -> Any:
        """Carry out an operation between the two calls that tell of it."""
        if getattr(self.thread, "inside", False):
            return call()
        self.thread.inside = True
        try:
            self.on_operation(operation, "before", half)
            result = call()
            if operation.kind == "make":
                operation = Operation(
                    "make", operation.path, inode=os.lstat(operation.path).st_ino, is_folder=operation.is_folder
                )
            self.on_operation(operation, "after", None)
            return result
        finally:
            self.thread.inside = False

    def _watch_two(self, name: str, kind: str) -> None:
        original = getattr(os, name)

        def watched(source: Any, target: Any, **more: Any) -> Any:
            old, new = self._path(source), self._path(target)
            if old is None or new is None:
                return original(source, target, **more)
            return self._do(Operation(kind, old, new), lambda: original(source, target, **more))

        setattr(os, name, watched)

    def _watch_one(self, name: str, kind: str) -> None:
        original = getattr(os, name)

        def watched(path: Any, *args: Any, **more: Any) -> Any:
            found = self._path(path, more.get("dir_fd"))
            if found is None or os.path.lexists(found) != (kind == "remove"):  # nothing to do, or an error
                return original(path, *args, **more)
            operation = Operation(kind, found, is_folder=name in ("mkdir", "rmdir"))
            return self._do(operation, lambda: original(path, *args, **more))

        setattr(os, name, watched)

    def _watch_descriptors(self) -> None:
        open_, write, ftruncate, fsync = (self.original[name] for name in ("open", "write", "ftruncate", "fsync"))

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            found = self._path(path, dir_fd) if flags & os.O_CREAT else None
            if found is None or os.path.lexists(found):
                return open_(path, flags, mode, dir_fd=dir_fd)
            return self._do(Operation("make", found), lambda: open_(path, flags, mode, dir_fd=dir_fd))

        def written(descriptor: int, data: Any) -> int:
            return self._write(descriptor, data, lambda part: write(descriptor, part))

        def resized(descriptor: int, size: int) -> None:
            if (path := self._path(descriptor)) is None or os.fstat(descriptor).st_size == size:
                return ftruncate(descriptor, size)
            inode = os.fstat(descriptor).st_ino
            return self._do(Operation("resize", path, inode=inode, at=size), lambda: ftruncate(descriptor, size))

        def synced(descriptor: int) -> None:
            found = os.readlink(f"/proc/self/fd/{descriptor}")
            if found != self.folder and not found.startswith(self.folder + os.sep):
                return fsync(descriptor)
            return self._do(Operation("sync", found, inode=os.fstat(descriptor).st_ino), lambda: fsync(descriptor))

        os.open, os.write, os.ftruncate, os.fsync = opened, written, resized, synced  # type: ignore[assignment]

    def _write(self, descriptor: int, data: Any, write: Callable[[bytes], int]) -> int:
        path, whole = self._path(descriptor), bytes(data)
        if path is None or not whole:
            return write(whole)
        import fcntl

        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        at = os.fstat(descriptor).st_size if appends else os.lseek(descriptor, 0, os.SEEK_CUR)
        operation = Operation("write", path, inode=os.fstat(descriptor).st_ino, at=at, data=whole)
        return int(self._do(operation, lambda: write(whole), lambda: (write(whole[: len(whole) // 2]), None)[1]))

    def _watch_files(self) -> None:
        """Give files that are opened to be written a raw file whose writes are seen."""
        open_, operations = io.open, self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                return operations._write(self.fileno(), data, super().write)

            def truncate(self, size: int | None = None) -> int:
                os.ftruncate(self.fileno(), self.tell() if size is None else size)
                return os.fstat(self.fileno()).st_size

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            writes = set(mode) & set("wax+")
            if isinstance(file, int) or not writes or self._path(file) is None:
                return open_(file, mode, buffering, encoding, errors, newline, closefd, opener)
            plain = "".join(c for c in mode if c not in "bt")
            if "w" in mode and os.path.exists(file) and os.stat(file).st_size:
                descriptor = os.open(file, os.O_WRONLY)
                os.ftruncate(descriptor, 0)
                os.close(descriptor)
            if opener is None and "r" not in mode:  # made through os.open, which sees it
                opener = _opened
            raw = Raw(file, plain, closefd, opener)
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        io.open = builtins.open = opened  # type: ignore[assignment]


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)
