"""DICOM over the network, against pynetdicom as sender and receiver."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from smg.dicom.dicom_masks import read_mask
from smg.dicom.series import read_series
from smg.errors import Misuse, SmgError
from smg.serve.node_options import Peer, ServeOptions
from smg.sites.volume import read_volume
from tests.cli.commands import smg
from tests.conftest import scan
from tests.dicom.conftest import Validate, validate  # noqa: F401
from tests.dicom.made import NAME, PATIENT, oblique, write_enhanced, write_series
from tests.serve.conftest import Pacs, Start, smaller, until

SECRETS = (NAME, *NAME.split("^"), PATIENT)


def series(folder: Path, seed: int = 50, **options: object) -> Path:
    return write_series(folder, scan(seed)[0].array.clip(0), **options)  # type: ignore[arg-type]


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "spool").iterdir() if path.name != "lock"]


def test_a_series_comes_back_as_the_seg_that_predict_writes(
    pacs: Pacs,
    start: Start,
    model: Path,
    tmp_path: Path,
    validate: Validate,  # noqa: F811
) -> None:
    folder = series(tmp_path / "one", direction=oblique())
    with start(dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        assert set(pacs.send(node.dicom_port, folder)) == {0}
        (seg,) = pacs.wait(1)
        until(lambda: node.work.standing().done == 1)
        assert left(tmp_path) == []
    seg.save_as(tmp_path / "back.dcm")
    assert seg.PatientID == PATIENT
    mask = read_mask(tmp_path / "back.dcm", read_series(folder))
    assert smg("predict", model, folder, "--out", tmp_path / "masks", cwd=tmp_path).returncode == 0
    assert np.array_equal(mask, read_volume(tmp_path / "masks/one.nii.gz").array)
    validate(tmp_path / "back.dcm", folder)
    log = (tmp_path / "log").read_text()
    assert "SEG sent to PACS" in log
    assert not any(secret in log for secret in SECRETS)


def test_two_senders_at_once_each_get_their_own_masks(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    other = Pacs("OTHER")
    ours, theirs = [generate_uid() for _ in range(2)], [generate_uid()]
    for uid in ours + theirs:
        series(tmp_path / uid, series=uid)
    with start(dicom_port=0, peers=(pacs.peer, other.peer)) as node:
        assert node.dicom_port
        sending = [
            threading.Thread(target=one.send, args=(node.dicom_port, *(tmp_path / uid for uid in uids)))
            for one, uids in ((pacs, ours), (other, theirs))
        ]
        for thread in sending:
            thread.start()
        for thread in sending:
            thread.join()
        pacs.wait(2)
        other.wait(1)
    for one, uids in ((pacs, ours), (other, theirs)):
        assert sorted(seg.ReferencedSeriesSequence[0].SeriesInstanceUID for seg in one.stored) == sorted(uids)
    other.server.shutdown()


def test_a_series_over_one_association_for_each_slice(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    folder = series(tmp_path / "one")
    with start(limits=smaller(settle=2.0), dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        for file in folder.iterdir():
            single = tmp_path / f"single-{file.stem}"
            single.mkdir()
            (single / file.name).write_bytes(file.read_bytes())
            assert pacs.send(node.dicom_port, single) == [0]
        (seg,) = pacs.wait(1)
        assert seg.NumberOfFrames == 6
        until(lambda: node.work.standing().done == 1)
        assert node.work.standing().failed == 0


def test_an_enhanced_multi_frame_series(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    import pynetdicom

    folder = write_enhanced(tmp_path / "one", scan(3)[0].array.clip(0))
    entity = pynetdicom.AE(ae_title="PACS")
    entity.add_requested_context(pydicom.uid.EnhancedMRImageStorage)
    with start(dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        association = entity.associate("127.0.0.1", node.dicom_port, ae_title="SMG")
        assert association.send_c_store(folder / "enhanced.dcm").Status == 0
        association.release()
        (seg,) = pacs.wait(1)
    assert seg.NumberOfFrames == 6


@pytest.mark.parametrize("end", ["abort", "lost", "silent", "within a message", "a message without end"])
def test_a_series_that_breaks_off_is_dropped(end: str, pacs: Pacs, start: Start, tmp_path: Path) -> None:
    folder = series(tmp_path / "one")
    with start(limits=smaller(idle=1.0), dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        association = pacs.associate(node.dicom_port)
        for file in sorted(folder.iterdir())[:3]:
            assert association.send_c_store(file).Status == 0
        wire = association.dul.socket.socket
        if end == "abort":
            association.abort()
        elif end == "lost":
            wire.shutdown(socket.SHUT_RDWR)
        elif end == "within a message":  # a data unit of 1000 bytes is announced, and 10 come
            wire.sendall(b"\x04\x00" + (1000).to_bytes(4, "big") + bytes(10))
        elif end == "a message without end":
            wire.sendall(b"\x04\x00" + (1 << 31).to_bytes(4, "big"))
        until(lambda: node.work.standing().failed == 1)
        assert "ended before it was released, after 3 files" in node.work.standing().failures[0].failure
        assert left(tmp_path) == []
        association.kill()
        assert set(pacs.send(node.dicom_port, folder)) <= {0, 0xA700}  # refused while it may be the rest of the first
        until(lambda: set(pacs.send(node.dicom_port, folder)) == {0} or time.sleep(2 * smaller().settle))  # it goes on
        pacs.wait(1)


def test_a_series_over_the_limit_is_refused(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    large = write_series(tmp_path / "large", np.zeros((4, 300, 1000)))
    with start(limits=smaller(scan_bytes=1 << 20), dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        assert pacs.send(node.dicom_port, large) == [0, 0xA700, 0xA700, 0xA700]
        until(lambda: node.work.standing().failed == 1)
        assert "has more than 1 MB" in node.work.standing().failures[0].failure
        assert left(tmp_path) == []
        assert set(pacs.send(node.dicom_port, series(tmp_path / "small"))) == {0}
        pacs.wait(1)


def test_one_file_over_the_limit_ends_its_association(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    large = write_series(tmp_path / "large", np.zeros((1, 2000, 2000)))
    with start(limits=smaller(scan_bytes=1 << 20), dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        association = pacs.associate(node.dicom_port)
        assert not association.send_c_store(next(large.iterdir()))
        until(lambda: association.is_aborted)
        assert "one file over the limit" in (tmp_path / "log").read_text()


def test_more_series_than_may_wait_are_refused(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    folders = [series(tmp_path / str(n), series=generate_uid()) for n in range(3)]
    with start(limits=smaller(queue=2, settle=30.0), dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        assert pacs.send(node.dicom_port, *folders) == [0] * 12 + [0xA700] * 6
        assert "send it again later" in node.work.standing().failures[0].failure


def test_what_is_no_scan_is_a_failure_and_the_node_goes_on(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    broken = series(tmp_path / "gap", series=generate_uid())
    sorted(broken.iterdir())[2].unlink()
    with start(dicom_port=0, peers=(pacs.peer,)) as node:
        assert node.dicom_port
        pacs.send(node.dicom_port, broken)
        until(lambda: node.work.standing().failed == 1)
        failure = node.work.standing().failures[0].failure
        assert failure.startswith("series ")
        assert str(tmp_path) not in failure
        assert left(tmp_path) == []
        assert not any(secret in (tmp_path / "log").read_text() for secret in SECRETS)


def test_strangers_are_rejected(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    stranger = Pacs("STRANGER")
    elsewhere = Peer("ELSEWHERE", "192.0.2.1", 104)  # an address that is nobody's
    with start(dicom_port=0, peers=(pacs.peer, elsewhere)) as node:
        assert node.dicom_port
        assert stranger.associate(node.dicom_port).is_rejected
        stranger.title = "ELSEWHERE"
        assert stranger.associate(node.dicom_port).is_rejected
        assert pacs.associate(node.dicom_port, called="OTHER").is_rejected
        association = pacs.associate(node.dicom_port)
        assert association.send_c_echo().Status == 0
        association.release()
    stranger.server.shutdown()


def test_a_peer_that_does_not_take_the_mask(
    pacs: Pacs, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smg.serve.pacs.SEND_AGAIN", (0.1,))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        deaf = Peer(pacs.title, "127.0.0.1", nobody.getsockname()[1])
    with start(dicom_port=0, peers=(deaf,)) as node:
        assert node.dicom_port
        pacs.send(node.dicom_port, series(tmp_path / "one"))
        until(lambda: node.work.standing().failed == 1)
        assert "the SEG cannot be sent to PACS" in node.work.standing().failures[0].failure
        assert left(tmp_path) == []


def test_files_of_a_node_that_was_killed_are_deleted_by_the_next(pacs: Pacs, start: Start, tmp_path: Path) -> None:
    (tmp_path / "spool/abc").mkdir(parents=True)
    (tmp_path / "spool/abc/slice.dcm").write_text("x")
    (tmp_path / "spool/lock").write_text(f"\nprocess 1 on {socket.gethostname()}\n")
    with start(dicom_port=0, peers=(pacs.peer,)):
        assert left(tmp_path) == []
        with pytest.raises(SmgError, match="in use by process"), start(dicom_port=0, peers=(pacs.peer,)):
            pass


def test_a_round_is_served_as_soon_as_it_is_current(pacs: Pacs, start: Start, model: Path, tmp_path: Path) -> None:
    from smg.serve.model import ServedModel

    served = ServedModel(model, {})
    described = json.loads((model / "model.json").read_text())
    assert served.opened.round == described["current"] == 1
    first = served.opened
    served.opened = type(first)(99, first.predictor, first.writer)  # as if another round had been current
    served.predict(series(tmp_path / "one"))
    assert served.opened.round == 1
    assert served.opened.predictor is not first.predictor


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give --dicom PORT, --http PORT or both"),
        ({"dicom_port": 1}, "no peer is listed"),
        ({"http_port": 1, "peers": (Peer("A", "127.0.0.1", 1),)}, "add --dicom PORT"),
        ({"http_port": 1, "host": "0.0.0.0"}, "add --cert, --key and --token-file"),
        ({"dicom_port": 1, "peers": (Peer("A", "127.0.0.1", 1),) * 2}, "listed twice"),
        ({"dicom_port": 1, "peers": (Peer("A", "127.0.0.1", 1),), "inbox": Path("i")}, "are for --http"),
        ({"dicom_port": 1, "title": "A" * 17, "peers": (Peer("A", "127.0.0.1", 1),)}, "no AE title"),
    ],
)
def test_mistakes_in_the_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        ServeOptions(**options).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["A", "A=host", "A=:1", "=h:1", "A=h:0", "A=h:99999", f"{'A' * 17}=h:1", "A\\B=h:1"])
def test_a_peer_that_cannot_be_read(word: str) -> None:
    with pytest.raises(Misuse, match="AET=HOST:PORT"):
        Peer.parse(word)


def test_a_peer() -> None:
    assert Peer.parse("ORTHANC=pacs.example:4242") == Peer("ORTHANC", "pacs.example", 4242)
    assert Peer.parse("A B=[::1]:104") == Peer("A B", "::1", 104)
