"""A model folder is data: what it names runs only if the user trusts it."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smg import trust
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.store import Store
from smg.networks import NetworkConfig, build_network
from tests.cli.commands import TINY, assert_line, smg, write_and_learn

MINE = """from pathlib import Path

from smg.methods import JM, register

Path("ran").touch()


@register("mine")
class Mine(JM):
    pass
"""
HUB = """import os

from torch import nn

dependencies = []


def network(**arguments):
    open("ran", "w").close()
    return nn.Conv2d(1, 2, 1)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sites, A and B, and a model that has learned A."""
    return write_and_learn(tmp_path_factory.mktemp("made"), "AB", "A")


def received(desk: Path, changes: dict[str, Any]) -> None:
    """Change the settings in a model's folder, as whoever sends it may: every setting that a round repeats, too."""
    for path in (desk / "model" / "model.json", *desk.glob("model/rounds/*/round.json")):
        record = json.loads(path.read_text())
        record["config"] |= changes
        path.write_text(json.dumps(record))
    Store(desk / "model").adopt()  # its journal fits, too


def network(name: str, **arguments: Any) -> dict[str, Any]:
    plain = NetworkConfig().model_dump() | {"name": name, "arguments": arguments}
    return {"network": plain}


EXPLOIT = "!!python/object/apply:os.system ['touch ran']"
ATTACKS = {
    "yaml": network("yaml:unsafe_load", stream=EXPLOIT),
    "run": network("torch.utils.collect_env:run", command="touch ran"),
    "hub": network("torch.hub:load", repo_or_dir="model", source="local", model="network", trust_repo=True),
    "os": network("os:system", command="touch ran"),
    "monai": network("TorchVisionFCModel", pretrained=True),
    "downloading": network("FlexibleUNet", backbone="efficientnet-b0", pretrained=True),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("command", ["predict", "evaluate", "learn", "export", "card"])
def test_a_network_that_a_folder_names_is_refused_in_one_line(attack: str, command: str, desk: Path) -> None:
    received(desk, ATTACKS[attack])
    (desk / "model" / "hubconf.py").write_text(HUB)
    words = {
        "predict": ["A/Case00.nii.gz", "--out", "masks"],
        "evaluate": ["A"],
        "learn": ["B"],
        "export": ["--as", "onnx", "--out", "out"],
        "card": [],
    }
    result = smg(command, "model", *words[command], cwd=desk)
    assert_line(result, 1, f"network {ATTACKS[attack]['network']['name']}")
    assert not (desk / "ran").exists()
    assert not (desk / "masks").exists()


@pytest.mark.parametrize("setting", ["method", "loss", "replay"])
@pytest.mark.parametrize("command", ["learn", "evaluate"])
def test_a_file_that_a_folder_names_is_not_run(setting: str, command: str, desk: Path) -> None:
    (desk / "model" / "e.py").write_text(MINE)
    named: Any = "model/e.py:mine"
    if setting == "replay":
        named = {"policy": named}
    received(desk, {setting: named})
    result = smg(command, "model", "B" if command == "learn" else "A", cwd=desk)
    assert not (desk / "ran").exists()
    if command == "learn" or setting == "method":
        assert_line(result, 1, "model/e.py:mine: a model folder is data", "`smg trust model/e.py`", "--trust-code")


def test_whoever_looks_needs_no_trust(desk: Path) -> None:
    received(desk, {"method": "model/e.py:mine"})
    for command in (["history", "model"], ["replay", "show", "model"], ["predict", "model", "A", "--out", "masks"]):
        assert smg(*command, cwd=desk).returncode == 0


def test_what_the_user_types_runs_on_that_call_and_not_on_the_next(desk: Path) -> None:
    (desk / "mine.py").write_text(MINE)
    assert smg("learn", "own", "A", "--method", "mine.py:mine", *TINY, cwd=desk).returncode == 0
    (desk / "ran").unlink()
    assert_line(smg("learn", "own", "B", cwd=desk), 1, "method mine.py:mine", "--trust-code")
    assert_line(smg("evaluate", "own", "A", cwd=desk), 1, "method mine.py:mine")
    assert smg("learn", "own", "B", "--method", "mine.py:mine", "--unguarded", cwd=desk).returncode == 0
    assert smg("evaluate", "own", "A", "--trust-code", cwd=desk).returncode == 0
    assert_line(smg("evaluate", "own", "A", cwd=desk), 1, "method mine.py:mine")


def test_trust_is_by_the_files_content_and_lies_outside_of_the_model(desk: Path) -> None:
    (desk / "mine.py").write_text(MINE)
    received(desk, {"method": "mine.py:mine"})
    before = sorted((desk / "model").rglob("*"))
    assert smg("trust", "mine.py", cwd=desk).returncode == 0
    assert "mine.py" in smg("trust", cwd=desk).stdout
    assert sorted((desk / "model").rglob("*")) == before
    assert smg("evaluate", "model", "A", cwd=desk).returncode == 0
    (desk / "mine.py").write_text(MINE + "# changed\n")
    assert_line(smg("evaluate", "model", "A", cwd=desk), 1, "method mine.py:mine")
    assert smg("trust", "--remove", "mine.py", cwd=desk).returncode == 0
    assert_line(smg("trust", "--remove", "mine.py", cwd=desk), 1, "was not trusted")
    assert_line(smg("trust", "nothing.py", cwd=desk), 1, "nothing.py: no such Python file")


def test_a_compiled_copy_beside_a_trusted_file_is_not_what_runs(desk: Path) -> None:
    (desk / "mine.py").write_text(MINE.replace("ran", "bad"))
    compiled = Path(py_compile.compile(str(desk / "mine.py"), doraise=True) or "")
    at = (desk / "mine.py").stat()
    (desk / "mine.py").write_text(MINE)
    os.utime(desk / "mine.py", (at.st_atime, at.st_mtime))
    assert compiled.exists()
    assert smg("run", "--data", ".", "--order", "A", "--method", "mine.py:mine", *TINY, cwd=desk).returncode == 0
    assert (desk / "ran").exists()
    assert not (desk / "bad").exists()


def test_a_factory_is_trusted_by_name_and_files_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text("from torch import nn\n\n\ndef one(**channels):\n    return nn.Conv2d(1, 2, 1)")
    monkeypatch.syspath_prepend(tmp_path)
    trust.trust("own_nets.nets:one")
    assert "own_nets" not in sys.modules
    build_network(NetworkConfig(name="own_nets.nets:one"))
    with pytest.raises(SmgError, match=r"network own_nets\.nets:two: a model folder is data"):
        build_network(NetworkConfig(name="own_nets.nets:two"))
    (package / "__init__.py").write_text("1 + 1\n")
    with pytest.raises(SmgError, match=r"network own_nets\.nets:one"):
        build_network(NetworkConfig(name="own_nets.nets:one"))


def test_python_trusts_what_its_caller_writes(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk / "mine.py").write_text(MINE)
    received(desk, {"method": "mine.py:mine"})
    monkeypatch.chdir(desk)
    with pytest.raises(SmgError, match=r"method mine\.py:mine: a model folder is data"):
        Learner("model").config.recipe()
    assert not Path("ran").exists()
    Learner("model", trust_code=True).config.recipe()
    trust.begin_call()
    LearnerConfig(method="mine.py:mine").recipe()


def test_a_damaged_list_is_one_line() -> None:
    trust.trusted_file().parent.mkdir(parents=True)
    trust.trusted_file().write_text("{")
    with pytest.raises(SmgError, match=r"trusted\.json: damaged"):
        trust.require("method", "mine.py:mine")


def test_nothing_of_a_folder_runs_in_a_process_of_its_own(desk: Path) -> None:
    """As typed, without anything that this process may have imported or allowed before."""
    received(desk, ATTACKS["yaml"])
    command = [sys.executable, "-m", "smg", "predict", "model", "A/Case00.nii.gz", "--out", "masks"]
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("smg: network yaml:unsafe_load: a model folder is data")
    assert not (desk / "ran").exists()
