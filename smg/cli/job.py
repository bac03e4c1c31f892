"""A command as one of the processes that torchrun has started: they share the work, and the first one speaks."""

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
GRACE = 30.0  # seconds in which the first process will have told of a fault that all of them have found


def processes() -> int:
    """How many torchrun has started for this command; one, without it."""
    return int(os.environ["WORLD_SIZE"]) if os.environ.keys() >= TORCHRUN else 1


def together(command: Callable[..., None]) -> Callable[..., None]:
    """The command, in the group of its processes where there are several."""

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
    """Of several processes the first is heard; another only if it alone has failed."""
    if processes() == 1:
        return nullcontext()
    return _speaker() if os.environ["RANK"] == "0" else _listener()


@contextmanager
def _speaker() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not _parted(error):
            raise
        raise SmgError(
            "another process has ended or does not answer; the same command goes on from the last checkpoint"
        ) from error


@contextmanager
def _listener() -> Iterator[None]:
    """Where the first process fails too, torchrun ends this one while it waits."""
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    except BaseException as fault:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if isinstance(fault, KeyboardInterrupt | Stopped) or _parted(fault):
            sys.exit(1)
        if not isinstance(fault, SystemExit) or fault.code:
            time.sleep(GRACE)
        raise


def _parted(fault: BaseException) -> bool:
    """Whether it came of a process that is no longer there: gloo has no exception of its own."""
    if not isinstance(fault, RuntimeError):
        return False
    from torch.distributed import DistError

    return isinstance(fault, DistError) or "gloo" in str(fault)
