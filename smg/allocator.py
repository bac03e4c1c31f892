"""Memory that a step frees is kept for the next step, instead of going back to the kernel and coming again.

glibc maps every large block on its own and unmaps it when it is freed. A pass over five slices of 384 x 384 needs
hundreds of blocks of up to 94 MB, so every step faulted in two million pages, each zeroed by the kernel: 4 CPU seconds
beside 9 of arithmetic. Taken from the heap, and the heap never trimmed, the blocks of one step serve the next, with no
fault at all (`benchmarks/allocator.py`). The price: a process holds on to the most memory it ever needed, which is
a fifth to a third more than without, since a heap has gaps.
"""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's <malloc.h>. Older versions refuse a threshold for mapping (M_MMAP_THRESHOLD) of more than 32 MiB, so it is the
# number of mapped blocks that is limited, to none; a trim threshold of -1 is "never".
_M_TRIM_THRESHOLD, _NEVER = -1, -1
_M_MMAP_MAX, _NONE = -4, 0


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed, for this process; whether it does so now.

    Call it as often as you like. Other systems and C libraries are left as they are; so is glibc under SMG_MALLOC=0.
    """
    if sys.platform != "linux" or os.environ.get("SMG_MALLOC") == "0":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl, say, which has none of this
        return False
    return bool(libc.mallopt(_M_MMAP_MAX, _NONE) and libc.mallopt(_M_TRIM_THRESHOLD, _NEVER))
