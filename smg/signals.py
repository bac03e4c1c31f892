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


def stay_quiet() -> None:
    """Handle signals at the end of a command: it ends anyway, and Ctrl-C ends it at once without a traceback.

    The handlers of before would raise an error in whatever Python does last, and SIGTERM change the exit code.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _leave)


def _leave(_signal: int, frame: FrameType | None) -> None:
    os._exit(STOPPED)


def was_interrupted(error: BaseException) -> bool:
    """Return whether an interrupt caused an error: some libraries raise another error in place of KeyboardInterrupt."""
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
        say_stopped()
        os._exit(STOPPED)
    raise KeyboardInterrupt


def say_stopped() -> None:
    """Write that the command was stopped; of a job's processes the first one says it."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"smg: stopped\n")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
