"""Bodies of HTTP requests with files in them (multipart/form-data): read piece by piece onto the disk, and written."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from smg.errors import SmgError
from smg.sites.formats import SUFFIXES

PIECE = 1 << 20  # bytes read at a time
FIELD, HEADERS, PARTS = 1 << 20, 1 << 14, 4096  # bytes of a field and of a part's headers; parts


@dataclass
class Form:
    """The fields of a form, and its files: field -> paths under new names with the suffix that the sender gave."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[Path]] = field(default_factory=dict)


class _Body:
    """A body of known length, cut at its boundary."""

    def __init__(self, stream: BinaryIO, length: int, boundary: bytes) -> None:
        self.stream, self.left, self.mark, self.held = stream, length, b"\r\n--" + boundary, b"\r\n"

    def _more(self) -> None:
        piece = self.stream.read(min(PIECE, self.left))
        if not piece:
            raise SmgError("the request ends early; send it again")
        self.left -= len(piece)
        self.held += piece

    def until(self, mark: bytes) -> Iterator[bytes]:
        """Yield the bytes before a mark, and step over it."""
        while (at := self.held.find(mark)) < 0:
            safe = len(self.held) - len(mark) + 1
            if safe > 0:
                yield self.held[:safe]
                self.held = self.held[safe:]
            self._more()
        yield self.held[:at]
        self.held = self.held[at + len(mark) :]

    def drain(self) -> None:
        """Read the rest, so that the connection can be used again."""
        while self.left:
            self.held = b""
            self._more()

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        while len(self.held) < count:
            self._more()
        taken, self.held = self.held[:count], self.held[count:]
        return taken


def read_form(stream: BinaryIO, length: int, content_type: str, new_file: Callable[[str], Path]) -> Form:
    """Read a form; `new_file` returns where to write a file with a suffix."""
    named = re.search(r'boundary="?([^";]{1,200})"?', content_type)
    if not content_type.lower().startswith("multipart/form-data") or not named:
        raise SmgError("the request is no form; send multipart/form-data")
    body, form = _Body(stream, length, named[1].encode("latin-1")), Form()
    for _ in body.until(body.mark):  # nothing, or a preamble
        pass
    for _ in range(PARTS):
        if body.take(2) == b"--":
            body.drain()
            return form
        _read_part(body, form, new_file)
    raise SmgError(f"the form has more than {PARTS} parts; send the scan as one file")


def _read_part(body: _Body, form: Form, new_file: Callable[[str], Path]) -> None:
    headers = _limited(body.until(b"\r\n\r\n"), HEADERS).decode("utf-8", "replace")
    found = re.search(r"^content-disposition:(.*)$", headers, re.IGNORECASE | re.MULTILINE)
    words = found[1] if found else ""
    name = re.search(r'[; ]name="([^"]*)"', words)
    if name is None:
        raise SmgError("a part of the form has no name; send multipart/form-data")
    file = re.search(r'[; ]filename="([^"]*)"', words)
    if file is None:
        form.fields[name[1]] = _limited(body.until(body.mark), FIELD).decode("utf-8", "replace")
        return
    path = new_file(suffix_of(file[1]))
    with path.open("wb") as out:
        for piece in body.until(body.mark):
            out.write(piece)
    form.files.setdefault(name[1], []).append(path)


def _limited(pieces: Iterator[bytes], limit: int) -> bytes:
    whole = b""
    for piece in pieces:
        whole += piece
        if len(whole) > limit:
            raise SmgError("a field of the form is too long; send scans as files")
    return whole


def suffix_of(name: str) -> str:
    """Return the format's suffix of a file's name; '' if it has none that is read, as a slice of a DICOM series."""
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.lower().endswith(s)), "")


def write_form(fields: dict[str, str], name: str, file: str, content: bytes) -> tuple[str, bytes]:
    """Return the content type and the body of a form with JSON fields and one file."""
    boundary = secrets.token_hex(16)
    lines = []
    for key, value in fields.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\nContent-Type: application/json\r\n\r\n'
        lines.append(head.encode() + value.encode() + b"\r\n")
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    lines.append(head.encode() + content + b"\r\n")
    return f"multipart/form-data; boundary={boundary}", b"".join([*lines, f"--{boundary}--\r\n".encode()])
