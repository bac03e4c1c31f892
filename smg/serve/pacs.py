"""DICOM over the network: series in by C-STORE, masks back as SEG to the peer that sent the series.

pynetdicom comes with the extra `[serve]`. Its log is silenced, since it may quote a header.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import smg
from smg.dicom.dicom_files import pydicom_module
from smg.dicom.pixels import JPEG, PLUGINS
from smg.dicom.seg import SOP_CLASS as SEG
from smg.dicom.series import UID
from smg.errors import SmgError
from smg.serve import spool
from smg.serve.arrivals import Arrivals, Arriving, Refused
from smg.serve.model import ServedModel, summary
from smg.serve.node_options import Peer, ServeOptions
from smg.serve.work import Busy, Work

SCANS = (  # storage classes that are taken: MR, CT and PET, also as enhanced multi-frame
    "1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.4.1", "1.2.840.10008.5.1.4.1.1.2",
    "1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.128", "1.2.840.10008.5.1.4.1.1.130",
)  # fmt: skip
ECHO = "1.2.840.10008.1.1"
UNCOMPRESSED = ("1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.2")
SUCCESS, OUT_OF_RESOURCES, NOT_UNDERSTOOD = 0x0000, 0xA700, 0xC000
REJECTED = 0x01, 0x01, 0x03  # for good, by us, because the calling AE title is not known
LARGEST_UNIT = 1 << 20  # bytes; we announce 16 kB
WATCH = 0.25  # seconds between two looks at what has arrived
SEND_AGAIN = (2.0, 10.0)  # seconds to wait before a mask is sent a second and a third time


@cache
def pynetdicom_module() -> Any:
    """Return pynetdicom, set to log nothing."""
    try:
        import pynetdicom
        import pynetdicom._config
    except ImportError:
        raise SmgError("--dicom needs pynetdicom, which is not installed; pip install 'smg-learning[serve]'") from None
    pydicom_module()
    pynetdicom._config.LOG_HANDLER_LEVEL = "none"
    logger = logging.getLogger("pynetdicom")
    logger.propagate = False
    logger.setLevel(logging.CRITICAL + 1)
    return pynetdicom


class DicomNode:
    """Listens for associations, and watches what has arrived."""

    def __init__(
        self, options: ServeOptions, folder: Path, model: ServedModel, work: Work, log: Callable[[str], None]
    ) -> None:
        self.options, self.folder, self.model, self.work, self.log = options, folder, model, work, log
        self.peers = {peer.title: peer for peer in options.peers}
        self.arrivals = Arrivals(folder, options.limits)
        self.unfinished: dict[Any, int] = {}  # association -> bytes of the message under way
        self.ending = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="smg-watch", daemon=True)
        self.server = self._listen()
        self.watcher.start()

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self.server.server_address[1])

    def close(self) -> None:
        """Stop listening; what was being received is dropped."""
        self.ending.set()
        self.server.shutdown()
        self.watcher.join()

    def _listen(self) -> Any:
        net = pynetdicom_module()
        entity = _entity(self.options.title, self.options.limits.idle)
        entity.require_called_aet = True
        entity.maximum_associations = self.options.limits.connections
        entity.add_supported_context(ECHO)
        for storage in SCANS:
            entity.add_supported_context(storage, [*UNCOMPRESSED, *PLUGINS, *JPEG])
        handlers = [
            (net.evt.EVT_CONN_OPEN, self._on_open),
            (net.evt.EVT_REQUESTED, self._on_requested),
            (net.evt.EVT_DATA_RECV, self._on_bytes),
            (net.evt.EVT_DIMSE_RECV, self._on_message),
            (net.evt.EVT_C_STORE, self._on_store),
        ]
        host, port = self.options.host, self.options.dicom_port
        try:
            return entity.start_server((host, port), block=False, evt_handlers=handlers)
        except OSError as error:
            raise SmgError(
                f"--dicom {port}: {host} cannot be listened on: {error.strerror}; give another port"
            ) from None

    # --- called by pynetdicom -----------------------------------------------------------------------------------------

    def _on_open(self, event: Any) -> None:
        """Bound what a connection may announce and how long it may be silent, also within a data unit.

        pynetdicom reads a unit in one go, however long it says it is, and waits for its rest without end.
        """
        wire = event.assoc.dul.socket
        wire.socket.settimeout(self.options.limits.idle)
        receive = wire.recv

        def receive_bounded(count: int) -> Any:
            if count > LARGEST_UNIT:
                raise OSError("a data unit that is too long")
            return receive(count)

        wire.recv = receive_bounded

    def _on_requested(self, event: Any) -> None:
        """Reject an association of a caller that is not listed, or that calls from another host than its peer's."""
        peer = self.peers.get(_title(event.assoc))
        if peer is None or not _calls_from(peer, event.assoc.requestor.address):
            self.log(f"rejected a DICOM association from {event.assoc.requestor.address}: not a listed peer")
            event.assoc.acse.send_reject(*REJECTED)
            event.assoc.kill()  # waits until the rejection is sent

    def _on_bytes(self, event: Any) -> None:
        """Abort an association whose message grows beyond the limit: it is held in memory until it is complete."""
        self.unfinished[event.assoc] = self.unfinished.get(event.assoc, 0) + len(event.data)
        if sum(self.unfinished.values()) > self.options.limits.scan_bytes + (1 << 20):
            del self.unfinished[event.assoc]
            self.log(f"aborted an association of {_title(event.assoc)}: one file over the limit of --max-mb")
            event.assoc.abort(block=False)

    def _on_message(self, event: Any) -> None:
        self.unfinished.pop(event.assoc, None)

    def _on_store(self, event: Any) -> int:
        """Take a slice."""
        content = event.encoded_dataset()
        try:
            head = pydicom_module().dcmread(
                BytesIO(content), stop_before_pixels=True, specific_tags=["SeriesInstanceUID"]
            )
            series, instance = str(head.SeriesInstanceUID), str(event.request.AffectedSOPInstanceUID)
        except Exception:  # its words may quote the header
            return NOT_UNDERSTOOD
        if not UID.fullmatch(series):
            return NOT_UNDERSTOOD
        peer = self.peers[_title(event.assoc)]
        try:
            self.arrivals.add(peer, series, instance, content, event.assoc, self.work.standing().waiting)
        except Refused as refusal:
            if str(refusal):
                self.work.note_failure(peer.title, str(refusal))
            return OUT_OF_RESOURCES
        except OSError as error:
            self.work.note_failure(peer.title, f"series {series} cannot be stored: {error.strerror}")
            return OUT_OF_RESOURCES
        return SUCCESS

    # --- what has arrived ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self.ending.wait(WATCH):
            for association in [one for one in list(self.unfinished) if not one.is_alive()]:
                self.unfinished.pop(association, None)
            complete, broken = self.arrivals.take()
            for arriving in broken:
                self.work.note_failure(
                    arriving.peer.title,
                    f"series {arriving.uid}: the association ended before it was released, after "
                    f"{len(arriving.sizes)} files; send the series again",
                )
            for arriving in complete:
                self._submit(arriving)

    def _submit(self, arriving: Arriving) -> None:
        try:
            self.work.submit(arriving.peer.title, lambda: self._answer(arriving))
        except Busy:
            self.arrivals.put_back(arriving)
            return
        self.log(f"series {arriving.uid} from {arriving.peer.title}: {len(arriving.sizes)} files received")

    def _answer(self, arriving: Arriving) -> str:
        """Predict a series and send its mask back; the files are deleted in any case."""
        folder = arriving.folder
        try:
            made = self.model.predict(folder)
            mask = folder.with_name(f"{folder.name}.seg.dcm")
            try:
                self.model.write_seg(folder, made, mask)
                self._send(arriving.peer, mask)
            finally:
                mask.unlink(missing_ok=True)
        except SmgError as error:
            raise SmgError(f"series {arriving.uid}: {str(error).replace(f'{folder}: ', '')}") from None
        finally:
            spool.delete(folder)
        return f"series {arriving.uid}: SEG sent to {arriving.peer.title}, {summary(made)}"

    def _send(self, peer: Peer, mask: Path) -> None:
        for wait in (*SEND_AGAIN, None):
            try:
                send(self.options.title, peer, mask, self.options.limits.idle)
                return
            except SmgError:
                if wait is None or self.ending.wait(wait):
                    raise


def send(title: str, peer: Peer, mask: Path, seconds: float) -> None:
    """Send a SEG to a peer by C-STORE."""
    entity = _entity(title, seconds)
    entity.add_requested_context(SEG, list(UNCOMPRESSED[:2]))
    association = entity.associate(peer.host, peer.port, ae_title=peer.title)
    if not association.is_established:
        why = "it rejects us" if association.is_rejected else "it does not answer"
        raise SmgError(f"the SEG cannot be sent to {peer.title} at {peer.host}:{peer.port}: {why}; check --peer and "
                       f"that the peer knows {title}")  # fmt: skip
    try:
        if not association.accepted_contexts:
            raise SmgError(f"{peer.title} takes no SEG; allow the storage class {SEG} there")
        status = association.send_c_store(mask)
    finally:
        association.release()
    code = status.get("Status") if status else None
    if code is None or code not in (0x0000, 0xB000, 0xB006, 0xB007):  # success, and three warnings
        raise SmgError(f"{peer.title} did not store the SEG: {'no answer' if code is None else f'status {code:#06x}'}")


def _entity(title: str, seconds: float) -> Any:
    entity = pynetdicom_module().AE(ae_title=title)
    entity.implementation_version_name = f"SMG_{smg.__version__}"[:16]
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = entity.connection_timeout = seconds
    return entity


def _title(association: Any) -> str:
    """Return the AE title of an association's caller."""
    return str(association.requestor.primitive.calling_ae_title).strip()


def _calls_from(peer: Peer, address: str) -> bool:
    try:
        return peer.has_address(address)
    except SmgError:  # its name cannot be resolved at the moment
        return False
