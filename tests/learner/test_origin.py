"""A model that starts from weights of elsewhere: what fits, what does not, and what is written down of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from smg import trust
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.origin import read_origin
from smg.networks import NetworkConfig, build_network
from smg.sites.site import Site
from smg.sites.volume import read_volume
from tests.cli.commands import TINY as TINY_WORDS
from tests.cli.commands import smg
from tests.conftest import write_site
from tests.learner.streams import TINY
from tests.learner.test_shared_tensors import PlainConvUNet

CONFIG = LearnerConfig.model_validate(TINY)
UNET = CONFIG.network


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Of another seed than the models of these tests."""
    save_file(build_network(UNET, seed=7).state_dict(), tmp_path / "given.safetensors")
    return tmp_path / "given.safetensors"


def test_the_first_weights_are_those_of_the_file_and_a_round_goes_on_from_them(weights: Path, tmp_path: Path) -> None:
    made = Learner.create(tmp_path / "model", CONFIG, read_origin(weights))
    expected = build_network(UNET, seed=7).state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in made.network().state_dict().items())
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    weights.unlink()  # what it needs is in the model
    about = {"kind": "file", "name": "given.safetensors", "sha256": sha256}
    assert json.loads((tmp_path / "model" / "model.json").read_text())["origin"] == about
    site = Site.find(write_site(tmp_path / "A"))
    again = Learner(tmp_path / "model")
    again.learn(site)
    other = Learner.create(tmp_path / "other", CONFIG)
    other.learn(site)
    assert not torch.equal(again.network().head.weight, other.network().head.weight)  # type: ignore[arg-type,union-attr]
    again.rollback(0)
    assert all(torch.equal(t, expected[name]) for name, t in again.network().state_dict().items())
    scan = read_volume(tmp_path / "A" / "Case00.nii.gz")
    predicted = again.predict(scan)  # weights that were given are worth asking
    assert predicted.mask.array.shape == scan.array.shape
    assert (predicted.distances, predicted.unlike) == ({}, None)
    with pytest.raises(SmgError, match="has learned nothing yet"):
        Learner.create(tmp_path / "fresh", CONFIG).predict(scan)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("head.bias"), r"it has no head.bias \[2\], which the network has"),
        (lambda w: w.update({"head.bias": torch.ones(3)}), r"head.bias is \[3\], where the network has \[2\]"),
        (lambda w: w.update({"tail": torch.ones(3)}), "it has tail, which the network does not have"),
        (lambda w: w.update({"head.bias": torch.ones(2).int()}), r"head.bias is torch.int32, where .* torch.float32"),
        (lambda w: w.update({"head.bias": torch.tensor([1.0, np.nan])}), "head.bias holds a number that is not finite"),
    ],
)  # fmt: skip
def test_the_first_name_that_does_not_fit_is_named(change, sentence: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tensors = build_network(UNET).state_dict()
    change(tensors)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(SmgError, match=rf"w.safetensors: .*{sentence}"):
        Learner.create(tmp_path / "model", CONFIG, read_origin(tmp_path / "w.safetensors"))
    assert not (tmp_path / "model").exists()


def test_a_file_may_hold_half_precision_and_a_shared_tensor_under_any_one_of_its_names(tmp_path: Path) -> None:
    config = NetworkConfig(name="tests.learner.test_shared_tensors:PlainConvUNet")
    trust.allow(config.name)
    inner = PlainConvUNet(1, 2).state_dict()  # as its own program stores it: without our name before it
    other_names = {name: t for name, t in inner.items() if name.startswith("decoder")}  # not those we store under
    halved = {name: t.half() if t.is_floating_point() else t.clone() for name, t in other_names.items()}
    save_file(halved, tmp_path / "w.safetensors")
    state = read_origin(tmp_path / "w.safetensors").fitted(build_network(config))
    assert len(state) == 60
    for name, tensor in state.items():
        expected = inner[name.removeprefix("network.")]
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected.half().to(expected.dtype) if expected.is_floating_point() else expected)


def test_what_is_no_file_of_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not weights at all")
    (tmp_path / "model.pt").write_bytes(b"pickled")
    Learner.create(tmp_path / "fresh", CONFIG)
    for name, sentence in (
        ("bad.safetensors", "no safetensors file, or a damaged one"),
        ("none.safetensors", "No such file"),
        ("model.pt", "weights are read from a .safetensors file or a model's folder"),
        ("fresh", "has learned nothing yet"),
    ):
        with pytest.raises(SmgError, match=sentence):
            read_origin(tmp_path / name)


def test_a_model_from_another_model_as_it_is_typed(tmp_path: Path) -> None:
    for place, name in enumerate("AB"):
        write_site(tmp_path / name, first_seed=10 * place)
    assert smg("learn", "old", "A", *TINY_WORDS, "--set", "seed=3", cwd=tmp_path).returncode == 0
    line = ("learn", "new", "B", "--from", "old")
    result = smg(*line, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    old, new = Learner(tmp_path / "old"), Learner(tmp_path / "new")
    assert new.config == old.config  # the other model's settings, and no plan
    assert new.sites == ["B"]
    assert torch.equal(new.network(0).head.weight, old.network(1).head.weight)  # type: ignore[arg-type,union-attr]
    sha256 = old.store.files_of(1)["weights.safetensors"]
    assert new.store.files_of(0)["weights.safetensors"] == sha256
    shown = smg("history", "new", cwd=tmp_path).stdout
    assert f"round 0: started from the model old (sha256 {sha256[:16]}), round 1, which had learned A" in shown
    asked = json.loads(smg("history", "new", "--json", cwd=tmp_path).stdout)
    assert asked["origin"] == {"kind": "model", "name": "old", "round": 1, "sites": ["A"], "sha256": sha256}
    assert smg(*line, "--again", cwd=tmp_path).returncode in (0, 3)  # the same line goes on with the same model
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "model.safetensors").write_bytes(
        (new.store.round_folder(1) / "weights.safetensors").read_bytes()
    )
    other = smg("learn", "new", "A", "--from", "more/model.safetensors", cwd=tmp_path)
    assert other.returncode == 1
    assert "new: --from more/model.safetensors is for a new model" in other.stderr
    misfit = smg("learn", "third", "B", "--from", "old", "--set", "network.width=5", cwd=tmp_path)
    assert misfit.returncode == 1
    assert "old: does not fit the network: encoder.0.0.weight is [4, 1, 3, 3], where the network has [5, 1, 3, 3]" in (
        misfit.stderr
    )
    assert not (tmp_path / "third").exists()


def test_a_model_whose_making_was_killed_is_made_again(weights: Path, tmp_path: Path) -> None:
    write_site(tmp_path / "A")
    words = ("learn", "model", "A", "--from", weights.name, *TINY_WORDS)
    assert smg(*words, cwd=tmp_path).returncode == 0
    (tmp_path / "model" / "rounds" / "001").rename(tmp_path / "aside")
    for name in ("model.json", "journal.jsonl"):  # as if killed before they were written
        (tmp_path / "model" / name).unlink()
    assert smg(*words, cwd=tmp_path).returncode == 0
    (tmp_path / "model" / "model.json").unlink()  # whereas a model that lost it is not written over
    lost = smg(*words, cwd=tmp_path)
    assert (lost.returncode, "exists and is not a model" in lost.stderr) == (1, True)
