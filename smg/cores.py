"""How many processor cores this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores this process may use, which a container or a scheduler may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
