"""Keep the memory that a training step frees for the next step, instead of returning it to the kernel.

By default glibc maps each large block on its own and unmaps it when it is freed. A pass over five slices of 384 x 384
needs hundreds of blocks of up to 94 MB. Every step then faults in two million pages, which the kernel zeroes: 4 CPU
seconds beside 9 of arithmetic. When blocks come from a heap that is never trimmed, those of one step serve the next,
and there are no faults (`benchmarks/allocator.py`). The cost: a process keeps the most memory it ever needed, and needs
a fifth to a third more than without, since a heap has gaps.
"""

from __future__ import annotations

import ctypes
import os
import sys

# From glibc's <malloc.h>. Older versions refuse an M_MMAP_THRESHOLD above 32 MiB, so the number of mapped blocks is
# limited to none instead. A trim threshold of -1 means never.
_M_TRIM_THRESHOLD, _NEVER = -1, -1
_M_MMAP_MAX, _NONE = -4, 0


def keep_freed_memory() -> bool:
    """Set glibc to keep freed memory in this process, and return whether it does.

    Repeated calls change nothing. Other systems and C libraries are not touched, nor is glibc if SMG_MALLOC=0 is set.
    """
    if sys.platform != "linux" or os.environ.get("SMG_MALLOC") == "0":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # such as musl, which has no mallopt
        return False
    return bool(libc.mallopt(_M_MMAP_MAX, _NONE) and libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
