"""Limits of a process that reads a scan: processor time without progress, and memory beyond the scan's own size.

The kernel enforces both, also inside a library's code: a timer of processor time ends the process, and an allocation
beyond the limit fails. In a process that did not call `begin` nothing is limited and the calls do nothing.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 5.0  # of processor time without progress
WAIT = 60.0  # seconds without progress, processor time or not, as on a drive that does not answer
BYTES = 1 << 30  # of memory beyond the scan's own size
SLOWEST_READ, SLOWEST_DRIVE = 50e6, 5e6  # bytes a second, of a library and of a drive
REPORT_SECONDS = 1.0  # between two reports of progress

_limits: _Limits | None = None


class _Limits:
    """The limits that hold in this process, and who hears of progress."""

    def __init__(self, on_progress: Callable[[float], None]) -> None:
        self.on_progress = on_progress  # called with the seconds that may pass until the next call
        self.expected = 0  # bytes of the scan
        self.reported = 0.0
        self.base = _data_bytes()
        self.apply(0)

    def apply(self, expected: int) -> None:
        """Limit memory for a scan of this size, and start the clock."""
        self.expected = expected
        if self.base is not None:
            _limit_memory(self.base + BYTES + expected)
        self.on_progress(WAIT + expected / SLOWEST_DRIVE)
        self.reported = time.monotonic()
        _set_clock(SECONDS + expected / SLOWEST_READ)

    def advance(self) -> None:
        _set_clock(SECONDS)
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.reported = time.monotonic()
            self.on_progress(WAIT)


def begin(on_progress: Callable[[float], None]) -> None:
    """Limit this process from here on, until `end`."""
    global _limits
    _limits = _Limits(on_progress)


def end() -> None:
    """Lift the limits."""
    global _limits
    _limits = None
    _set_clock(0)
    _limit_memory(None)


def limited() -> bool:
    """Return whether this process is limited."""
    return _limits is not None


def expect(size: int) -> None:
    """Allow for a scan of `size` bytes, whose header was read: memory to hold it, and time to read it in one call."""
    if _limits is not None:
        _limits.apply(size)


def advance() -> None:
    """Start the clock again, after each file or piece of a file that was read."""
    if _limits is not None:
        _limits.advance()


def _set_clock(seconds: float) -> None:
    """End this process by SIGPROF after so many seconds of processor time; never, if zero."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(size: int | None) -> None:
    """Let allocations fail beyond `size` bytes of private memory; beyond none, if None."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int | None:
    """Return the private memory of this process in bytes; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None
