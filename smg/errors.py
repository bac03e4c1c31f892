"""The one exception a user's mistake becomes: a single line that names the file and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class SmgError(Exception):
    """Something the user can mend. The command line prints its message, without a traceback, and exits 1."""


class Misuse(SmgError):
    """What was typed cannot be meant, whatever the files hold: exit 2."""


class Stopped(SmgError):
    """It was asked to stop, by Ctrl-C or a scheduler's SIGTERM: exit 130, as a shell has it."""


def validation_line(error: ValidationError) -> str:
    """What is wrong with a configuration, in one line: `size: Input should be greater than or equal to 16`."""
    lines = []
    for one in error.errors():
        place = ".".join(str(part) for part in one["loc"])
        lines.append(f"{place}: {one['msg']}" if place else one["msg"])
    return "; ".join(lines).replace("Value error, ", "")
