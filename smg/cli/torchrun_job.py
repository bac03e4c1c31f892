"""Run a command in several processes started by torchrun: they share the work, and only the first one prints."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

from smg.errors import SmgError, Stopped

TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # what it sets
GRACE = 30.0  # seconds in which the first process will have reported an error that all processes have


def processes() -> int:
    """Return how many processes torchrun has started for this command; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if os.environ.keys() >= TORCHRUN else 1


def together(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that its processes join one group if there are several."""

    @functools.wraps(command)
    def shared(*args: Any, **options: Any) -> None:
        if processes() == 1:
            command(*args, **options)
            return
        from smg.learner.processes import joined

        with joined():
            command(*args, **options)

    return shared


def one_voice() -> AbstractContextManager[None]:
    """Return a context in which only the first process prints; another one does only if it alone has failed."""
    if processes() == 1:
        return nullcontext()
    return _speaker() if os.environ["RANK"] == "0" else _listener()


@contextmanager
def _speaker() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not _lost_a_peer(error):
            raise
        raise SmgError(
            "another process has ended or does not answer; the same command resumes from the last checkpoint"
        ) from error


@contextmanager
def _listener() -> Iterator[None]:
    """Print nothing. On an error, wait first: if the first process fails too, torchrun ends this one meanwhile."""
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    except BaseException as fault:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if isinstance(fault, KeyboardInterrupt | Stopped) or _lost_a_peer(fault):
            sys.exit(1)
        if not isinstance(fault, SystemExit) or fault.code:
            time.sleep(GRACE)
        raise


def _lost_a_peer(fault: BaseException) -> bool:
    """Return whether the error is due to a process that has ended: gloo has no exception class of its own."""
    if not isinstance(fault, RuntimeError):
        return False
    from torch.distributed import DistError

    return isinstance(fault, DistError) or "gloo" in str(fault)
