"""Prediction and evaluation by a model, and the classes of its masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smg.evaluation.subjects import prepared_dice
from smg.learner.learner import Learner
from smg.sites.site import Site
from smg.sites.volume import Volume, read_volume, write_volume
from tests.learner.streams import refused, tiny_learner
from tests.toys import OPTIONS, subject


def test_prediction_is_on_the_scans_grid_and_evaluation_covers_the_part(taught: Learner, data: Path) -> None:
    subject = Site.find(data, "A").subjects[0]
    scan = read_volume(subject.image)
    mask = taught.predict(scan).mask
    assert mask.array.shape == scan.array.shape
    assert np.array_equal(mask.affine, scan.affine)
    rows = taught.evaluate(Site.find(data, "C"), part="all")
    assert [row.case for row in rows] == ["Case00", "Case01", "Case02", "Case03"]
    assert taught.evaluate(Site.find(data, "C")) == rows  # never learned: all of it
    assert len(taught.evaluate(Site.find(data, "C"), part="test")) == 1


def test_a_model_that_has_learned_nothing_answers_nothing(data: Path, tmp_path: Path) -> None:
    made, site = tiny_learner(tmp_path / "model"), Site.find(data, "A")
    with refused(str(tmp_path / "model"), "`smg learn"):
        made.evaluate(site)
    with refused(str(tmp_path / "model"), "`smg learn"):
        made.predict(read_volume(site.subjects[0].image))
    assert made.evaluate(site, number=0)  # the first weights, asked for by number


def test_a_model_with_a_users_method_opens_and_predicts_without_its_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from smg.methods import JM, register\n\n@register('mine')\nclass Mine(JM):\n    pass\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    tiny_learner(tmp_path / "model", method="mine.py:mine").learn(Site.find(data, "A"))
    (tmp_path / "mine.py").unlink()
    monkeypatch.setattr("smg.registry._FILES", {})
    there = Learner(tmp_path / "model")
    assert there.sites == ["A"]
    there.predict(read_volume(next((data / "B").glob("Case00.nii*"))))
    with refused("mine.py"):
        there.learn(Site.find(data, "B"))


def test_dice_uses_the_largest_component_only_if_it_is_set() -> None:
    """Without it a second component counts, in the validation curve and for the guard too."""
    one = subject(0)
    truth = one.labels.numpy()

    class Says(torch.nn.Linear):  # a network has parameters
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            mask = torch.from_numpy(truth[: len(images)]).float()[:, None]  # every slice has the same disc
            mask[:, :, :2, :2] = 1.0  # and a corner
            return torch.cat([1 - mask, mask], dim=1)

    with_rule, without = (prepared_dice(Says(1, 1), one, OPTIONS, largest) for largest in (True, False))
    assert with_rule == 1.0
    assert without < 1.0


def test_classes_listed_in_any_order_are_learned_and_measured_alike(data: Path, tmp_path: Path) -> None:
    rows = []
    for number, listed in enumerate(({"zone": 1, "area": 2}, {"area": 2, "zone": 1})):
        made = tiny_learner(tmp_path / str(number), preparation={"size": 16, "labels": listed})
        made.learn(Site.find(data, "A"))
        assert made.config.preparation.labels.names == ("zone", "area")
        rows.append([row.as_json() for row in Learner(tmp_path / str(number)).evaluate(Site.find(data, "A"), "all")])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("background", [0, 9])
def test_a_mask_has_the_values_of_the_masks_learned_from(data: Path, tmp_path: Path, background: int) -> None:
    for path in (data / "A").iterdir():
        volume = read_volume(path)
        values = np.where(volume.array > 0, 7, background).astype(np.uint8)
        mask = "segmentation" in path.name
        write_volume(tmp_path / "A" / path.name, Volume(values, volume.affine) if mask else volume)
    labels = {"classes": {"zone": [7]}, "background": [background]}
    made = tiny_learner(tmp_path / "model", preparation={"size": 16, "labels": labels}, iterations=40)
    made.learn(Site.find(tmp_path / "A"))
    predicted = made.predict(read_volume(next((data / "A").glob("Case00.nii*"))))
    assert set(np.unique(predicted.mask.array)) == {background, 7}
    assert predicted.millilitres == pytest.approx(
        (predicted.mask.array == 7).sum() * np.prod(predicted.mask.spacing) / 1000
    )
