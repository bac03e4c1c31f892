"""A real archive: Debian's Orthanc with its DICOMweb plugin, by the commands of the page on serving."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pynetdicom
import pytest
from pynetdicom.sop_class import MRImageStorage

from smg.dicom.dicom_masks import read_mask
from smg.dicom.series import read_series
from smg.sites.volume import read_volume
from tests.cli.commands import SMG, TINY, smg
from tests.dicom.made import write_series
from tests.documented import ROOT, blocks, commands
from tests.serve.conftest import until

pytestmark = pytest.mark.long

PLUGINS = "/usr/share/orthanc/plugins"
PAGE = ROOT / "docs/serve.md"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


class Orthanc:
    """An Orthanc on free ports of the loopback."""

    def __init__(self, folder: Path) -> None:
        self.dicom, self.http = free_port(), free_port()
        settings = {
            "Name": "test", "StorageDirectory": str(folder / "db"), "IndexDirectory": str(folder / "db"),
            "RemoteAccessAllowed": False, "AuthenticationEnabled": False, "DicomAet": "ORTHANC",
            "DicomPort": self.dicom, "HttpPort": self.http, "Plugins": [PLUGINS],
            "DicomAlwaysAllowStore": True, "DicomWeb": {"Enable": True},
        }  # fmt: skip
        (folder / "orthanc.json").write_text(json.dumps(settings))
        self.process = subprocess.Popen(
            ["Orthanc", str(folder / "orthanc.json")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: answers(f"{self.url}/system"), 120)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def store(self, folder: Path) -> None:
        entity = pynetdicom.AE(ae_title="SCANNER")
        entity.add_requested_context(MRImageStorage)
        association = entity.associate("127.0.0.1", self.dicom, ae_title="ORTHANC")
        assert association.is_established
        for file in folder.iterdir():
            assert association.send_c_store(file).Status == 0
        association.release()


@pytest.fixture
def orthanc(tmp_path: Path) -> Iterator[Orthanc]:
    subprocess.run([Path(__file__).with_name("install_orthanc.sh")], check=True)
    made = Orthanc(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait(30)


def test_the_page_from_an_orthanc_with_a_series_to_a_seg_in_it(orthanc: Orthanc, tmp_path: Path) -> None:
    typed = [c for language, text in blocks(PAGE) if language == "sh" for c in commands(text)][:2]
    for command in typed:
        words = shlex.split(command)[1:]
        assert smg(*words, *(TINY if words[0] == "learn" else []), cwd=tmp_path).returncode == 0, command
    phantom = read_volume(sorted((tmp_path / "phantoms/B").glob("*[0-9].nii.gz"))[0])
    array = phantom.array.astype(np.int32)
    folder = write_series(tmp_path / "series", array - array.min())
    orthanc.store(folder)
    (series,) = get(f"{orthanc.url}/series")
    node = free_port()
    console = next(text for language, text in blocks(PAGE) if language == "console")
    ours = {"11112": node, "4242": orthanc.dicom, "8042": orthanc.http, "SERIES": series}
    lines = [line.removeprefix("$ ") for line in console.splitlines()]
    for word, value in ours.items():
        lines = [line.replace(word, str(value)) for line in lines]
    assert len(typed) + len(lines) == 5
    serving = shlex.split(lines[0].removesuffix(" &"))
    process = subprocess.Popen([SMG, *serving[1:]], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        assert "listening for DICOM" in process.stderr.readline()
        for line in lines[1:]:
            subprocess.run(shlex.split(line), check=True, capture_output=True)
        until(lambda: bool(get(f"{orthanc.url}/dicom-web/series?Modality=SEG")), 120)
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "SEG sent to ORTHANC" in said
    (found,) = get(f"{orthanc.url}/dicom-web/series?Modality=SEG")
    assert found["0020000D"]["Value"] == [read_series(folder).study]
    (identifier,) = [
        one
        for one in get(f"{orthanc.url}/instances")
        if get(f"{orthanc.url}/instances/{one}/simplified-tags")["Modality"] == "SEG"
    ]
    with urllib.request.urlopen(f"{orthanc.url}/instances/{identifier}/file") as answer:
        (tmp_path / "back.dcm").write_bytes(answer.read())
    assert pydicom.dcmread(tmp_path / "back.dcm").Modality == "SEG"
    assert smg("predict", "model", "series", "--out", "masks", cwd=tmp_path).returncode == 0
    back, expected = (
        read_mask(tmp_path / "back.dcm", read_series(folder)),
        read_volume(tmp_path / "masks/series.nii.gz"),
    )
    assert np.array_equal(back, expected.array)


def test_a_node_that_is_killed_leaves_nothing_after_its_next_start(model: Path, tmp_path: Path) -> None:
    port, spool = free_port(), tmp_path / "spool"
    words = [SMG, "serve", model, "--dicom", str(port), "--peer", "PACS=127.0.0.1:1", "--settle", "60"]

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([*words, "--spool", spool], stderr=subprocess.PIPE, text=True, env=os.environ)
        assert process.stderr
        assert "listening" in process.stderr.readline()
        return process

    folder = write_series(tmp_path / "series")
    first = start()
    entity = pynetdicom.AE(ae_title="PACS")
    entity.add_requested_context(MRImageStorage)
    association = entity.associate("127.0.0.1", port, ae_title="SMG")
    for file in folder.iterdir():
        assert association.send_c_store(file).Status == 0
    first.kill()
    first.communicate()
    association.kill()
    assert len(list(spool.rglob("*.dcm"))) == 6
    second = start()
    assert [path.name for path in spool.iterdir()] == ["lock"]
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=60)
    assert second.returncode == 130
