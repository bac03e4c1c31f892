"""Style memory in a model: stored with the round, used by later ones, dropped with the site, never exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from smg.errors import SmgError
from smg.learner.admission import split_as_before
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.records import Kept
from smg.prepare.prepared_site import prepare_site
from smg.prepare.styles import amplitudes
from smg.sites.site import Site
from tests.cli.commands import smg as command
from tests.learner.streams import TINY, tiny_stream, write_sites

STYLE = {"memory": "style", "style": {"cutoff": 3}}


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(TINY | {"method": "finetune"} | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned A and B with a style memory."""
    return taught(tmp_path_factory.mktemp("models") / "style", data, **STYLE).store.folder


def taught(folder: Path, data: Path, **changes: Any) -> Learner:
    learner = Learner.create(folder, config(**changes))
    for site in "AB":
        learner.learn(Site.find(data, site))
    return learner


def test_a_round_stores_the_amplitudes_of_its_training_slices_and_no_image(made: Path, data: Path) -> None:
    learner = Learner(made)
    cases = split_as_before(learner.history, Site.find(data, "A"), learner.config, 1)["train"]
    prepared = [p for p in prepare_site(Site.find(data, "A"), learner.config.preparation) if p.subject.case in cases]
    slices = torch.cat([p.images for p in prepared])
    stored = learner.spectra()["A"].amplitudes
    assert stored.shape == (len(slices), 1, 7, 4)
    ours = amplitudes(slices, 3)
    distance = torch.cdist(stored.flatten(1), ours.flatten(1)).min(dim=1)
    torch.testing.assert_close(distance.values, torch.zeros(len(slices)), rtol=0, atol=1e-5)
    assert sorted(distance.indices.tolist()) == list(range(len(slices)))
    assert distance.indices.tolist() != list(range(len(slices)))  # not in the order of the scans
    assert (stored[1:, 0, 3, 0] >= stored[:-1, 0, 3, 0]).all()
    files = learner.store.files_of(1)
    assert set(files) == {f"{name}.safetensors" for name in ("weights", "exemplars", "sentinels", "spectra")}
    assert load_file(learner.store.round_folder(1) / "exemplars.safetensors") == {}


def test_only_later_rounds_differ_and_without_the_memory_nothing_does(made: Path, data: Path, tmp_path: Path) -> None:
    plain = taught(tmp_path / "plain", data)
    learner = Learner(made)
    first, second = ([one.store.files_of(n)["weights.safetensors"] for n in (1, 2)] for one in (learner, plain))
    assert first[0] == second[0]
    assert first[1] != second[1]
    never = taught(tmp_path / "never", data, memory="style", style={"cutoff": 3, "probability": 0})
    assert never.store.files_of(2)["weights.safetensors"] == second[1]


@pytest.mark.parametrize("option", [{"cutoff": 2}, {"share": 0.5}, {"probability": 1.0}, {"slices": 4}])
def test_every_option_matters(option: dict[str, Any], made: Path, data: Path, tmp_path: Path) -> None:
    other = taught(tmp_path / "model", data, memory="style", style={"cutoff": 3} | option)
    files = [one.store.files_of(2)["weights.safetensors"] for one in (Learner(made), other)]
    assert files[0] != files[1]
    if "slices" in option:
        assert len(other.spectra()["A"].amplitudes) == 4
    if "cutoff" in option:
        assert other.spectra()["A"].amplitudes.shape[-2:] == (5, 3)


def test_a_lower_cutoff_reads_what_a_higher_one_kept(made: Path, data: Path, tmp_path: Path) -> None:
    def third(folder: Path, cutoff: int) -> str:
        learner = Learner(folder, config(memory="style", style={"cutoff": cutoff}))
        return str(learner.learn(Site.find(data, "C")).files["weights.safetensors"])

    lower = taught(tmp_path / "lower", data, memory="style", style={"cutoff": 2})
    lower.rollback(1)
    copied = Learner(shutil.copytree(made, tmp_path / "copy"))
    copied.rollback(1)
    assert third(tmp_path / "copy", 2) == third(tmp_path / "lower", 2)


def test_spectra_belong_to_the_version(made: Path, data: Path, tmp_path: Path) -> None:
    learner = Learner(shutil.copytree(made, tmp_path / "model"))
    assert list(learner.spectra()) == ["A", "B"]
    learner.rollback(1)
    assert list(learner.spectra()) == ["A"]
    learner.rollback(2)
    straight = Learner(shutil.copytree(made, tmp_path / "straight")).learn(Site.find(data, "C"))
    assert learner.learn(Site.find(data, "C")).files == straight.files


def test_spectra_that_were_altered_are_refused(made: Path, data: Path, tmp_path: Path) -> None:
    learner = Learner(shutil.copytree(made, tmp_path / "model"))
    path = learner.store.round_folder(1) / "spectra.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(SmgError, match=r"spectra\.safetensors: cut short or altered since it was written"):
        learner.learn(Site.find(data, "C"))


def test_they_are_shown_counted_and_dropped_with_the_site(made: Path, data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "model")
    learner = Learner(folder)
    slices = len(learner.spectra()["A"].amplitudes)
    shown = json.loads(command("replay", "show", str(folder), "--json").stdout)
    assert [(row["subjects"], row["spectra"], row["bytes"]) for row in shown] == [(0, slices, 4 * 28 * slices)] * 2
    assert f"round 1: spectra of {slices} slices" in command("replay", "show", str(folder)).stdout
    assert learner.store.read_round(2).kept["A"] == Kept(subjects=0, spectra=slices, bytes=4 * 28 * slices)
    assert "its spectra removed" in " ".join(command("replay", "drop", str(folder), "A", "--yes").stdout.split())
    assert list(Learner(folder).spectra()) == ["B"]
    assert json.loads(command("replay", "show", str(folder), "--json").stdout)[0]["bytes"] == 0
    Learner(folder).drop("B")
    said: list[str] = []
    Learner(folder).learn(Site.find(data, "C"), unguarded=True, say=said.append)
    assert any(line.startswith("style memory: no spectra of an earlier site are kept") for line in said)


def test_a_run_counts_them_in_its_replay_burden(data: Path, tmp_path: Path) -> None:
    costs = tiny_stream(data, method="finetune", iterations=2, **STYLE).run(tmp_path / "run").costs
    learner = Learner(tmp_path / "run" / "model")
    assert costs.replay_subjects == 0
    assert costs.replay_bytes == sum(row.kept.bytes for row in learner.stored()[:2]) > 0


def test_no_export_holds_them(made: Path, tmp_path: Path) -> None:
    for form in ("torch", "monai-bundle"):
        assert command("export", str(made), "--as", form, "--out", str(tmp_path / form)).returncode == 0
    whole = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    stored = Learner(made).spectra()
    assert b"spectra" not in whole
    for one in stored.values():
        assert one.amplitudes[0].numpy().tobytes()[:32] not in whole


def test_windows_of_another_size_are_not_lent(made: Path, data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "model")
    learner = Learner(folder, config(preparation={"size": 32}, **STYLE), other_preparation=True)
    with pytest.raises(SmgError, match=r"spectra of A are of windows of 16 pixels, not 32 pixels; keep preparation"):
        learner.learn(Site.find(data, "C"), unguarded=True)


def test_a_round_under_way_is_not_gone_on_with_when_spectra_were_dropped(
    made: Path, data: Path, tmp_path: Path
) -> None:
    learner = Learner(shutil.copytree(made, tmp_path / "model"))

    def stop(iteration: int, step: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(Site.find(data, "C"), checkpoint_seconds=0, on_step=stop)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(Site.find(data, "C"), checkpoint_seconds=0, on_step=lambda i, s: stop(i, s) if i == 2 else None)
    learner.drop("A")
    with pytest.raises(SmgError, match="with other spectra; go on with it as it was begun"):
        learner.learn(Site.find(data, "C"))


def test_a_network_for_every_site_has_no_styles(data: Path, tmp_path: Path) -> None:
    folders = [taught(tmp_path / name, data, method="per-site", memory=name).store for name in ("none", "style")]
    assert folders[0].read_round(2).files == folders[1].read_round(2).files


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory": "style", "style": {"cutoff": 8}}, "windows of 16 pixels have frequencies up to 7"),
        ({"memory": "spectra"}, "memory"),
    ],
)
def test_settings_that_cannot_be_meant(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(**wrong)
