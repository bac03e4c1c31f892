"""Tie child processes to their parent, so that no process is left running."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

WITH_PARENT = "SMG_END_WITH_PARENT"  # environment variable that a parent sets for a command that must not outlive it


def end_with_parent(seconds: float = 1.0) -> None:
    """Start a thread that ends this process when its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found
