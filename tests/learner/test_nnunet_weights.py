"""A model that starts from nnU-Net's: what is read, what is refused, and that a round goes on from it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from smg.errors import SmgError
from smg.learner.learner import Learner
from smg.learner.origin import read_origin
from smg.prepare.prepare_options import Preparation
from tests.cli.commands import smg
from tests.conftest import write_site
from tests.nnunet_folders import plans, write_nnunet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_nnunet(tmp_path / "trained")
    return tmp_path / "trained"


def test_weights_settings_and_the_files_hash_are_taken(tmp_path: Path) -> None:
    network = write_nnunet(tmp_path / "trained")
    origin = read_origin(f"nnunet:{tmp_path / 'trained'}")
    assert origin.weights.keys() == network.state_dict().keys()
    assert all(torch.equal(tensor, origin.weights[name]) for name, tensor in network.state_dict().items())
    made = Preparation.model_validate(origin.settings["preparation"])
    assert (made.shape, made.pixel) == ((16, 32), (1.0, 1.25))
    assert made.labels.classes == {"prostate": (1,)}
    assert made.nnunet is not None
    assert [one.scheme for one in made.nnunet.normalise] == ["ZScore"]
    checkpoint = tmp_path / "trained" / "fold_0" / "checkpoint_final.pth"
    assert origin.about.model_dump() == {
        "kind": "nnunet",
        "name": "trained",
        "dataset": "Dataset042_Prostate",
        "configuration": "2d",
        "fold": "0",
        "trainer": "nnUNetTrainer",
        "sha256": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
    }


def test_round_0_predicts_and_a_round_goes_on_from_it(folder: Path, tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 4)
    model = tmp_path / "model"
    made = smg("learn", str(model), "--from", f"nnunet:{folder}", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "round 0, from nnU-Net's Dataset042_Prostate/trained (sha256 " in made.stdout
    predicted = smg("predict", str(model), "HK/Case00.nii.gz", "--out", "masks", cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    learned = smg("learn", str(model), "HK", "--iterations", "2", "--set", "batch=2", cwd=tmp_path)
    assert learned.returncode == 0, learned.stderr
    history = smg("history", str(model), cwd=tmp_path)
    assert "round 0: started from nnU-Net's Dataset042_Prostate/trained (sha256 " in history.stdout
    before, after = (Learner(model).network(number).state_dict() for number in (0, 1))
    assert not torch.equal(before["network.encoder.stages.0.0.convs.0.conv.weight"],
                           after["network.encoder.stages.0.0.convs.0.conv.weight"])  # fmt: skip
    assert smg("rollback", str(model), "0", cwd=tmp_path).returncode == 0


def test_a_model_is_never_made_without_a_site_or_weights(folder: Path, tmp_path: Path) -> None:
    assert smg("learn", "model", cwd=tmp_path).returncode == 2
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "note").write_text("x")
    there = smg("learn", "model", "--from", f"nnunet:{folder}", cwd=tmp_path)
    assert (there.returncode, "give a new folder" in there.stderr) == (1, True)


def test_the_plans_of_older_versions_are_read(tmp_path: Path) -> None:
    old = plans(
        UNet_class_name="PlainConvUNet", UNet_base_num_features=4, unet_max_num_features=8,
        n_conv_per_stage_encoder=[2, 2], n_conv_per_stage_decoder=[2], conv_kernel_sizes=[[3, 3], [3, 3]],
        pool_op_kernel_sizes=[[1, 1], [2, 2]], num_pool_per_axis=[1, 1],
    )  # fmt: skip
    del old["configurations"]["2d"]["architecture"]
    write_nnunet(tmp_path / "old", old)
    origin = read_origin(f"nnunet:{tmp_path / 'old'}")
    Learner.create(tmp_path / "model", origin=origin, **origin.settings)


def test_a_configuration_has_what_it_inherits(tmp_path: Path) -> None:
    planned = plans()
    planned["configurations"]["2d_small"] = {"inherits_from": "2d", "patch_size": [16, 16]}
    write_nnunet(tmp_path / "small", planned, init_args={"configuration": "2d_small"})
    origin = read_origin(f"nnunet:{tmp_path / 'small'}")
    assert (origin.settings["preparation"]["size"], origin.about.configuration) == (16, "2d_small")


def test_a_ct_is_normalised_by_the_training_datas_intensities(tmp_path: Path) -> None:
    write_nnunet(tmp_path / "ct", plans(normalization_schemes=["CTNormalization"]))
    (scheme,) = read_origin(f"nnunet:{tmp_path / 'ct'}").settings["preparation"]["nnunet"]["normalise"]
    assert scheme == {"scheme": "CT", "masked": False, "mean": 90.0, "deviation": 20.0, "low": 10.0, "high": 200.0}


def test_of_several_folds_one_is_named(folder: Path, tmp_path: Path) -> None:
    write_nnunet(tmp_path / "other", fold="all")
    os.rename(tmp_path / "other" / "fold_all", folder / "fold_all")
    with pytest.raises(SmgError, match=r"has folds 0, all; name one, as nnunet:.*:0"):
        read_origin(f"nnunet:{folder}")
    assert read_origin(f"nnunet:{folder}:all").about.fold == "all"
    with pytest.raises(SmgError, match=r"fold_3/checkpoint_final\.pth: not there"):
        read_origin(f"nnunet:{folder}:3")
    with pytest.raises(SmgError, match="'best' is no fold"):
        read_origin(f"nnunet:{folder}:best")


def _architecture(**changes: Any) -> dict[str, Any]:
    made = plans()["configurations"]["2d"]["architecture"]
    return {"architecture": made | {"arch_kwargs": made["arch_kwargs"] | changes}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"patch_size": [16, 16, 16]}, "3-D patches"),
        ({"architecture": {"network_class_name": "x.ResidualEncoderUNet"}}, "its network is ResidualEncoderUNet"),
        (_architecture(norm_op="torch.nn.BatchNorm2d"), "norm_op BatchNorm2d"),
        (_architecture(nonlin="torch.nn.ReLU"), "nonlin ReLU"),
        (_architecture(dropout_op="torch.nn.Dropout2d"), "dropout_op Dropout2d"),
        (_architecture(nonlin_first=True), "another norm"),
        ({"normalization_schemes": ["RGBTo01Normalization"]}, "normalises by RGBTo01Normalization"),
        ({"preprocessor_name": "MyPreprocessor"}, "preprocessor_name is MyPreprocessor"),
        ({"resampling_fn_data": "resample_torch_fornnunet"}, "resampling_fn_data is resample_torch_fornnunet"),
        ({"patch_size": None}, "not plans of nnU-Net v2"),
    ],
)
def test_other_plans_are_refused_in_one_line(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_nnunet(tmp_path / "other", plans(**changes))
    with pytest.raises(SmgError, match=reason) as refused:
        read_origin(f"nnunet:{tmp_path / 'other'}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"background": 0, "prostate": 1, "ignore": 2}, "`ignore`"),
        ({"background": 0, "whole": [1, 2], "zone": 2}, "regions"),
        ({"background": 0, "prostate": 3}, "count from 1"),
    ],
)
def test_other_labels_are_refused(labels: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_nnunet(tmp_path / "other", labels=labels)
    with pytest.raises(SmgError, match=reason):
        read_origin(f"nnunet:{tmp_path / 'other'}")


class _Program:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("run",)


def test_a_checkpoint_that_is_a_program_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_nnunet(tmp_path / "evil", logging=_Program())
    with pytest.raises(SmgError, match=r"it asks for \w+\.mkdir, and weights need no program"):
        read_origin(f"nnunet:{tmp_path / 'evil'}")
    assert not (tmp_path / "run").exists()


def test_damaged_files_are_named(folder: Path, tmp_path: Path) -> None:
    checkpoint = folder / "fold_0" / "checkpoint_final.pth"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SmgError, match=r"checkpoint_final\.pth: "):
        read_origin(f"nnunet:{folder}")
    checkpoint.write_bytes(whole)
    (folder / "plans.json").write_text("{")
    with pytest.raises(SmgError, match=r"plans\.json: not JSON"):
        read_origin(f"nnunet:{folder}")
    with pytest.raises(SmgError, match="no such folder"):
        read_origin(f"nnunet:{tmp_path / 'nowhere'}")


def test_two_versions_of_a_weight_are_refused(folder: Path) -> None:
    checkpoint = folder / "fold_0" / "checkpoint_final.pth"
    read = torch.load(checkpoint, weights_only=False)
    name = "decoder.encoder.stages.0.0.convs.0.conv.weight"
    read["network_weights"][name] = read["network_weights"][name] + 1
    torch.save(read, checkpoint)
    with pytest.raises(SmgError, match=r"two versions of encoder\.stages\.0\.0\.convs\.0\.conv\.weight"):
        read_origin(f"nnunet:{folder}")


def test_weights_of_another_network_do_not_fit(folder: Path, tmp_path: Path) -> None:
    planned = json.loads((folder / "plans.json").read_text())
    planned["configurations"]["2d"]["architecture"]["arch_kwargs"]["features_per_stage"] = [4, 16]
    (folder / "plans.json").write_text(json.dumps(planned))
    result = smg("learn", "model", "--from", f"nnunet:{folder}", cwd=tmp_path)
    assert result.returncode == 1
    assert "does not fit the network" in result.stderr
    assert not (tmp_path / "model").exists()
