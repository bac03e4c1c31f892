"""Decompress gzip and zlib streams up to a length, by ISA-L, which takes under half of zlib's time."""

from __future__ import annotations

from typing import BinaryIO

from isal.isal_zlib import IsalError, decompressobj

from smg import patience
from smg.sites.formats import Truncated

GZIP = b"\x1f\x8b"  # the first bytes of a gzip member
MOST_REST = 256 << 20  # bytes after what is wanted
EITHER = 47  # zlib's wbits for a stream that is gzip or zlib


def inflate(file: BinaryIO, length: int, to_the_end: bool = False) -> tuple[bytes, bool, int]:
    """Return the first `length` decompressed bytes of a stream that begins here, and whether its end was reached.

    There are fewer bytes if the stream ends early. With `to_the_end` the rest is decompressed too and discarded, so
    that the checksum at the end is verified; the last number says how many bytes the rest has, without zeros that pad
    it. A stream that goes on for more than `length` and 256 MiB is refused.
    """
    unpacker, parts, have, packed = decompressobj(wbits=EITHER), [], 0, b""
    more = rest = 0
    try:
        while have < length and (packed := packed or file.read(min(1 << 20, length + 64))):
            parts.append(unpacker.decompress(packed, min(length - have, 1 << 26)))
            have += len(parts[-1])
            packed = unpacker.unconsumed_tail
            patience.advance()
            if unpacker.eof and have < length:  # some compressors write one member a block
                packed = unpacker.unused_data + file.read(2)
                if packed[:2] != GZIP:
                    break
                unpacker = decompressobj(wbits=EITHER)
        while to_the_end and have == length and not unpacker.eof and (packed := packed or file.read(1 << 20)):
            piece = unpacker.decompress(packed, 1 << 20)
            packed = unpacker.unconsumed_tail
            rest += len(piece)
            more = rest if piece.strip(b"\0") else more
            if rest > length + MOST_REST:
                raise Truncated("goes on far beyond what its header announces; export the scan again")
    except IsalError:  # type: ignore[misc]
        raise Truncated("its bytes do not decompress: the file is corrupt; copy it again") from None
    return b"".join(parts), unpacker.eof, more
