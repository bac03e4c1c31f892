"""The largest scan that is read: 2 GiB, `--limit GIB` of a command, or the environment variable SMG_LIMIT."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

from smg.errors import Misuse, SmgError

LIMIT = 2 << 30  # bytes of one scan, decompressed
VARIABLE = "SMG_LIMIT"


def scan_limit() -> int:
    """Return the limit in bytes."""
    word = os.environ.get(VARIABLE)
    return parse_limit(word, VARIABLE) if word else LIMIT


@contextmanager
def limited_to(gib: float | None) -> Iterator[None]:
    """Set the limit in the block, for this process and those that it starts; None leaves it as it is."""
    before = os.environ.get(VARIABLE)
    if gib is not None:
        parse_limit(f"{gib:g}", "--limit")
        os.environ[VARIABLE] = str(gib)
    try:
        yield
    finally:
        if gib is not None:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def parse_limit(word: str, name: str) -> int:
    """Return a number of GiB in bytes; `name` is who gave it."""
    try:
        gib = float(word)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        raise Misuse(f"{name} {word}: not a size; give a number of GiB")
    return int(gib * 2**30)


def check_size(size: int, limit: int, what: str = "decompresses to") -> None:
    """Refuse more than `limit` bytes."""
    if size > limit:
        enough = math.ceil(size / 2**30)
        raise SmgError(
            f"{what} {size / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB; "
            f"crop or resample the scan, or allow it with --limit {enough} (or {VARIABLE}={enough})"
        )
