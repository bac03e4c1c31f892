"""Mutations of bytes: flips, cuts, repeats, and values that are rare in sound files."""

from __future__ import annotations

import random

WORDS = (
    b"0", b"-1", b"65535", b"99999999999999999999", b"1e30", b"nan", b"inf", b"-inf", b"null", b"true", b"[]", b"{}",
    b"%d", b"%09000000d", b"../../../etc/passwd", b"/dev/zero", b"\x00", b"\xff\xfe", b"\x1b[2J", b"\n", b"\r\n", b"\"",
    b"'", b"&a [*a, *a]", b"!!python/object/apply:os.system [true]", b"[" * 3000, b"{a: " * 400, b"=1+1", b"a" * 70000,
)  # fmt: skip
RARE = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\x7f\xff", b"\xff\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\xff\x7f")


def mutated(data: bytes, rng: random.Random, head: int) -> tuple[bytes, bool]:
    """Return changed bytes, and whether the change only cut the end off; `head` bytes are changed more often."""
    if rng.random() < 0.12 and len(data) > 1:
        return data[: rng.randrange(len(data))], True
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        size = len(changed)
        at = rng.randrange(min(head, size) if rng.random() < 0.7 else size) if size else 0
        act = rng.randrange(6)
        if act == 0 and size:
            changed[at] ^= 1 << rng.randrange(8)
        elif act == 1:
            value = rng.choice(RARE)
            changed[at : at + len(value)] = value
        elif act == 2:
            changed[at:at] = rng.choice(WORDS)
        elif act == 3:
            changed[at : at + rng.choice((1, 2, 4, 16, 200))] = b""
        elif act == 4:
            piece = bytes(changed[at : at + rng.choice((1, 8, 100))])
            changed[at:at] = piece * rng.choice((1, 2, 50))
        else:
            _replace_number(changed, at, rng)
    return bytes(changed), False


def _replace_number(data: bytearray, at: int, rng: random.Random) -> None:
    """Put a rare word in the place of the next number in a text."""
    end = begin = next((n for n in range(at, min(at + 200, len(data))) if 48 <= data[n] <= 57), None)
    if begin is None or end is None:
        return
    while end < len(data) and (48 <= data[end] <= 57 or data[end] == 46):
        end += 1
    data[begin:end] = rng.choice(WORDS)
