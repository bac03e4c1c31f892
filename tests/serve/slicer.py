"""Requests as MONAI Label's module for 3D Slicer makes them, by the standard library's client."""

from __future__ import annotations

import http.client
import json
import ssl
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

LIMIT = "----------limit-of-the-file"


def form(fields: dict[str, str], files: dict[str, Path]) -> tuple[dict[str, str], bytes]:
    body = b""
    for name, value in fields.items():
        body += f'--{LIMIT}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for name, file in files.items():
        head = f'--{LIMIT}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n\r\n'
        body += head.encode() + file.read_bytes() + b"\r\n"
    return {"Content-Type": f"multipart/form-data; boundary={LIMIT}"}, body + f"--{LIMIT}--\r\n\r\n".encode()


class Slicer:
    """A caller of one node."""

    def __init__(self, port: int, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.port, self.headers, self.tls = port, headers or {}, tls

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        wire = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.tls)
            if self.tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        )
        wire.request(method, path, body, {**self.headers, **(headers or {})})
        answer = wire.getresponse()
        found = answer.status, answer.read(), answer.headers
        wire.close()
        return found

    def json(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        status, content, _ = self.ask(method, path, body, headers)
        return status, json.loads(content)

    def upload(self, scan: Path, identifier: str) -> Any:
        headers, body = form({"params": "{}"}, {"file": scan})
        return self.json("PUT", f"/datastore/?image={quote_plus(identifier)}", body, headers)

    def infer(self, model: str, query: str, params: dict[str, Any], **files: Path) -> tuple[int, Any, bytes]:
        """Return the status, the parameters, and the mask's file."""
        headers, body = form({"params": json.dumps(params)}, files)
        status, content, got = self.ask("POST", f"/infer/{model}?{query}", body, headers)
        if status != 200:
            return status, json.loads(content), b""
        message = message_from_bytes(f"Content-Type: {got['Content-Type']}\r\n\r\n".encode() + content)
        about, mask = message.get_payload()  # type: ignore[misc]
        return status, json.loads(about.get_payload()), mask.get_payload(decode=True)  # type: ignore[union-attr]

    def correct(self, identifier: str, mask: Path, params: dict[str, Any]) -> Any:
        headers, body = form({"params": json.dumps(params)}, {"label": mask})
        return self.json("PUT", f"/datastore/label?image={quote_plus(identifier)}", body, headers)
