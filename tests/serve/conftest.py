"""A model to serve, a node that serves it, and a PACS that sends it series."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pydicom
import pynetdicom
import pytest
from pynetdicom.sop_class import MRImageStorage, SegmentationStorage

from smg.serve.node import Node, serving
from smg.serve.node_options import Limits, Peer, ServeOptions
from tests.cli.commands import TINY, smg
from tests.conftest import write_site

LIMITS = Limits(scan_bytes=20 << 20, queue=4, settle=0.3, idle=5.0)


class Pacs:
    """An archive: stores what it is sent, and sends series; pynetdicom on both sides."""

    def __init__(self, title: str = "PACS", host: str = "127.0.0.1") -> None:
        self.title, self.stored, self.came = title, list[pydicom.Dataset](), threading.Condition()
        entity = pynetdicom.AE(ae_title=title)
        entity.add_supported_context(SegmentationStorage)
        handlers = [(pynetdicom.evt.EVT_C_STORE, self._on_store)]
        self.server: Any = entity.start_server((host, 0), block=False, evt_handlers=handlers)  # type: ignore[arg-type]

    def _on_store(self, event: Any) -> int:
        with self.came:
            self.stored.append(pydicom.dcmread(BytesIO(event.encoded_dataset())))
            self.came.notify_all()
        return 0

    @property
    def peer(self) -> Peer:
        return Peer(self.title, "127.0.0.1", self.server.server_address[1])

    def associate(self, port: int, called: str = "SMG") -> Any:
        entity = pynetdicom.AE(ae_title=self.title)
        entity.add_requested_context(MRImageStorage)
        entity.add_requested_context("1.2.840.10008.1.1")
        return entity.associate("127.0.0.1", port, ae_title=called)

    def send(self, port: int, *folders: Path, release: bool = True) -> list[int]:
        """Send series over one association; return the status of each slice."""
        association = self.associate(port)
        assert association.is_established
        files = [file for folder in folders for file in sorted(folder.iterdir())]
        codes = [association.send_c_store(pydicom.dcmread(file)).get("Status") for file in files]
        association.release() if release else association.abort()
        return codes

    def wait(self, count: int, seconds: float = 60.0) -> list[pydicom.Dataset]:
        """Return what was stored, once it is so many objects."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.stored) >= count, seconds), "no SEG came back"
        return self.stored


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned one site of tiny scans."""
    folder = tmp_path_factory.mktemp("served")
    write_site(folder / "A", 6)
    result = smg("learn", "model", "A", *TINY, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "model"


@pytest.fixture
def pacs() -> Iterator[Pacs]:
    made = Pacs()
    yield made
    made.server.shutdown()


Start = Callable[..., AbstractContextManager[Node]]


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Start:
    """Start a node; its lines are in `logged` of the node's folder."""

    @contextmanager
    def started(limits: Limits = LIMITS, **options: Any) -> Iterator[Node]:
        def log(line: str) -> None:
            with (tmp_path / "log").open("a") as file:
                file.write(f"{line}\n")

        with serving(model, ServeOptions(limits=limits, **options), folder=tmp_path / "spool", log=log) as node:
            yield node

    return started


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def smaller(**changes: Any) -> Limits:
    return replace(LIMITS, **changes)
