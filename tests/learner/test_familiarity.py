"""How far a scan is from each site learned, against values worked by hand; and what is said when it is not known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smg.learner.config import LearnerConfig
from smg.learner.familiarity import Familiar, nearest, threshold_of
from smg.learner.learner import Learner
from smg.learner.records import FamiliarRecord
from smg.learner.versions import Versions
from smg.prepare.prepared_site import prepare_site
from smg.replay.subject_features import subject_moments
from smg.sites.site import Site
from smg.sites.split import split_site
from smg.sites.volume import Volume, read_volume
from tests.learner.streams import TINY, write_sites


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


def taught(data: Path, folder: Path, names: str = "AB", **changes: Any) -> Learner:
    made = Learner.create(folder, LearnerConfig.model_validate(TINY | {"method": "sga+c"} | changes))
    for name in names:
        made.learn(Site.find(data, name))
    return made


TWO = {"A": torch.tensor([[1.0, 10.0], [3.0, 10.0]]), "B": torch.tensor([[0.0, 8.0], [0.0, 10.0], [0.0, 12.0]])}


def test_a_distance_worked_by_hand() -> None:
    """Within sites the squares sum to (2, 8) with 2 + 3 - 2 = 3 degrees of freedom; a hundredth of 5/3 is added."""
    known = Familiar.of(TWO)
    variance = torch.tensor([2 / 3, 8 / 3], dtype=torch.float64) + 0.01 * 5 / 3
    assert known.spread is not None
    torch.testing.assert_close(known.spread.square(), variance)
    scan = torch.tensor([4.0, 13.0])
    a = ((4 - 2) ** 2 / float(variance[0]) + (13 - 10) ** 2 / float(variance[1])) / 2 / (1 + 1 / 2)
    b = ((4 - 0) ** 2 / float(variance[0]) + (13 - 10) ** 2 / float(variance[1])) / 2 / (1 + 1 / 3)
    assert known.distances(scan) == pytest.approx({"A": math.sqrt(a), "B": math.sqrt(b)})
    assert nearest(known.distances(scan)) == "A"


def test_new_subjects_of_a_site_are_at_about_one_whatever_the_scale() -> None:
    rng = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0, 1e3):
        rows = scale * (5 + torch.randn(40, 200, generator=rng) * torch.linspace(0.1, 3, 200))
        known = Familiar.of({"A": rows[:2], "B": rows[2:12]})
        apart = [known.distances(row) for row in rows[12:]]
        for site in "AB":
            assert np.mean([d[site] for d in apart if d[site] is not None]) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    ("distances", "threshold"),
    [
        ([], None),
        ([0.9], None),
        ([1.2, 0.9], 1.2),
        ([*np.linspace(0.5, 1.5, 11), 7.0], 7.0),  # too few: the largest
        (list(range(1, 20)), 19),  # ⌈0.95 · 20⌉ = 19
        (list(range(39, 0, -1)), 38),  # ⌈0.95 · 40⌉ = 38: one in twenty lies above
        (list(range(1, 101)), 96),  # ⌈0.95 · 101⌉ = 96
    ],
)
def test_the_threshold_is_the_conformal_one(distances: list[float], threshold: float | None) -> None:
    assert threshold_of(distances) == threshold


def test_a_new_subject_is_marked_no_more_often_than_promised() -> None:
    rng = np.random.default_rng(0)
    for n, promised in ((4, 1 / 5), (12, 1 / 13), (60, 1 / 20)):
        draws = rng.lognormal(0, 0.3, (4000, n + 1))
        marked = np.mean([row[-1] > (threshold_of(list(row[:-1])) or 0) for row in draws])
        assert marked <= promised + 0.02


def test_marked_and_unmarked() -> None:
    records = [
        ("A", Familiar.of({"A": TWO["A"]}).as_record([0.4, 1.1])),
        ("B", Familiar.of(TWO).as_record([0.8])),
    ]
    read = [(site, FamiliarRecord.model_validate_json(record.model_dump_json())) for site, record in records]
    known = Familiar.read(read)
    assert (known.threshold, known.validated) == (1.1, 3)  # over all rounds
    for scan, marked in ((torch.tensor([2.0, 10.0]), False), (torch.tensor([0.0, 10.0]), False),
                         (torch.tensor([9.0, 10.0]), True)):  # fmt: skip
        assert known.unlike(known.distances(scan)) is marked
        assert known.distances(scan) == Familiar.of(TWO).distances(scan)  # JSON loses nothing


def test_what_cannot_be_measured_has_no_distance() -> None:
    alone = Familiar.of({"A": torch.ones(1, 4)})  # one subject differs from nobody
    assert alone.distances(torch.zeros(4)) == {"A": None}
    same = Familiar.of({"A": torch.ones(3, 4)})
    assert same.distances(torch.zeros(4)) == {"A": None}
    assert alone.unlike({"A": None}) is None
    assert nearest({"A": None}) is None
    dead = Familiar.of({"A": torch.tensor([[0.0, 1.0], [0.0, 2.0]])})  # a feature that never stirs
    assert math.isfinite(dead.distances(torch.tensor([1.0, 1.0]))["A"] or math.inf)


def test_a_round_measures_every_site_with_its_own_network(data: Path, tmp_path: Path) -> None:
    made = taught(data, tmp_path / "model")
    network, options = made.network(), made.config.preparation
    record = made.store.read_round(2).familiar
    site = Site.find(data, "B")
    split, prepared = split_site(site, made.config.seed), prepare_site(site, options)
    train = subject_moments(network, [p for p in prepared if p.subject.case in split["train"]], options).double()
    torch.testing.assert_close(torch.tensor(record.sites["B"].mean, dtype=torch.float64), train.mean(dim=0))
    kept = subject_moments(network, made.replay()["A"], options).double()
    torch.testing.assert_close(torch.tensor(record.sites["A"].mean, dtype=torch.float64), kept.mean(dim=0))
    validation = subject_moments(network, [p for p in prepared if p.subject.case in split["validation"]], options)
    known = Familiar.of({"A": kept, "B": train})
    assert record.validation == pytest.approx([known.distance(m, "B") for m in validation])
    every = [d for number in (1, 2) for d in made.store.read_round(number).familiar.validation]
    assert made.predictor().familiar.threshold == max(every)


def test_a_prediction_tells_them(data: Path, tmp_path: Path) -> None:
    made = taught(data, tmp_path / "model")
    site = Site.find(data, "A")
    scan = read_volume(site.subjects[0].image)
    predicted = made.predict(scan)
    (prepared,) = prepare_site(site.keep({site.subjects[0].case}), made.config.preparation)
    (moments,) = subject_moments(made.network(), [prepared], made.config.preparation)
    assert predicted.distances == pytest.approx(made.predictor().familiar.distances(moments), rel=1e-4)
    assert predicted.nearest == min(predicted.distances, key=lambda s: predicted.distances[s] or math.inf)
    i, j, k = scan.spacing
    assert predicted.millilitres == pytest.approx(np.count_nonzero(predicted.mask.array) * i * j * k / 1000)
    far = np.zeros_like(scan.array)
    far[:, ::2, ::2] = 100  # nothing that any site has shown
    assert made.predict(Volume(far, scan.affine)).unlike is True


def test_of_a_site_whose_exemplars_are_gone_the_next_round_knows_nothing(data: Path, tmp_path: Path) -> None:
    made = taught(data, tmp_path / "model")
    scan = read_volume(Site.find(data, "A").subjects[0].image)
    made.drop("A")
    assert made.predict(scan).distances["A"] is not None  # this round's network has seen them
    made.learn(Site.find(data, "C"), unguarded=True)  # of A, nothing is left to judge by
    predicted = made.predict(scan)
    assert list(predicted.distances) == ["A", "B", "C"]
    assert predicted.distances["A"] is None
    assert predicted.distances["B"] is not None
    made.learn(Site.find(data, "A"), again=True, unguarded=True)
    assert None not in made.predict(scan).distances.values()


@pytest.mark.parametrize("method", ["finetune", "per-site"])
def test_a_method_that_keeps_nothing_knows_its_newest_site_alone(method: str, data: Path, tmp_path: Path) -> None:
    made = taught(data, tmp_path / "model", method=method)
    predicted = made.predict(read_volume(Site.find(data, "A").subjects[0].image))
    assert predicted.distances["A"] is None
    assert predicted.nearest == "B"


def test_a_record_of_an_older_version_opens_and_predicts(data: Path, tmp_path: Path) -> None:
    made = taught(data, tmp_path / "model")
    scan = read_volume(Site.find(data, "A").subjects[0].image)
    mask = made.predict(scan).mask
    for number in (1, 2):
        path = made.store.round_folder(number) / "round.json"
        record = json.loads(path.read_text())
        del record["familiar"], record["format"]
        path.write_text(json.dumps(record))
    made.store.adopt()  # the journal of such a model knows no hashes
    old = Learner(tmp_path / "model")
    predicted = old.predict(scan)
    assert np.array_equal(predicted.mask.array, mask.array)
    assert (predicted.distances, predicted.nearest, predicted.unlike) == ({"A": None, "B": None}, None, None)
    old.learn(Site.find(data, "C"))
    assert None not in old.predict(scan).distances.values()
    assert old.predict(scan).unlike is None  # one validation subject sets no threshold


def test_the_network_is_read_once_for_each_version(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = taught(data, tmp_path / "model")
    scan = read_volume(Site.find(data, "A").subjects[0].image)
    second = made.predict(scan)
    reads, original = [], Versions.network
    monkeypatch.setattr(Versions, "network", lambda self, *a: reads.append(a) or original(self, *a))
    made.predict(scan)
    assert reads == []
    made.rollback(1)
    assert list(made.predict(scan).distances) == ["A"]
    assert len(reads) == 1
    made.rollback(2)
    assert np.array_equal(made.predict(scan).mask.array, second.mask.array)
