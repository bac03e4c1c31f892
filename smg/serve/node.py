"""A node: the model, its queue, and the protocols that it listens on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from smg.serve.model import ServedModel
from smg.serve.node_options import ServeOptions
from smg.serve.rest import Rest
from smg.serve.spool import default_spool, spool
from smg.serve.status_page import status_page
from smg.serve.work import Work


@dataclass(frozen=True)
class Node:
    """A node that runs: its queue, and the ports that it listens on."""

    work: Work
    dicom_port: int | None
    http_port: int | None


@contextmanager
def serving(
    model: Path,
    options: ServeOptions,
    codes: Mapping[str, str] | None = None,
    folder: Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Iterator[Node]:
    """Serve a model until the block ends; `folder` is for temporary files (default: in the cache's folder)."""
    options.check()
    with ExitStack() as stack:
        served = ServedModel(model, codes or {})
        temporary = stack.enter_context(spool(folder or default_spool(model)))
        work = Work(options.limits.queue, log)
        stack.callback(work.close)
        dicom_port = http_port = None
        if options.dicom_port is not None:
            from smg.serve.pacs import DicomNode

            pacs = DicomNode(options, temporary, served, work, log)
            stack.callback(pacs.close)
            dicom_port = pacs.port
        if options.http_port is not None:
            from smg.serve.web import WebNode

            token = options.secrets.token if options.secrets else None
            rest = Rest(served, work, temporary, options.inbox, token, options.limits)
            shown = replace(options, dicom_port=dicom_port)
            web = WebNode(options, rest, lambda: status_page(served, work, shown, rest.inbox), log)
            stack.callback(web.close)
            http_port = web.port
        yield Node(work, dicom_port, http_port)
