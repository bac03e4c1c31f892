"""Ctrl-C, SIGTERM and SIGHUP: a command ends with 130, also while it is still importing.

SIGTERM comes from a scheduler or `docker stop`, SIGHUP when a terminal is closed; `nohup` has SIGHUP ignored, and then
it stays so. Either does what Ctrl-C does at that moment: training stops with a checkpoint. Only the first one counts: a
scheduler may send it to every process of a job, and a job's script forwards it.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPPED = 130  # as shells have it


def handle_signals() -> None:
    """Handle signals in this way from here on."""
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error came out of an interrupt: some code turns what it does not expect into another error."""
    before = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (before is not None and was_interrupted(before))


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        _interrupt(signal.SIGINT, frame)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; in an import, which may swallow it, end at once: nothing is under way yet."""
    if _is_importing(frame):
        if os.environ.get("RANK", "0") == "0":
            os.write(2, b"smg: stopped\n")
        os._exit(STOPPED)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
