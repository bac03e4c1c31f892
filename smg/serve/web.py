"""HTTP for a node: reads requests, checks who calls and how much is sent, and writes answers.

The standard library's server, a thread a connection: there are few callers, and one prediction at a time.
"""

from __future__ import annotations

import base64
import binascii
import json
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from smg.errors import SmgError
from smg.serve.multipart import Form, read_form
from smg.serve.node_options import ServeOptions, is_loopback
from smg.serve.rest import Failure, Reply, Request, Rest
from smg.serve.work import Busy

SHORT = 1 << 16  # bytes of a body other than a form
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class WebNode(ThreadingHTTPServer):
    """Listens for HTTP requests, with TLS where there is a certificate."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, options: ServeOptions, rest: Rest, page: Callable[[], str], log: Callable[[str], None]) -> None:
        self.options, self.rest, self.page, self.log = options, rest, page, log
        self.address_family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        self.places = threading.BoundedSemaphore(options.limits.connections)
        self.tls = _tls(options)
        self.hosts = {"localhost", "127.0.0.1", "[::1]", options.host} if is_loopback(options.host) else None
        try:
            super().__init__((options.host, options.http_port or 0), _Handler)
        except OSError as error:
            raise SmgError(
                f"--http {options.http_port}: {options.host} cannot be listened on: {error.strerror}; give another port"
            ) from None
        self.thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="smg-http", daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self.thread.join()

    def service_actions(self) -> None:
        """Delete uploads that were not used for a while, whether anybody calls or not."""
        self.rest.uploads.expire()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. The handshake of TLS is made by the connection's own thread, when it first reads."""
        connection, address = super().get_request()
        connection.settimeout(self.options.limits.idle)
        if self.tls:
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless as many are open as may be."""
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: WebNode
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "smg", ""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing by itself: a path may hold a patient's name."""

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _serve(self) -> None:
        self.unread = self._length()
        try:
            reply = self._reply()
        except Failure as failure:
            reply = _failed(failure.status, str(failure))
        except Busy as busy:
            reply = _failed(HTTPStatus.SERVICE_UNAVAILABLE, str(busy), {"Retry-After": "30"})
        except SmgError as error:
            reply = _failed(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            if isinstance(error, TimeoutError | ConnectionError | ssl.SSLError):
                self.close_connection = True
                return
            reply = _failed(HTTPStatus.INSUFFICIENT_STORAGE, f"cannot be stored: {error.strerror}")
        except Exception as error:  # its text may quote what was sent
            reply = _failed(HTTPStatus.INTERNAL_SERVER_ERROR, f"an unexpected {type(error).__name__}")
        self._send(reply)

    def _reply(self) -> Reply:
        host = (self.headers.get("Host") or "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if (
            self.server.hosts is not None and name not in self.server.hosts
        ):  # a page elsewhere that calls us by its name
            raise Failure(HTTPStatus.MISDIRECTED_REQUEST, "this node answers to its own name only")
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host:  # a browser's, for a page of another site
            raise Failure(HTTPStatus.FORBIDDEN, "this node answers no page of another site")
        parts = urlsplit(self.path)
        request = Request(self.command, unquote(parts.path), dict(parse_qsl(parts.query)), self._form, self._body)
        if not self.server.rest.is_open(request) and not self.server.rest.is_token(self._token()):
            raise Failure(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong; it is the password")
        if self.unread > self.server.options.limits.scan_bytes:
            limit = self.server.options.limits.scan_bytes >> 20
            raise Failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {limit} MB; raise --max-mb if it is meant")
        if request.path == "/" and self.command in ("GET", "HEAD"):
            policy = {"Content-Security-Policy": PAGE_POLICY}
            return Reply(self.server.page().encode(), "text/html; charset=utf-8", headers=policy)
        return self.server.rest.answer(request)

    def _send(self, reply: Reply) -> None:
        try:
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            if self.unread:  # unread bytes would be taken for the next request
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)
        except OSError:
            self.close_connection = True
        name = urlsplit(self.path).path.strip("/").split("/")[0]
        if name:  # not the page, which asks again and again
            self.server.log(f"http {self.command} /{_known(name)}: {int(reply.status)}")

    def _length(self) -> int:
        given = self.headers.get("Content-Length") or "0"
        if self.headers.get("Transfer-Encoding") or not given.isdecimal():
            return 1 << 62  # not known: refused as too large, and the connection is closed
        return int(given)

    def _form(self, folder: Path) -> Form:
        """Read the body's files into a folder."""
        made = 0

        def new_file(suffix: str) -> Path:
            nonlocal made
            made += 1
            return folder / f"{made:05d}{suffix or '.dcm'}"

        form = read_form(self.rfile, self.unread, self.headers.get("Content-Type") or "", new_file)  # type: ignore[arg-type]
        self.unread = 0
        return form

    def _body(self) -> bytes:
        if self.unread > SHORT:
            raise Failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too long")
        body, self.unread = self.rfile.read(self.unread), 0
        return body

    def _token(self) -> str:
        """Return the token that the caller sent: as a bearer, or as the password of a browser's login."""
        scheme, _, value = (self.headers.get("Authorization") or "").partition(" ")
        if scheme.lower() == "bearer":
            return value.strip()
        if scheme.lower() == "basic":
            try:
                return base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
            except (binascii.Error, ValueError):
                return ""
        return ""


def _failed(status: HTTPStatus, sentence: str, headers: dict[str, str] | None = None) -> Reply:
    login = {"WWW-Authenticate": 'Basic realm="smg"'} if status == HTTPStatus.UNAUTHORIZED else {}
    return Reply(json.dumps({"detail": sentence}).encode(), status=status, headers={**(headers or {}), **login})


def _known(name: str) -> str:
    """Return the first word of a path if it is one of ours; a path may be anything."""
    return name if name in ("info", "session", "datastore", "infer", "auth", "train") else "..."


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.secrets is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.secrets.certificate, options.secrets.key)
    except (OSError, ssl.SSLError) as error:
        names = f"--cert {options.secrets.certificate}, --key {options.secrets.key}"
        raise SmgError(f"{names}: no certificate and its key ({error.strerror or 'not PEM'}); give PEM files") from None
    return context
