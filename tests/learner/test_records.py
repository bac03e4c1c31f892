"""Records: folders of older versions open, and damaged ones are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.records import FORMAT
from smg.learner.results import read_results
from smg.learner.store import Store
from smg.learner.stream import Stream
from smg.report.collect import collect
from smg.sites.layouts import find_sites
from smg.sites.site import Site
from tests.learner.streams import write_sites

OLD = Path(__file__).parent / "fixtures" / "format-2"  # made by the version before records had a schema, of phantoms


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "old")


def test_a_model_of_the_format_before_opens_learns_and_is_written_in_the_present_one(old: Path, tmp_path: Path) -> None:
    data = write_sites(tmp_path / "sites")
    learner = Learner(old / "run" / "model")
    assert (learner.sites, learner.current) == (["A", "B"], 2)
    assert [one.kept.subjects for one in learner.stored()] == [1, 1]
    assert learner.history.record(2).guard is not None
    measured = learner.evaluate(Site.find(data, "B"))
    assert [row.metrics() for row in measured] == [row.classes for row in learner.history.record(2).test]
    record = learner.learn(Site.find(data, "C"))
    assert (record.round, record.parent) == (3, 2)
    model = json.loads((old / "run" / "model" / "model.json").read_text())
    assert (model["format"], model["origin"], len(model["rounds"])) == (FORMAT, None, 3)


def test_a_round_that_the_version_before_began_ends_as_one_that_was_not_stopped(old: Path, tmp_path: Path) -> None:
    data = write_sites(tmp_path / "sites")
    said: list[str] = []
    resumed = Learner(old / "stopped")
    under_way = resumed.history.under_way()
    assert under_way is not None
    assert (under_way.round, under_way.site, under_way.iteration, under_way.iterations) == (2, "B", 2, 4)
    resumed.learn(Site.find(data, "B"), say=said.append)
    assert "going on at iteration 2 of 4" in said
    shutil.copytree(OLD / "stopped", tmp_path / "straight", ignore=shutil.ignore_patterns("progress"))
    straight = Learner(tmp_path / "straight")
    straight.learn(Site.find(data, "B"))
    # Not to the bit: the machine that began the round may round in another way.
    torch.testing.assert_close(resumed.store.read_tensors(2, "weights"), straight.store.read_tensors(2, "weights"))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_run_without_a_spacing_is_made_again_with_the_weights_of_the_version_before(
    tmp_path: Path, threads: Callable[[int], None]
) -> None:
    kept = read_results(OLD / "run")
    config = LearnerConfig.model_validate(kept.config.tree())
    assert config.preparation.spacing is None
    threads(int(kept.versions["threads"]))  # another number rounds in another way
    sites = find_sites(write_sites(tmp_path / "sites"))
    Stream(sites, list(kept.stream.order), kept.stream.unseen, config).run(tmp_path / "run")
    made = read_results(tmp_path / "run")
    for number in (1, 2):
        before, now = (Store(run / "model").read_tensors(number, "weights") for run in (OLD / "run", tmp_path / "run"))
        torch.testing.assert_close(now, before)
        if made.versions == kept.versions:
            assert all(torch.equal(now[name], before[name]) for name in before | now)


def test_the_origin_and_the_results_of_the_version_before_are_read(old: Path) -> None:
    origin = History(old / "started").origin
    assert origin is not None
    assert (origin.kind, origin.name) == ("model", "stopped")
    assert read_results(old / "run").stream.sites == ["A", "B"]
    (run,) = collect([old / "run"]).runs
    assert run.measure("dsc", "BM") is not None


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a cycle": (lambda m: m["rounds"][0].update(parent=2), "round 1: its parent, round 2, is no earlier round"),
    "its own parent": (lambda m: m["rounds"][1].update(parent=2), "round 2: its parent"),
    "a parent that is not there": (lambda m: m["rounds"][1].update(parent=7), "round 7, is no earlier round"),
    "a round twice": (lambda m: m["rounds"].append(m["rounds"][0]), "round 1 is listed twice"),
    "no such current round": (lambda m: m.update(current=5), "no round 5"),
    "a wrong type": (lambda m: m["rounds"][0].update(round="1"), "rounds.0.round"),
    "a missing key": (lambda m: m["rounds"][0].pop("site"), "rounds.0.site"),
    "an unknown key": (lambda m: m.update(more=1), "more"),
    "settings that are none": (lambda m: m.update(config=[]), "config"),
    "no rounds": (lambda m: m.update(rounds=None), "rounds"),
    "a format that is no number": (lambda m: m.update(format="3"), "format"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_model_is_refused_in_one_line(old: Path, what: str) -> None:
    change, fact = DAMAGE[what]
    edited(old / "run" / "model" / "model.json", change)
    with pytest.raises(SmgError) as error:
        History(old / "run" / "model")
    message = str(error.value)
    assert "model.json: damaged" in message
    assert fact in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', "\udcff"])
def test_a_model_file_that_is_no_object_is_refused_in_one_line(old: Path, text: str) -> None:
    (old / "run" / "model" / "model.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SmgError, match=r"model\.json: damaged \([^\n]*\); restore it from a backup"):
        History(old / "run" / "model")


ROUND_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "of another round": (lambda r: r.update(round=1), "record of round 1"),
    "of another site": (lambda r: r.update(site="X"), "another site or parent"),
    "a path among its files": (lambda r: r["files"].update({"../../x": "0" * 64}), "files"),
    "no hash": (lambda r: r["files"].update({"weights.safetensors": 3}), "files.weights.safetensors"),
    "a missing key": (lambda r: r.pop("test"), "test: Field required"),
    "text for a number": (lambda r: r["log"][0].update(iteration="one"), "log.0.iteration"),
}


@pytest.mark.parametrize("what", ROUND_DAMAGE)
def test_a_damaged_round_is_named_and_hides_no_other(old: Path, what: str) -> None:
    change, fact = ROUND_DAMAGE[what]
    edited(old / "run" / "model" / "rounds" / "002" / "round.json", change)
    first, second = History(old / "run" / "model").rounds()
    assert first.fault is None
    assert second.fault is not None
    assert "002/round.json: damaged" in second.fault
    assert fact in second.fault


def test_a_nan_is_read_from_an_old_record_and_refused_in_a_new_one(old: Path) -> None:
    path = old / "run" / "model" / "rounds" / "002" / "round.json"
    edited(path, lambda r: r["earlier"].update(A={"before": float("nan"), "after": 0.5}))
    assert History(old / "run" / "model").record(2).earlier["A"].before is None
    edited(path, lambda r: r.update(format=FORMAT))
    with pytest.raises(SmgError, match="NaN is not JSON"):
        History(old / "run" / "model").record(2)
