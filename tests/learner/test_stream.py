"""Runs: matrix and measures, evaluation after the rounds, and what a run refuses."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smg.learner.config import LearnerConfig
from smg.learner.results import StreamRecord
from smg.learner.stream import Stream
from smg.sites.split import load_splits, split_site
from tests.learner.streams import TINY, refused, tiny_stream, write_small


def test_a_stream_fills_the_matrix_and_reads_the_measures_off_it(data: Path, tmp_path: Path) -> None:
    results = tiny_stream(data, method="jm").run(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results.model_dump(mode="json")
    assert results.stream == StreamRecord(order=("A", "B"), unseen="C")
    matrix = results.matrix["dsc"]
    assert set(matrix) == set(matrix["A"]) == {"A", "B", "C"}
    found = results.measures["dsc"]
    assert found["BM"] == pytest.approx((matrix["B"]["A"] + matrix["B"]["B"]) / 2)
    assert found["BT"] == pytest.approx(matrix["B"]["A"] - matrix["A"]["A"])
    assert found["FM"] == pytest.approx(matrix["B"]["C"])
    unseen = [row for row in results.subjects if (row.round, row.site) == ("B", "C")]
    assert {row.part for row in unseen} == {"train", "test"}  # every part that settings were not chosen by
    tested = [row.classes["foreground"]["dsc"] for row in unseen if row.part == "test"]
    assert found["FT"] == pytest.approx(np.mean(tested) - matrix["C"]["C"])
    rows = [row for row in results.subjects if (row.round, row.site) == ("B", "A")]
    assert matrix["B"]["A"] == pytest.approx(np.mean([row.classes["foreground"]["dsc"] for row in rows]))
    assert not any(math.isnan(v) for v in found.values() if v is not None)
    assert json.loads((tmp_path / "run" / "split.json").read_text())["seed"] == 0


@pytest.mark.parametrize("method", ["jm", "per-site"])
def test_rounds_are_evaluated_long_after_and_on_another_part(data: Path, tmp_path: Path, method: str) -> None:
    results = tiny_stream(data, method=method).run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "evaluations")
    assert tiny_stream(data, method=method).run(tmp_path / "run") == results
    other = tiny_stream(data, method=method)
    other.part = "validation"
    rows = other.run(tmp_path / "run").subjects
    assert not {(r.site, r.subject) for r in rows} & {(r.site, r.subject) for r in results.subjects}


def test_a_stream_with_zones(data: Path, tmp_path: Path) -> None:
    stream = tiny_stream(data, preparation={"size": 16, "labels": {"gland": 1, "other": 2}})
    results = stream.run(tmp_path / "run")
    assert set(results.classes) == {"gland", "other"}
    assert results.classes["other"]["asd"]["BM"] is None  # no subject has this class, so no surface exists


def test_streams_that_are_refused(data: Path, tmp_path: Path) -> None:
    config = LearnerConfig.model_validate(TINY)
    sites = tiny_stream(data).sites
    with refused("'Z'", "A, B, C"):
        Stream(sites, ["A", "Z"], None, config)
    with refused("A, B, A"):
        Stream(sites, ["A", "B"], "A", config)
    tiny_stream(data, method="jm").run(tmp_path / "run")
    with refused(str(tmp_path / "run"), "another folder"):
        tiny_stream(data, method="sga").run(tmp_path / "run")


def test_folds_without_a_test_part_are_refused_before_the_first_round(data: Path, tmp_path: Path) -> None:
    with refused("4 folds are too many", "site A has 3", "site B has 3", "site C has 3", "set folds to at most 3"):
        tiny_stream(data, folds=4, seed=0).run(tmp_path / "run")  # seed 3 would have no test part
    assert not (tmp_path / "run" / "model").exists()
    assert tiny_stream(data, folds=3, seed=2, iterations=1).run(tmp_path / "run").measures["dsc"]["BM"] is not None


def test_the_best_weights_need_a_validation_part_at_every_site(data: Path, tmp_path: Path) -> None:
    stream = tiny_stream(data, select="best")
    splits = {name: split_site(stream.sites[name], 0) for name in "ABC"}
    splits["B"] |= {"train": splits["B"]["train"] + splits["B"]["validation"], "validation": ()}
    with refused("site B:", "select=best", "select=last"):
        replace(stream, splits=splits).run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_a_later_site_without_foreground_is_refused_before_the_first_round(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "sites")
    write_small(tmp_path / "sites" / "B")
    with refused("site B: no foreground is left in any training mask"):
        tiny_stream(tmp_path / "sites").run(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_a_run_resumes_only_with_the_split_it_began_with(data: Path, tmp_path: Path) -> None:
    stream = tiny_stream(data, method="finetune")
    stream.run(tmp_path / "run")
    before = (tmp_path / "run/split.json").read_text()
    (tmp_path / "run/results.json").unlink()
    splits = load_splits(tmp_path / "run/split.json")
    swapped = splits["A"] | {"train": splits["A"]["test"] + splits["A"]["train"][1:], "test": splits["A"]["train"][:1]}
    other = replace(stream, splits=splits | {"A": swapped})
    with refused("split.json", "site A"):
        other.run(tmp_path / "run")
    assert (tmp_path / "run/split.json").read_text() == before
    stream.run(tmp_path / "run")


def test_a_site_that_joins_a_finished_run_is_measured_after_every_round(data: Path, tmp_path: Path) -> None:
    stream = replace(tiny_stream(data, method="finetune"), unseen=None)
    stream.run(tmp_path / "run")
    longer = replace(stream, order=["A", "B", "C"])
    matrix = longer.run(tmp_path / "run").matrix["dsc"]
    assert all(matrix[learned][site] is not None for learned in "ABC" for site in "ABC")
