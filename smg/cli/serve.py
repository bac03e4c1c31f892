"""`smg serve`: a node that answers a PACS over DICOM and 3D Slicer over HTTP."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from smg.cli.options import Codes, Model, TrustCode, parse_codes
from smg.cli.terminal import say
from smg.errors import Misuse, Stopped


def serve(
    model: Model,
    dicom: Annotated[
        int | None, typer.Option(metavar="PORT", help="Receive series by C-STORE on this port.", min=1, max=65535)
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="AET=HOST:PORT", help="Who may send series, and gets their masks back. May be repeated."
        ),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Answer 3D Slicer's MONAI Label module on this port.", min=1, max=65535),
    ] = None,
    inbox: Annotated[
        Path | None, typer.Option(help="Site folder that corrected masks are stored in. [default: they are refused]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    aet: Annotated[str, typer.Option(metavar="AET", help="AE title of this node.")] = "SMG",
    cert: Annotated[Path | None, typer.Option(help="Certificate for HTTPS, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key of the certificate, PEM.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that HTTP callers must send.")] = None,
    max_mb: Annotated[int, typer.Option(help="Largest series or upload, in MB.", min=1, max=1 << 20)] = 1024,
    queue: Annotated[int, typer.Option(help="Scans that may wait; further ones are refused.", min=1)] = 8,
    settle: Annotated[
        float, typer.Option(help="Seconds without a further slice after which a series is complete.", min=0.0)
    ] = 5.0,
    idle: Annotated[float, typer.Option(help="Seconds after which a silent connection is closed.", min=0.1)] = 30.0,
    spool: Annotated[
        Path | None, typer.Option(help="Folder for temporary files, emptied at the start. [default: in the cache]")
    ] = None,
    codes: Codes = None,
    trust_code: TrustCode = False,
) -> None:
    """Serve the model: series sent by C-STORE get a SEG back, and 3D Slicer can predict and send corrections.

    It listens on this machine alone unless --host says otherwise, and then HTTP needs --cert, --key and --token-file.
    It runs until it is stopped by Ctrl-C or SIGTERM.

    Example: `smg serve model --dicom 11112 --peer ORTHANC=127.0.0.1:4242`
    """
    from smg.serve.node_options import Limits, Peer, Secrets, ServeOptions, read_token

    given = [cert, key, token_file]
    if any(given) and not all(given):
        raise Misuse("--cert, --key and --token-file belong together; give all three")
    secrets = Secrets(cert, key, read_token(token_file)) if cert and key and token_file else None
    options = ServeOptions(
        host=host,
        dicom_port=dicom,
        http_port=http,
        title=aet,
        peers=tuple(Peer.parse(word) for word in peers or []),
        inbox=inbox,
        secrets=secrets,
        limits=Limits(scan_bytes=max_mb << 20, queue=queue, settle=settle, idle=idle),
    )
    options.check()
    from smg.serve.node import serving

    with serving(model, options, parse_codes(codes or []), spool, _log):
        for what, port in (("DICOM", dicom), ("HTTP" if secrets is None else "HTTPS", http)):
            if port:
                _log(f"listening for {what} on {host}:{port}")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            raise Stopped("stopped; scans that waited were given up") from None


def _log(line: str) -> None:
    say(f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')} {line}")
