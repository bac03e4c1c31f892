"""Gzip and zlib streams, unpacked up to a length: by ISA-L, in under half of zlib's time."""

from __future__ import annotations

from typing import BinaryIO

from isal.isal_zlib import IsalError, decompressobj

from smg.sites.formats import Truncated

GZIP = b"\x1f\x8b"  # how a member of it begins
EITHER = 47  # zlib's number for a stream that is gzip's or its own


def inflate(file: BinaryIO, length: int, to_the_end: bool = False) -> tuple[bytes, bool]:
    """The first bytes of what a file holds from here on, fewer where it ends before; and whether its end was reached.

    to_the_end: unpack what follows too, and forget it: the checksum stands behind it.
    """
    unpacker, parts, have, packed = decompressobj(wbits=EITHER), [], 0, b""
    try:
        while have < length and (packed := packed or file.read(min(1 << 20, length + 64))):
            parts.append(unpacker.decompress(packed, length - have))
            have += len(parts[-1])
            packed = unpacker.unconsumed_tail
            if unpacker.eof and have < length:  # some compressors write a member for every block
                packed = unpacker.unused_data + file.read(2)
                if packed[:2] != GZIP:
                    break
                unpacker = decompressobj(wbits=EITHER)
        while to_the_end and have == length and not unpacker.eof and (packed := packed or file.read(1 << 20)):
            unpacker.decompress(packed, 1 << 20)
            packed = unpacker.unconsumed_tail
    except IsalError:  # type: ignore[misc]
        raise Truncated("its bytes do not unpack: the file is corrupt") from None
    return b"".join(parts), unpacker.eof
