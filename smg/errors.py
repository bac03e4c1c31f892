"""Errors that a user can act on: one line that names the file, the problem and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class SmgError(Exception):
    """Error that the user can fix. A command prints its message without a traceback and exits with 1."""


class Misuse(SmgError):
    """Usage error: the command's words are wrong, whatever the files hold. A command exits with 2."""


class Stopped(SmgError):
    """Stop asked for by Ctrl-C or a scheduler's SIGTERM. A command exits with 130, as shells do."""


def validation_line(error: ValidationError) -> str:
    """Return a configuration's errors in one line, such as `size: Input should be greater than or equal to 16`."""
    lines = []
    for one in error.errors():
        place = ".".join(str(part) for part in one["loc"])
        lines.append(f"{place}: {one['msg']}" if place else one["msg"])
    return "; ".join(lines).replace("Value error, ", "")
