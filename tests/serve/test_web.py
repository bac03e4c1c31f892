"""HTTP: MONAI Label's protocol, corrected masks that become a site, limits, TLS and the token."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from smg.errors import SmgError
from smg.serve.node_options import Secrets, is_loopback, read_token
from smg.sites.volume import Volume, read_volume, write_volume
from tests.cli.commands import TINY, smg
from tests.conftest import scan
from tests.dicom.made import NAME, write_series
from tests.serve.conftest import Start, smaller, until
from tests.serve.slicer import Slicer, form

PATIENT = "ROSENKRANTZ Guilden"  # what Slicer calls a volume by, often enough
TOKEN = "a-token-of-24-characters"


@pytest.fixture
def scan_file(tmp_path: Path) -> Path:
    path = tmp_path / f"{PATIENT}.nii.gz"
    write_volume(path, scan(70)[0])
    return path


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "spool").iterdir() if path.name != "lock"]


def test_what_slicer_asks_for_first(start: Start) -> None:
    with start(http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        status, info = slicer.json("GET", "/info/")
        assert status == 200
        assert info["labels"] == ["foreground"]
        assert info["models"]["model"]["type"] == "segmentation"
        assert info["models"]["model"]["labels"] == {"foreground": 1}
        assert not info.get("config")  # Slicer's module takes it for an old server otherwise
        for path in ("/auth/", "/train/", "/train/?check_if_running=true", "/activelearning/random", "/nothing"):
            assert slicer.ask("GET", path)[0] == 404


@pytest.mark.parametrize("suffix", [".nrrd", ".nii.gz"])
def test_a_mask_is_that_of_predict(suffix: str, start: Start, model: Path, scan_file: Path, tmp_path: Path) -> None:
    assert smg("predict", model, scan_file, "--out", tmp_path / "masks").returncode == 0
    expected = read_volume(tmp_path / "masks" / scan_file.name)
    with start(http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        assert slicer.upload(scan_file, PATIENT) == (200, {"image": PATIENT})
        quoted = PATIENT.replace(" ", "+")
        status, about, mask = slicer.infer("model", f"image={quoted}", {"result_extension": suffix})
        assert status == 200
        assert about["label_names"] == {"foreground": 1}
    (tmp_path / f"mask{suffix}").write_bytes(mask)
    made = read_volume(tmp_path / f"mask{suffix}")
    assert np.array_equal(made.array, expected.array)
    assert np.allclose(made.affine, expected.affine, atol=1e-4)
    assert "ROSENKRANTZ" not in (tmp_path / "log").read_text()


def test_sessions_and_files_in_the_request(start: Start, scan_file: Path, tmp_path: Path) -> None:
    with start(http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        headers, body = form({}, {"files": scan_file})
        status, opened = slicer.json("PUT", "/session/", body, headers)
        assert status == 200
        identifier = opened["session_id"]
        assert slicer.json("GET", f"/session/{identifier}")[0] == 200
        first = slicer.infer("model", f"image=x&session_id={identifier}", {})
        assert slicer.infer("model", "image=", {}, file=scan_file)[2] == first[2]
        assert slicer.json("DELETE", f"/session/{identifier}")[0] == 200
        assert slicer.json("GET", f"/session/{identifier}")[0] == 404
        assert slicer.infer("model", f"image=x&session_id={identifier}", {})[0] == 404
        assert left(tmp_path) == []


def test_the_files_of_a_dicom_series(start: Start, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "series", scan(71)[0].array.clip(0))
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="files"; filename="{file.name}"\r\n\r\n'
        + file.read_bytes().decode("latin-1")
        + "\r\n"
        for file in folder.iterdir()
    )
    body = (parts + "--x--\r\n").encode("latin-1")
    with start(http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        _, opened = slicer.json("PUT", "/session/", body, {"Content-Type": "multipart/form-data; boundary=x"})
        assert slicer.infer("model", f"session_id={opened['session_id']}", {})[0] == 200
        assert NAME not in (tmp_path / "log").read_text()


def test_corrected_masks_become_a_site_that_is_learned(start: Start, model: Path, tmp_path: Path) -> None:
    learning = tmp_path / "learning"
    shutil.copytree(model, learning)
    with start(http_port=0, inbox=tmp_path / "inbox") as node:
        slicer = Slicer(node.http_port or 0)
        for number in range(4):
            image, mask = scan(80 + number)
            write_volume(tmp_path / "scan.nii.gz", image)
            drawn = Volume(mask.array * 2, mask.affine)  # Slicer may number its segments in its own way
            write_volume(tmp_path / "mask.nrrd", drawn)
            slicer.upload(tmp_path / "scan.nii.gz", f"{PATIENT} {number}")
            segments = [{"name": "spare", "idx": 1}, {"name": "foreground", "idx": 2}]
            status, stored = slicer.correct(
                f"{PATIENT} {number}", tmp_path / "mask.nrrd", {"label_info": segments, "model": "model"}
            )
            assert status == 200, stored
            assert np.array_equal(read_volume(tmp_path / f"inbox/labels/{stored['label']}.nii.gz").array, mask.array)
            assert np.array_equal(read_volume(tmp_path / f"inbox/images/{stored['label']}.nii.gz").array, image.array)
        again = slicer.correct(f"{PATIENT} 3", tmp_path / "mask.nrrd", {"label_info": segments})
        assert again == (200, {"image": f"{PATIENT} 3", "label": stored["label"]})
        assert slicer.json("GET", "/info/")[1]["datastore"]["completed"] == 4
    assert not any("ROSENKRANTZ" in str(path) for path in (tmp_path / "inbox").rglob("*"))
    checked = smg("sites", "check", tmp_path / "inbox", "--json")
    assert json.loads(checked.stdout)["sites"]["inbox"]["subjects"] == 4
    learned = smg("learn", learning, tmp_path / "inbox", "--unguarded", *TINY)
    assert learned.returncode == 0, learned.stderr
    assert "ROSENKRANTZ" not in (tmp_path / "log").read_text()


def test_masks_that_are_not_stored(start: Start, scan_file: Path, tmp_path: Path) -> None:
    _, mask = scan(70)
    write_volume(tmp_path / "mask.nrrd", mask)
    write_volume(tmp_path / "empty.nrrd", Volume(0 * mask.array, mask.affine))
    write_volume(tmp_path / "elsewhere.nrrd", Volume(mask.array, mask.affine + 9))
    with start(http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        slicer.upload(scan_file, "a")
        status, answer = slicer.correct("a", tmp_path / "mask.nrrd", {})
        assert (status, "--inbox" in answer["detail"]) == (403, True)
    with start(http_port=0, inbox=tmp_path / "inbox") as node:
        slicer = Slicer(node.http_port or 0)
        slicer.upload(scan_file, "a")
        for name, params, words in (
            ("mask", {"label_info": [{"name": "tumour", "idx": 1}]}, "segment 'tumour' is not a class of the model"),
            ("empty", {}, "is empty"),
            ("elsewhere", {}, "not on the scan's grid"),
        ):
            status, answer = slicer.correct("a", tmp_path / f"{name}.nrrd", params)
            assert (status, words in answer["detail"]) == (422, True), answer
        assert slicer.correct("b", tmp_path / "mask.nrrd", {})[0] == 404
        assert slicer.correct("a&tag=original", tmp_path / "mask.nrrd", {})[0] == 404
        assert slicer.json("PUT", "/datastore/label?image=a&tag=original")[0] == 400
    assert not (tmp_path / "inbox").exists()


def test_mistakes_of_a_caller(start: Start, scan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.nii.gz").write_bytes(b"no scan")
    with start(limits=smaller(scan_bytes=1 << 20), http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        headers, body = form({}, {"file": scan_file})
        for path, want, words in (
            ("/infer/other?image=a", 404, "this node serves model"),
            ("/infer/model?image=a", 404, "upload it again"),
        ):
            status, answer = slicer.json("POST", path, form({"params": "{}"}, {})[1], headers)
            assert (status, words in answer["detail"]) == (want, True)
        assert slicer.infer("model", "image=", {"result_extension": ".exe"}, file=scan_file)[0] == 400
        status, answer, _ = slicer.infer("model", "image=", {}, file=tmp_path / "bad.nii.gz")
        assert status == 422
        assert str(tmp_path) not in answer["detail"]
        assert slicer.json("PUT", "/datastore/?image=a", body[:-40], headers)[0] in (400, 408)
        assert slicer.json("PUT", "/datastore/?image=a", b"x", {"Content-Type": "text/plain"})[0] == 400
        assert slicer.ask("PUT", "/datastore/?image=a", headers=headers | {"Content-Length": str(2 << 20)})[0] == 413
        assert slicer.ask("PUT", "/datastore/", headers=headers | {"Transfer-Encoding": "chunked"})[0] == 413
        assert slicer.ask("GET", "/info/", headers={"Host": "evil.example"})[0] == 421
        assert slicer.ask("GET", "/info/", headers={"Origin": "https://evil.example"})[0] == 403
        assert slicer.ask("GET", "/info/", headers={"Origin": "null"})[0] == 403
        assert left(tmp_path) == []


def test_a_full_queue_and_a_caller_that_hangs(start: Start, scan_file: Path) -> None:
    with start(limits=smaller(queue=1, idle=0.5), http_port=0) as node:
        slicer, go = Slicer(node.http_port or 0), threading.Event()
        node.work.submit("test", lambda: str(go.wait(60)))
        until(lambda: node.work.standing().current is not None)
        node.work.submit("test", lambda: "second")
        assert slicer.infer("model", "image=", {}, file=scan_file)[0] == 503
        with socket.create_connection(("127.0.0.1", node.http_port or 0)) as silent:
            silent.sendall(b"PUT /datastore/?image=a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nab")
            silent.settimeout(30)
            while silent.recv(4096):  # until the node closes the connection
                pass
        go.set()
        until(lambda: node.work.standing().done == 2)
        assert slicer.infer("model", "image=", {}, file=scan_file)[0] == 200


def test_uploads_are_deleted_when_they_are_old_or_too_many(start: Start, scan_file: Path, tmp_path: Path) -> None:
    with start(limits=smaller(queue=1), http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        for number in range(6):
            slicer.upload(scan_file, str(number))
        assert len(left(tmp_path)) == 4
    with start(limits=smaller(keep=0.0), http_port=0) as node:
        slicer = Slicer(node.http_port or 0)
        slicer.upload(scan_file, "a")
        until(lambda: left(tmp_path) == [])  # though nobody calls


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for this machine and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_tls_and_the_token(start: Start, certificate: Path, scan_file: Path, tmp_path: Path) -> None:
    secrets = Secrets(certificate / "cert.pem", certificate / "key.pem", TOKEN)
    tls = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with start(host="0.0.0.0", http_port=0, secrets=secrets) as node:
        port = node.http_port or 0
        assert Slicer(port, tls=tls).json("GET", "/auth/") == (200, {"enabled": True, "client_id": "", "realm": ""})
        for path in ("/info/", "/", "/auth/token/valid"):
            status, _, headers = Slicer(port, tls=tls).ask("GET", path)
            assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="smg"')
        assert Slicer(port, {"Authorization": "Bearer wrong"}, tls).ask("GET", "/info/")[0] == 401
        assert Slicer(port, tls=tls).upload(scan_file, "a")[0] == 401
        login = {"Content-Type": "application/x-www-form-urlencoded"}
        assert Slicer(port, tls=tls).json("POST", "/auth/token", b"username=me&password=no", login)[0] == 401
        status, given = Slicer(port, tls=tls).json("POST", "/auth/token", f"password={TOKEN}".encode(), login)
        bearer = {"Authorization": f"{given['token_type']} {given['access_token']}"}
        for path in ("/info/", "/auth/token/valid", "/"):
            assert Slicer(port, bearer, tls).ask("GET", path)[0] == 200
        basic = {"Authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}
        assert Slicer(port, basic, tls).ask("GET", "/")[0] == 200
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET /info/ HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" not in plain.recv(100)
        assert Slicer(port, bearer, tls).ask("GET", "/info/")[0] == 200
    assert TOKEN not in (tmp_path / "log").read_text()


def test_tokens_and_hosts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token") == TOKEN
    (tmp_path / "token").write_text("short")
    with pytest.raises(SmgError, match="at least 20 characters"):
        read_token(tmp_path / "token")
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")


def test_the_page(start: Start, scan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.nii.gz").write_bytes(b"<script>")
    with start(http_port=0, inbox=tmp_path / "inbox") as node:
        slicer = Slicer(node.http_port or 0)
        slicer.infer("model", "image=", {}, file=scan_file)
        slicer.infer("model", "image=", {}, file=tmp_path / "bad.nii.gz")
        node.work.note_failure("<b>", "<script>alert(1)</script>")
        status, body, headers = slicer.ask("GET", "/")
        page = body.decode()
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        for words in (
            "The model's rounds",
            "1 mask made"[2:],
            "2 failures",
            "current",
            "0 corrected scans in the inbox",
        ):
            assert words in page
        assert str(tmp_path) not in page
