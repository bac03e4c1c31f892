"""Options of a node: addresses it listens on, peers it answers, and limits on what it accepts."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from smg.errors import Misuse, SmgError

AE_TITLE = re.compile(r"[!-\[\]-~]([ -\[\]-~]{0,14}[!-\[\]-~])?")  # DICOM's: 16 printable characters, no backslash
SHORTEST_TOKEN = 20  # characters


@dataclass(frozen=True)
class Peer:
    """A DICOM node that may send series, and that masks of its series are sent to."""

    title: str
    host: str
    port: int

    @classmethod
    def parse(cls, word: str) -> Peer:
        """Return the peer that is written AET=HOST:PORT."""
        title, _, address = word.partition("=")
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (AE_TITLE.fullmatch(title) and host and port.isdecimal() and 0 < int(port) < 65536):
            raise Misuse(f"--peer {word}: not a peer; write AET=HOST:PORT, such as ORTHANC=127.0.0.1:4242")
        return cls(title, host, int(port))

    def has_address(self, address: str) -> bool:
        """Return whether a connection from this address comes from the peer's host."""
        return address in _addresses(self.host)


@dataclass(frozen=True)
class Limits:
    """How much a node takes."""

    scan_bytes: int = 1 << 30  # of one series or uploaded file
    queue: int = 8  # scans that are being received or wait
    settle: float = 5.0  # seconds after the last slice until a series is complete
    idle: float = 30.0  # seconds without a byte until a connection is closed
    keep: float = 3600.0  # seconds that an uploaded scan is kept without being used
    connections: int = 16  # at a time, of each protocol


@dataclass(frozen=True)
class Secrets:
    """Files for HTTP beyond this machine: certificate and key for TLS, and the token that a caller must know."""

    certificate: Path
    key: Path
    token: str


@dataclass(frozen=True)
class ServeOptions:
    """A node's addresses, peers and limits."""

    host: str = "127.0.0.1"
    dicom_port: int | None = None  # 0 for any free one
    http_port: int | None = None
    title: str = "SMG"  # the node's own AE title
    peers: tuple[Peer, ...] = ()
    inbox: Path | None = None  # site folder for corrected masks
    secrets: Secrets | None = None
    limits: Limits = Limits()

    def check(self) -> None:
        """Refuse options that cannot be meant, and those that would leave a port open to strangers."""
        if self.dicom_port is None and self.http_port is None:
            raise Misuse("serve: nothing to serve; give --dicom PORT, --http PORT or both")
        if self.dicom_port is not None and not self.peers:
            raise Misuse("--dicom: no peer is listed, so no machine could send; add --peer AET=HOST:PORT")
        if self.dicom_port is None and self.peers:
            raise Misuse("--peer: peers are for --dicom; add --dicom PORT")
        if not AE_TITLE.fullmatch(self.title):
            raise Misuse(f"--aet {self.title}: no AE title; give 1 to 16 characters without a backslash")
        titles = [peer.title for peer in self.peers]
        if len(set(titles)) < len(titles):
            raise Misuse("--peer: an AE title is listed twice; give each peer one address")
        if self.http_port is None and (self.inbox or self.secrets):
            raise Misuse("--inbox, --cert, --key and --token-file are for --http; add --http PORT")
        if self.http_port is not None and not self.secrets and not is_loopback(self.host):
            raise Misuse(
                f"--http on {self.host}: reachable from other machines; add --cert, --key and --token-file, or leave "
                "out --host"
            )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's own, so that no other machine can connect to it."""
    return all(ipaddress.ip_address(address).is_loopback for address in _addresses(host))


def _addresses(host: str) -> set[str]:
    """Return the IP addresses of a host."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except OSError as error:
        raise SmgError(f"{host}: no address is known of it ({error.strerror or error}); check the name") from None


def read_token(path: Path) -> str:
    """Return the token in a file."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; give a file with the token") from None
    except ValueError:
        raise SmgError(f"{path}: holds more than plain ASCII; make a token with `openssl rand -hex 24`") from None
    if len(token) < SHORTEST_TOKEN or any(c.isspace() for c in token):
        raise SmgError(
            f"{path}: a token has at least {SHORTEST_TOKEN} characters and no space; "
            "make one with `openssl rand -hex 24`"
        )
    return token
