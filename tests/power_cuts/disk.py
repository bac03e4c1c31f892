"""A disk that loses what was not flushed: the operations of a command, and what a power cut may leave of them.

Only what POSIX promises is kept: a file's content as of its last fsync, and the names in a folder as of the folder's.
Of later writes any part may have reached the disk; later names may be there or not, in any order. So a renamed file may
be empty, a removed one come back, and of two renames the second alone may be seen. A rename itself is whole.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.kills.operations import Operation

Names = dict[int, dict[str, int]]  # folder -> name -> inode


@dataclass(frozen=True)
class Change:
    """A change of names: a name given, a name taken away, or both at once."""

    folder: int  # whose flush makes it last
    gone: tuple[int, str] | None
    given: tuple[int, str, int] | None
    at: int  # number of its operation


@dataclass
class Content:
    """A file's content: what is on the disk, and the writes since."""

    flushed: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data), or (size, None)


@dataclass
class Disk:
    """A folder as it was flushed when a command began, and what the command did to it."""

    root: int
    names: Names  # of folders
    files: dict[int, bytes]

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """Read a folder, all of which counts as flushed."""
        disk = cls(folder.stat().st_ino, {folder.stat().st_ino: {}}, {})
        for path in sorted(folder.rglob("*")):
            inode = path.stat().st_ino
            disk.names[path.parent.stat().st_ino][path.name] = inode
            if path.is_dir():
                disk.names[inode] = {}
            else:
                disk.files[inode] = path.read_bytes()
        return disk

    def cut(self, operations: Sequence[Operation], below: str, rng: random.Random) -> Disk:
        """Return what a power cut after these operations may leave."""
        seen = {folder: dict(there) for folder, there in self.names.items()}
        contents = {inode: Content(data) for inode, data in self.files.items()}
        folders, changes, flushed = set(self.names), list[Change](), dict[int, int]()
        again: dict[int, int] = {}  # inode -> number of its own, as a file system may use an inode again
        for number, made in enumerate(operations):
            if made.kind == "make":
                again[made.inode] = -1 - number
            one = replace(made, inode=again.get(made.inode, made.inode))
            if one.kind == "sync":
                flushed[one.inode] = number
                if one.inode in contents:
                    content = contents[one.inode]
                    content.flushed, content.writes = _written(content.flushed, content.writes), []
            elif one.kind in ("write", "resize"):
                contents[one.inode].writes.append((one.at, one.data if one.kind == "write" else None))
            else:
                if one.kind == "make" and one.is_folder:
                    folders.add(one.inode)
                    seen[one.inode] = {}
                elif one.kind == "make":
                    contents[one.inode] = Content()
                changes.append(self._change(seen, one, below, number))
        chance = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        left: Names = {folder: dict(self.names.get(folder, {})) for folder in folders}
        for change in changes:
            if flushed.get(change.folder, -1) > change.at or rng.random() < chance:
                _apply(left, change)
        return Disk(self.root, left, {inode: _left(content, rng) for inode, content in contents.items()})

    def _change(self, seen: Names, one: Operation, below: str, number: int) -> Change:
        """Carry out a change of names, and return it."""
        folder, name = self._found(seen, one.path, below)
        if one.kind == "make":
            change = Change(folder, None, (folder, name, one.inode), number)
        elif one.kind == "remove":
            change = Change(folder, (folder, name), None, number)
        else:
            target, new = self._found(seen, one.other, below)
            gone = (folder, name) if one.kind == "rename" else None
            change = Change(target, gone, (target, new, seen[folder][name]), number)
        _apply(seen, change)
        return change

    def _found(self, seen: Names, path: str, below: str) -> tuple[int, str]:
        *above, name = os.path.relpath(path, below).split(os.sep)
        folder = self.root
        for part in above:
            folder = seen[folder][part]
        return folder, name

    def write(self, folder: Path) -> None:
        """Write what is on the disk into a new folder."""
        folder.mkdir(parents=True)
        self._write(self.root, folder)

    def _write(self, inode: int, folder: Path) -> None:
        for name, one in self.names[inode].items():
            path = folder / name
            if one in self.names:
                path.mkdir(mode=0o700)
                self._write(one, path)
            else:
                path.write_bytes(self.files[one])
                path.chmod(0o600)


def _apply(names: Names, change: Change) -> None:
    if change.gone:
        names[change.gone[0]].pop(change.gone[1], None)
    if change.given:
        folder, name, inode = change.given
        names[folder][name] = inode


def _written(before: bytes, writes: Sequence[tuple[int, bytes | None]]) -> bytes:
    """Return a file's content after some writes."""
    content = bytearray(before)
    for at, data in writes:
        if data is None:
            content = content[:at].ljust(at, b"\0")
        else:
            content = content.ljust(at, b"\0")
            content[at : at + len(data)] = data
    return bytes(content)


def _left(content: Content, rng: random.Random) -> bytes:
    """Return what may be left of a file's content: all, nothing new, a part, or zeros in the place of what is new."""
    if not content.writes:
        return content.flushed
    whole = _written(content.flushed, content.writes)
    same = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(content.flushed, whole, strict=False))
    )
    what = rng.choice(("all", "nothing", "cut", "zeros"))
    if what == "nothing":
        return content.flushed
    if what == "cut":
        return whole[: rng.randint(same, len(whole))]
    return whole if what == "all" else whole[:same].ljust(len(whole), b"\0")
