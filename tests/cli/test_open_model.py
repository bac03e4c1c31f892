"""A new model without settings: its plan keeps what was given, and is made without the subjects to be tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smg.planning.plan
from smg.cli.open_model import _given_before, awaits_plan, says_what_to_train
from smg.learner.config_layers import configuration, from_yaml
from smg.learner.learner import Learner
from smg.learner.verify import verify
from smg.planning.machine import Cost
from smg.sites.site import Site
from smg.sites.split import fold_site, save_splits, split_site
from smg.sites.volume import Volume, write_volume
from tests.cli.commands import assert_line
from tests.cli.commands import smg as command
from tests.conftest import affine, write_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.find(write_site(tmp_path / "A", 7))


@pytest.fixture
def _fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smg.planning.plan, "cost_of", lambda config, side: Cost(0.01, 1000))


def _learn(folder: Path, *words: object) -> tuple[str, dict[str, object]]:
    """Let a new model learn the site; return what was printed, and the plan."""
    result = command("learn", "model", "A", "--iterations", "2", *words, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout, from_yaml((folder / "model/plan.yaml").read_text())


def test_a_planned_model_starts_with_a_method_that_stores_outputs(tmp_path: Path, site: Site) -> None:
    printed, plan = _learn(tmp_path, "--method", "der++", "--set", "batch=3")
    assert (plan["method"], plan["iterations"], plan["batch"]) == ("der++", 2, 3)
    assert "training: der++, 2 iterations of 3 slices" in printed
    assert "scans:    5 of A for training and validation" in printed


@pytest.mark.parametrize("words", [("--labels", "a=1", "--labels", "b=2"), ("--set", "preparation.adjacent=3")])
def test_a_model_made_with_what_a_plan_does_not_choose_is_planned(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Classes and channels of the network follow from these: the user has not given a network."""
    assert command("init", "model", *words, cwd=tmp_path).returncode == 0
    before = _given_before(Learner(tmp_path / "model"))
    assert not says_what_to_train([before])
    assert configuration(before) == Learner(tmp_path / "model").config
    width = configuration(before, {"network": {"width": 5}})
    assert says_what_to_train([_given_before(Learner.create(tmp_path / "other", width))])


@pytest.mark.usefixtures("_fast_machine")
def test_a_plan_keeps_what_was_given_to_init_also_where_it_is_a_default(tmp_path: Path, site: Site) -> None:
    words = ("--method", "sga+c", "--set", "select=last")
    assert command("init", "model", *words, cwd=tmp_path).returncode == 0
    _, plan = _learn(tmp_path)
    assert (plan["method"], plan["select"]) == ("sga+c", "last")
    config = Learner(tmp_path / "model").config
    assert (config.method, config.select, config.merge) == ("sga+c", "last", None)


@pytest.mark.usefixtures("_fast_machine")
@pytest.mark.parametrize("way", ["by the seed", "by folds", "given"])
def test_masks_to_be_tested_on_do_not_change_the_plan(tmp_path: Path, site: Site, way: str) -> None:
    """A test subject's foreground lies all over the slice, in two pieces: with it there would be no central field."""
    cases = [subject.case for subject in site.subjects]
    split, words = {
        "by the seed": (split_site(site, 3), ["--set", "seed=3"]),
        "by folds": (fold_site(site, 1, 3), ["--set", "seed=1", "--set", "folds=3"]),
        "given": (
            {"train": tuple(cases[2:]), "validation": (), "test": tuple(cases[:2])},
            ["--split", tmp_path / "split.json"],
        ),
    }[way]
    save_splits(tmp_path / "split.json", {"A": split}, None)
    mask = np.zeros((6, 20, 24), np.uint8)
    mask[1:5, :, :11] = mask[1:5, :, 12:] = 1
    for subject in site.subjects:
        if subject.case in split["test"]:
            write_volume(subject.mask, Volume(mask, affine()))
    _, plan = _learn(tmp_path, *words)
    preparation = plan["preparation"]
    assert isinstance(preparation, dict)
    assert preparation["field"] == 10
    assert "largest_component" not in plan


@pytest.mark.usefixtures("_fast_machine")
def test_a_model_made_without_sizes_is_planned_when_it_first_learns(tmp_path: Path, site: Site) -> None:
    made = command("init", "model", "--method", "jm", "--set", "seed=3", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    printed, plan = _learn(tmp_path, "--set", "batch=3")
    assert (plan["method"], plan["seed"], plan["batch"]) == ("jm", 3, 3)
    assert "training: jm, 2 iterations of 3 slices" in printed
    config = Learner(tmp_path / "model").config
    assert (config.method, config.seed, config.iterations) == ("jm", 3, 2)
    assert config.preparation.spacing
    assert Learner(tmp_path / "model").current == 1
    again = command("learn", "model", "A", "--again", "--minutes", "9", cwd=tmp_path)
    assert "--minutes 9: no plan was made" in again.stderr
    assert not verify(tmp_path / "model").uncovered
    (tmp_path / "model/plan.yaml").write_text("batch: 4\n")
    assert verify(tmp_path / "model").faults == ("plan.yaml: differs from the hash in the journal",)


@pytest.mark.usefixtures("_fast_machine")
def test_a_configuration_without_sizes_is_planned(tmp_path: Path, site: Site) -> None:
    _, plan = _learn(tmp_path, "--config", "image-free")
    assert (plan["method"], plan["options"], plan["merge"]) == ("lwf", {"weight": 0.5}, 0.6)
    config = Learner(tmp_path / "model").config
    assert (config.method, config.merge, config.guard.subjects, plan["augment"]) == ("lwf", 0.6, 0, "mild")
    assert config.preparation.spacing


@pytest.mark.usefixtures("_fast_machine")
def test_another_method_says_that_the_models_merging_stays(tmp_path: Path, site: Site) -> None:
    _learn(tmp_path)
    write_site(tmp_path / "B", 7, first_seed=7)
    other = ("learn", "model", "B", "--method", "sga+c", "--unguarded")
    line = "method sga+c: with the model's own merge 0.7; --set merge=null ends it\n"
    assert line in command(*other, cwd=tmp_path).stderr
    ended = command(*other, "--again", "--set", "merge=null", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert line not in ended.stderr
    assert [Learner(tmp_path / "model").history.record(n).config.merge for n in (1, 2, 3)] == [0.7, 0.7, None]


def test_one_site_is_planned_for_once(tmp_path: Path, site: Site) -> None:
    (tmp_path / "plan.yaml").touch()
    assert_line(command("plan", "A", "--out", "plan.yaml", cwd=tmp_path), 1, "plan.yaml: exists already")
    assert_line(command("plan", "A", "A", cwd=tmp_path), 2, "two sites are called A")


def test_settings_given_to_a_new_model_are_not_planned_again(tmp_path: Path, site: Site) -> None:
    """Also the paper's, which are the defaults."""
    made = command("init", "paper", "--config", "paper", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert not awaits_plan(Learner(tmp_path / "paper"))
    sizes = ("--set", "preparation.size=16", "--set", "network={width: 4, depth: 2}", "--iterations", "1")
    assert command("init", "model", *sizes, cwd=tmp_path).returncode == 0
    assert command("learn", "model", "A", cwd=tmp_path).returncode == 0
    assert Learner(tmp_path / "model").config.preparation.size == 16
