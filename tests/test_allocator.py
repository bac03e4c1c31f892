"""Freed memory is kept where the C library is glibc, and nothing happens elsewhere."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap

import pytest

from smg import allocator
from smg.allocator import keep_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")

FAULTS = textwrap.dedent("""
    import resource, torch
    from smg.allocator import keep_freed_memory

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.empty(50_000_000, dtype=torch.uint8).fill_(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    without = faults()
    print(int(keep_freed_memory()))
    faults()  # the heap grows
    print(without, faults())
""")


def faults(**environment: str) -> tuple[bool, int, int]:
    """Return, from a new process, whether memory is kept, and the page faults of a loop before and after the call."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=os.environ | environment, capture_output=True, check=True, text=True
    )
    kept, before, after = map(int, done.stdout.split())
    return bool(kept), before, after


@glibc
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    kept, before, after = faults(SMG_MALLOC="1")
    assert kept
    assert before > 10 * max(after, 1)


@glibc
def test_it_can_be_switched_off() -> None:
    kept, before, after = faults(SMG_MALLOC="0")
    assert not kept
    assert after > before / 2


@glibc
def test_a_second_call_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMG_MALLOC", raising=False)
    assert keep_freed_memory()
    assert keep_freed_memory()


def test_other_systems_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMG_MALLOC", raising=False)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())  # a C library without glibc's functions
    assert not keep_freed_memory()
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not keep_freed_memory()
