"""A user's mistake as one line, in the scripts that take files of the user's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from smg.errors import SmgError


@contextmanager
def in_one_line() -> Iterator[None]:
    """What the user can mend, and a file that is not there, without a traceback."""
    try:
        yield
    except SmgError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:  # it has said why
        sys.exit(error.returncode)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
