"""MONAI Label's own client against a node: the file `client.py` of its package, without the package's requirements."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from smg.serve.node_options import Secrets
from smg.sites.volume import read_volume, write_volume
from tests.cli.commands import smg
from tests.conftest import scan
from tests.serve.conftest import Start
from tests.serve.test_web import TOKEN, certificate  # noqa: F401

pytestmark = pytest.mark.long

PACKAGE = "monailabel==0.8.5"  # a wheel of 20 MB; there are no sources of it on PyPI
WANTED = {"result_extension": ".nrrd", "result_dtype": "uint8"}  # as the Slicer module asks


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """MONAI Label's client, from its package."""
    folder = tmp_path_factory.mktemp("monailabel")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(pip, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (folder / "client.py").write_bytes(wheel.read("monailabel/client/client.py"))
    spec = importlib.util.spec_from_file_location("monailabel_client", folder / "client.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_as_the_slicer_module_calls_it(client: ModuleType, start: Start, model: Path, tmp_path: Path) -> None:
    image, mask = scan(90)
    write_volume(tmp_path / "scan.nii.gz", image)
    write_volume(tmp_path / "corrected.nii.gz", mask)
    assert smg("predict", model, tmp_path / "scan.nii.gz", "--out", tmp_path / "masks").returncode == 0
    expected = read_volume(tmp_path / "masks/scan.nii.gz").array
    (tmp_path / "received").mkdir()
    with start(http_port=0, inbox=tmp_path / "inbox") as node:
        url = f"http://127.0.0.1:{node.http_port}"
        label: Any = client.MONAILabelClient(url, str(tmp_path / "received"), client_id="user-xyz")
        assert not label.auth_enabled()
        info = label.info()
        (name,) = info["models"]
        session = label.create_session(str(tmp_path / "scan.nii.gz"))["session_id"]
        assert label.get_session(session)["expiry"] > 0
        file, about = label.infer(name, "PATIENT NAME", dict(WANTED), session_id=session)
        assert np.array_equal(read_volume(Path(file)).array, expected)
        assert about["label_names"] == {"foreground": 1}
        assert label.upload_image(str(tmp_path / "scan.nii.gz"), "PATIENT NAME") == {"image": "PATIENT NAME"}
        file, _ = label.infer(name, "PATIENT NAME", dict(WANTED))
        assert np.array_equal(read_volume(Path(file)).array, expected)
        segments = [{"name": "foreground", "idx": 1}]
        stored = label.save_label(
            "PATIENT NAME", str(tmp_path / "corrected.nii.gz"), params={"label_info": segments, "model": name}
        )
        assert np.array_equal(read_volume(tmp_path / f"inbox/labels/{stored['label']}.nii.gz").array, mask.array)
        assert label.info()["datastore"]["completed"] == 1
        assert not label.train_status(check_if_running=True)
        with pytest.raises(client.MONAILabelClientException):
            label.train_start(name, {})
        assert label.remove_session(session)["expiry"] > 0
        with pytest.raises(client.MONAILabelClientException):
            label.get_session(session)
    assert "PATIENT" not in (tmp_path / "log").read_text()


def test_a_login_over_tls(client: ModuleType, start: Start, certificate: Path, tmp_path: Path) -> None:  # noqa: F811
    secrets = Secrets(certificate / "cert.pem", certificate / "key.pem", TOKEN)
    write_volume(tmp_path / "scan.nii.gz", scan(91)[0])
    with start(host="0.0.0.0", http_port=0, secrets=secrets) as node:
        label: Any = client.MONAILabelClient(f"https://127.0.0.1:{node.http_port}", str(tmp_path))
        assert label.auth_enabled()
        assert not label.auth_valid_token()
        with pytest.raises(client.MONAILabelClientException):
            label.auth_token("anyone", "wrong")
        label.update_auth(label.auth_token("anyone", TOKEN))
        assert label.auth_valid_token()
        assert label.upload_image(str(tmp_path / "scan.nii.gz"), "a") == {"image": "a"}
        (name,) = label.info()["models"]
        assert Path(label.infer(name, "a", dict(WANTED))[0]).exists()
