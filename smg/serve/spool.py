"""Temporary files of a node: in one folder that is locked while it runs, and emptied when it starts and ends.

A node that was killed leaves files behind; the system has released its lock, so the next node on the same folder
deletes them. Files have names of their own, never those that a sender gave.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smg.files import locked, naming
from smg.prepare.cache import cache_folder

LOCK = "lock"


def default_spool(model: Path) -> Path:
    """Return the folder for temporary files of a model's node, in the cache's folder."""
    return cache_folder() / "serve" / hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:16]


@contextmanager
def spool(folder: Path) -> Iterator[Path]:
    """Hold a folder for temporary files, readable by its owner alone, and empty it before and after the block."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder):
        empty(folder)
        try:
            yield folder
        finally:
            empty(folder)


def empty(folder: Path) -> None:
    """Delete everything in a spool but its lock."""
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def new_folder(spool: Path) -> Path:
    """Make a folder in the spool under a random name."""
    made = spool / secrets.token_hex(8)
    made.mkdir(mode=0o700)
    return made


def delete(folder: Path) -> None:
    """Delete a folder of the spool, whether it exists or not."""
    shutil.rmtree(folder, ignore_errors=True)
