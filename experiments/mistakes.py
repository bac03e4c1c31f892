"""Report a user's mistake in one line, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from smg.errors import SmgError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Exit with one line for an error that the user can fix, such as a file that is missing."""
    try:
        yield
    except SmgError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:  # the command has printed its reason
        sys.exit(error.returncode)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
