"""A model as nnU-Net's results folder: what is in it, and which models cannot be said in plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from smg.learner.nnunet_weights import ALLOWED
from smg.learner.origin import read_origin
from tests.cli.commands import smg
from tests.conftest import write_site
from tests.nnunet_folders import plans, state_of, write_nnunet

PLACE = "Dataset042_Prostate/nnUNetTrainer__nnUNetPlans__2d"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    write_site(tmp_path / "HK", 4)
    return tmp_path


def test_weights_and_plans_come_back_as_nnunet_wrote_them(desk: Path) -> None:
    network = write_nnunet(desk / "trained")
    assert smg("learn", "model", "--from", "nnunet:trained", cwd=desk).returncode == 0
    exported = smg("export", "model", "--as", "nnunet", "--out", "results", cwd=desk)
    assert exported.returncode == 0, exported.stderr
    checkpoint = f"{PLACE}/fold_0/checkpoint_final.pth"
    files = (checkpoint, f"{PLACE}/dataset.json", f"{PLACE}/plans.json", "README.md")
    assert sorted(exported.stdout.split()) == sorted(f"results/{name}" for name in files)
    with torch.serialization.safe_globals(ALLOWED):
        stored = torch.load(desk / "results" / checkpoint, weights_only=True)
    wanted = state_of(network)
    assert stored["network_weights"].keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in stored["network_weights"].items())
    places = {tensor.data_ptr() for tensor in stored["network_weights"].values()}
    assert len(places) == len(network.state_dict())  # each stored once
    written, given = json.loads((desk / "results" / PLACE / "plans.json").read_text()), plans()
    assert written["transpose_backward"] == given["transpose_backward"]
    for key, value in given["configurations"]["2d"].items():
        if key not in ("architecture", "batch_size"):
            assert written["configurations"]["2d"][key] == value, key
    network_of = given["configurations"]["2d"]["architecture"]["arch_kwargs"] | {
        "nonlin_kwargs": {"negative_slope": 0.01, "inplace": True}
    }
    assert written["configurations"]["2d"]["architecture"]["arch_kwargs"] == network_of
    described = json.loads((desk / "results" / PLACE / "dataset.json").read_text())
    assert described["labels"] == {"background": 0, "prostate": 1}
    again = read_origin(f"nnunet:{desk / 'results' / PLACE}")
    assert again.settings == read_origin(f"nnunet:{desk / 'trained'}").settings
    assert "sha256" in (desk / "results/README.md").read_text()


def test_an_export_holds_nothing_of_a_patient(desk: Path) -> None:
    write_nnunet(desk / "trained")
    learned = smg("learn", "model", "HK", "--from", "nnunet:trained", "--iterations", "2", cwd=desk)
    assert learned.returncode == 0, learned.stderr
    assert smg("export", "model", "--as", "nnunet", "--out", "results", cwd=desk).returncode == 0
    with torch.serialization.safe_globals(ALLOWED):
        stored = torch.load(desk / "results" / PLACE / "fold_0/checkpoint_final.pth", weights_only=True)
    assert {name for name, value in stored.items() if value} == {"network_weights", "init_args", "trainer_name"}
    assert stored["init_args"].keys() == {"plans", "configuration", "fold"}
    for path in (desk / "results").rglob("*"):
        assert path.is_dir() or b"Case0" not in path.read_bytes()


SMALL = [word for one in ("iterations=2", "batch=2", "preparation.size=16") for word in ("--set", one)]
NARROW = ("--set", "network.width=4", "--set", "network.depth=1")
PLAIN = ("--set", "network={name: PlainConvUNet, arguments: {features_per_stage: [4, 8]}}")


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        ((), "nnunet", "nnU-Net's plans need a spacing"),
        (("--set", "preparation.spacing=2"), "nnunet", "max pooling"),
        (("--set", "preparation.spacing=2", *PLAIN), "nnunet", "as they are stored"),
        (PLAIN, "torch", "its script has no network PlainConvUNet; --as onnx"),
        (("--set", "preparation.spacing=[2, 1]"), "torch", "square windows and one spacing"),
    ],
)
def test_what_an_export_cannot_say_is_refused(words: tuple[str, ...], kind: str, reason: str, desk: Path) -> None:
    learned = smg("learn", "model", "HK", *SMALL, *(() if PLAIN[1] in words else NARROW), *words, cwd=desk)
    assert learned.returncode == 0, learned.stderr
    refused = smg("export", "model", "--as", kind, "--out", "out", cwd=desk)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert reason in refused.stderr


def test_nnunets_preparation_goes_out_to_nnunet_alone(desk: Path) -> None:
    write_nnunet(desk / "trained")
    assert smg("learn", "model", "--from", "nnunet:trained", cwd=desk).returncode == 0
    refused = smg("export", "model", "--as", "onnx", "--out", "out", cwd=desk)
    assert "--as nnunet can" in refused.stderr
