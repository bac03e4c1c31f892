"""The comparison with nnU-Net, but for nnU-Net: data, plan, budget and scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from experiments import nnunet
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.planning.machine import Cost
from smg.report.runs import Run
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites
from smg.sites.volume import Volume, read_volume, write_volume
from tests.learner.streams import tiny_stream, write_sites


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    tiny_stream(data).run(folder)
    return nnunet.the_run(folder)


def plans(side: int, stages: int, batch: int = 88) -> dict[str, Any]:
    """As nnU-Net's planner writes them, as far as the 2d network is concerned."""
    network = {
        "n_stages": stages,
        "features_per_stage": [min(512, 32 * 2**stage) for stage in range(stages)],
        "kernel_sizes": [[3, 3]] * stages,
        "strides": [[1, 1]] + [[2, 2]] * (stages - 1),
        "n_conv_per_stage": [2] * stages,
        "n_conv_per_stage_decoder": [2] * (stages - 1),
    }
    planned = {"patch_size": [side, side], "batch_size": batch, "spacing": [1.0, 1.0417]}
    return {"configurations": {"2d": planned | {"architecture": {"arch_kwargs": network}}}}


def test_the_dataset_holds_every_scan_with_the_indices_of_its_classes(data: Path, tmp_path: Path) -> None:
    subject = find_sites(data)["B"].subjects[0]
    image, mask = read_volume(subject.image), read_volume(subject.mask)
    zones = mask.array.astype(np.uint8) * 3
    zones[..., : zones.shape[-1] // 2] *= 2  # 3 on one side, 6 on the other
    write_volume(tmp_path / "zones.nii.gz", Volume(zones, mask.affine))
    labels = Labels.model_validate({"inner": [6], "outer": [3]})
    nnunet.write_dataset(tmp_path / "raw", [replace(subject, mask=tmp_path / "zones.nii.gz")], labels)

    name = f"B_{subject.case}"
    scan = nibabel.load(tmp_path / "raw/imagesTr" / f"{name}_0000.nii.gz")
    drawn = nibabel.load(tmp_path / "raw/labelsTr" / f"{name}.nii.gz")
    assert np.array_equal(np.asarray(scan.dataobj).T, image.array)
    assert np.array_equal(np.asarray(drawn.dataobj).T, np.select([zones == 3, zones == 6], [1, 2]))
    assert np.allclose(np.diag([-1, -1, 1, 1]) @ scan.affine, image.affine, atol=1e-5)
    assert np.allclose(scan.affine, drawn.affine)
    assert json.loads((tmp_path / "raw/dataset.json").read_text()) == {
        "channel_names": {"0": "MRI"},
        "labels": {"background": 0, "outer": 1, "inner": 2},
        "numTraining": 1,
        "file_ending": ".nii.gz",
    }


@pytest.mark.parametrize(
    ("planned", "patch", "said"),
    [
        (plans(192, 6), 128, "patch 128 x 128 at 1.00 x 1.04 mm, batch 8, 16 to 256 features in 6 stages"),
        (plans(512, 8), 128, "patch 128 x 128 at 1.00 x 1.04 mm, batch 8, 16 to 256 features in 6 stages"),
        (plans(192, 6), 96, "patch 96 x 96 at 1.00 x 1.04 mm, batch 8, 16 to 256 features in 5 stages"),
        (plans(64, 5, batch=4), 128, "patch 64 x 64 at 1.00 x 1.04 mm, batch 4, 16 to 256 features in 5 stages"),
    ],
)
def test_a_smaller_plan_is_one_that_a_network_can_be_built_of(planned: dict[str, Any], patch: int, said: str) -> None:
    before = json.dumps(planned)
    small = nnunet.smaller(planned, patch=patch, batch=8, features=16)
    assert nnunet.in_words(small) == said
    network = small["configurations"]["2d"]["architecture"]["arch_kwargs"]
    lengths = {name: len(values) for name, values in network.items() if name != "n_stages"}
    stages = network["n_stages"]
    assert lengths.pop("n_conv_per_stage_decoder") == stages - 1
    assert set(lengths.values()) == {stages}
    assert json.dumps(planned) == before


def test_the_budget_is_the_time_of_the_streams_iterations_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []
    monkeypatch.setattr(nnunet, "cost_of", lambda config, side, clock: sides.append(side) or Cost(0.5, 1000))
    config = LearnerConfig.model_validate(run.results.config.tree())
    assert nnunet.seconds_of_stream(run) == pytest.approx(len(run.order) * config.iterations * 0.5)
    assert sides == [max(config.preparation.shape)]


@pytest.mark.parametrize(
    ("fast", "features"), [(32, 32), (16, 16), (8, 8), (0, 8)]
)  # the widest network that takes enough steps
def test_the_largest_plan_that_takes_enough_steps(monkeypatch: pytest.MonkeyPatch, fast: int, features: int) -> None:
    def width(plan: dict[str, Any]) -> int:
        return plan["configurations"]["2d"]["architecture"]["arch_kwargs"]["features_per_stage"][0]

    monkeypatch.setattr(nnunet, "seconds_a_step", lambda plan: 0.1 if width(plan) <= fast else 10.0)
    chosen, why = nnunet.choose(plans(192, 6), 0.1 * nnunet.ENOUGH, None)
    assert width(chosen) == features
    assert ("a smaller one" in why) == (features < 32)
    assert width(nnunet.choose(plans(192, 6), 1.0, "own")[0]) == 32


def test_our_own_rows_score_what_the_run_says(run: Run, tmp_path: Path) -> None:
    rows = nnunet.last_rows(run)
    scores = nnunet.score(run, rows)
    for metric in ("dsc", "asd"):
        for measure in ("BM", "FM"):
            assert scores[metric][measure] == pytest.approx(run.measure(metric, measure)), (metric, measure)
    assert any(line.startswith("| ours |") for line in nnunet.table({"ours": scores}))


def test_the_page_keeps_one_table_for_each_stream_and_budget(run: Run, tmp_path: Path) -> None:
    scores = {"ours, jm": nnunet.score(run, nnunet.last_rows(run))}
    figures = {"nnunet": "2.8.1", "plan": "", "why": "Its plan\nA smaller one", "seconds": 10.0, "steps": 20}
    figures |= {"stream": "A B | C", "seed": 0, "trained on": 4, "scores": scores}
    page = tmp_path / "nnunet.md"
    for changes in ({}, {"seconds": 40.0}, {"steps": 30}, {"stream": "B A | C"}):
        nnunet.write_page(page, figures | changes)
    text = page.read_text()
    assert [line[:13] for line in text.splitlines() if line.startswith("**")] == ["**A B | C**, "] * 2 + [
        "**B A | C**, "
    ]
    assert "30 steps, 0.33 s a step" in text  # the later of two with the same budget
    assert json.loads(page.with_suffix(".json").read_text())[1]["seconds"] == 40
    assert f"{100 * scores['ours, jm']['dsc']['BM']:.1f}" in text


class Draws:
    """Stands where nnU-Net would, and draws what it is given for each scan."""

    def __init__(self, masks: Callable[[Volume], np.ndarray]) -> None:
        self.masks = masks

    def predictor(self, mirroring: bool) -> Callable[[Volume], np.ndarray]:
        return self.masks


def test_masks_are_measured_on_the_scans_own_grid_with_our_largest_component(run: Run, data: Path) -> None:
    config = LearnerConfig.model_validate(run.results.config.tree())
    subject = find_sites(data)["A"].subjects[0]
    truth = read_volume(subject.mask).array.astype(np.uint8)
    speck = truth.copy()
    speck[0, 0, 0] = 1
    assert not truth[:2, :2, :2].any()

    def measured(mask: np.ndarray, config: LearnerConfig = config) -> dict[str, Any]:
        (row,) = nnunet.evaluate(Draws(lambda scan: mask), True, [subject], config)
        assert (row["site"], row["subject"]) == ("A", subject.case)
        return row["classes"]["foreground"]

    assert (measured(truth)["dsc"], measured(truth)["asd"]) == (1.0, 0.0)
    assert measured(speck) == measured(truth)
    assert measured(speck, config.model_copy(update={"largest_component": False}))["dsc"] < 1
    assert measured(np.zeros_like(truth))["asd"] is None


def test_who_was_trained_on_is_not_tested_on(run: Run, data: Path) -> None:
    sites = find_sites(data)
    tested = nnunet.subjects_of(sites, [(row["site"], row["subject"]) for row in nnunet.last_rows(run)])
    assert {s.site for s in tested} == {"A", "B", "C"}
    together = nnunet.pooled(run, sites, tested)
    split = json.loads((run.folder / "split.json").read_text())["sites"]
    assert [s.identity for s in together] == [f"{site}/{case}" for site in "AB" for case in split[site]["train"]]
    with pytest.raises(SmgError, match=f"{together[0].identity} is in the training part"):
        nnunet.pooled(run, sites, [*tested, together[0]])
    with pytest.raises(SmgError, match="C/nobody: is in the run but not in the data"):
        nnunet.subjects_of(sites, [("C", "nobody")])
