"""Tensors that share memory are stored once, and come back under every name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from smg.errors import SmgError
from smg.files import safetensors_header
from smg.json_records import write_record
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.round import Stopped
from smg.learner.sealing import save_tensors
from smg.learner.shared_tensors import copied, stored_once, under_all_names
from smg.learner.store import Store
from smg.sites.site import Site
from tests.conftest import write_site
from tests.learner.streams import TINY


class Block(nn.Module):
    """As nnU-Net's: each layer has a name of its own, and a second one in the sequence that is run."""

    def __init__(self, incoming: int, outgoing: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(incoming, outgoing, 3, stride, padding=1)
        self.norm = nn.BatchNorm2d(outgoing)
        self.all_modules = nn.Sequential(self.conv, self.norm, nn.LeakyReLU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.all_modules(x)
        return out


class Decoder(nn.Module):
    """As nnU-Net's, which holds the encoder it belongs to."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Conv2d(4, classes, 1)


class PlainConvUNet(nn.Module):
    """nnU-Net's way of naming, in small: 60 names for 18 tensors."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"first": Block(in_channels, 4), "bottleneck": Block(4, 8, stride=2)})
        self.decoder = Decoder(self.encoder, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        deep = self.encoder["bottleneck"](self.encoder["first"](x))
        out: Tensor = self.decoder.head(self.decoder.up(deep))
        return out


def learner(folder: Path, **changes: Any) -> Learner:
    network = {"name": f"{__name__}:PlainConvUNet"}
    return Learner.create(folder, LearnerConfig.model_validate(TINY | {"network": network} | changes))


def distinct(tensors: dict[str, Tensor]) -> int:
    return len({t.data_ptr() for t in tensors.values()})


def test_a_round_stores_each_tensor_once_and_the_network_comes_back(tmp_path: Path) -> None:
    made = learner(tmp_path / "model")
    made.learn(Site.find(write_site(tmp_path / "A")))
    state = made.network().state_dict()
    stored = safetensors_header(made.store.round_folder(1) / "weights.safetensors")[0]
    assert len(stored) == distinct(state) == 18
    assert len(state) == 60
    again = Learner(tmp_path / "model").network().state_dict()
    assert list(again) == list(state)
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert distinct(again) == 18  # what is one tensor stays one: a step moves all its names
    assert made.learn(Site.find(write_site(tmp_path / "B", first_seed=10))).round == 2


@pytest.mark.parametrize("select", ["last", "best"])
def test_a_round_that_was_stopped_ends_with_the_same_weights(tmp_path: Path, select: str) -> None:
    site = Site.find(write_site(tmp_path / "A"))
    straight, stopped = (learner(tmp_path / name, select=select) for name in ("straight", "stopped"))
    straight.learn(site)

    def stop(iteration: int, _step: object) -> None:
        if iteration == 3:
            raise Stopped("enough")

    with pytest.raises(Stopped):
        stopped.learn(site, on_step=stop)
    (checkpoint,) = (tmp_path / "stopped" / "progress").iterdir()
    names = [name for name in safetensors_header(checkpoint)[0] if name.startswith("weights.")]
    assert len(names) == 18
    Learner(tmp_path / "stopped").learn(site)
    files = [tmp_path / name / "rounds" / "001" / "weights.safetensors" for name in ("straight", "stopped")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_file_in_which_nothing_is_shared_is_as_it_always_was(tmp_path: Path) -> None:
    theta = torch.arange(12.0)
    tensors = {"a": theta[:6].view(2, 3), "b": theta[6:], "empty": torch.zeros(0), "none": torch.zeros(0)}
    save_tensors(tmp_path / "file", tensors)
    assert (tmp_path / "file").read_bytes() == save(tensors)


def test_only_the_same_numbers_are_one_tensor() -> None:
    theta = torch.arange(12.0)
    tensors = {"whole": theta, "again": theta, "part": theta[:6], "shaped": theta.view(3, 4), "other": theta.clone()}
    once, others = stored_once(tensors)
    assert (list(once), others) == (["whole", "part", "shaped", "other"], {"again": "whole"})
    made = copied(tensors)
    assert made["whole"] is made["again"]
    assert all(torch.equal(made[name], tensors[name]) for name in tensors)
    theta += 1
    assert made["whole"][0] == 0


def test_a_name_that_leads_nowhere_is_an_error_of_one_line(tmp_path: Path) -> None:
    assert under_all_names({"a": torch.ones(1)}, None).keys() == {"a"}
    for shared in ('{"b": "c"}', '{"a": "a"}', "[]", "{"):
        with pytest.raises(ValueError):
            under_all_names({"a": torch.ones(1)}, {"shared": shared})
    made = learner(tmp_path / "model")
    made.learn(Site.find(write_site(tmp_path / "A")))
    path = made.store.round_folder(1) / "weights.safetensors"
    tensors = load_file(path)
    path.write_bytes(save(tensors, {"shared": '{"x": "y"}'}))
    record = made.store.read_round(1)
    files = record.files | {"weights.safetensors": hashlib.sha256(path.read_bytes()).hexdigest()}
    write_record(made.store.round_folder(1) / "round.json", record.model_copy(update={"files": files}))
    made.store.adopt()
    with pytest.raises(SmgError, match=r"weights.safetensors: damaged \(names of shared tensors"):
        Store(tmp_path / "model").read_tensors(1, "weights")
