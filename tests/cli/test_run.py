"""The researcher's commands, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from smg.methods import METHODS
from tests.cli.commands import TINY, smg
from tests.learner.streams import write_sites

STREAM = ("--data", "sites", "--order", "A,B", "--unseen", "C")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    write_sites(folder / "sites")
    return folder


def test_one_run_from_words(desk: Path) -> None:
    spaced = ("--data", "sites", "--order", "A, B", "--unseen", " C")
    result = smg("run", *spaced, "--method", "jm", "--seed", "3", *TINY, cwd=desk)
    assert result.returncode == 0, result.stderr
    for line in ("looking through the scans 12/12", "round 2 of 3: B", "after B, DSC in %: A "):
        assert line in result.stderr
    assert "after B" in result.stdout
    assert "mean over learned sites s of a[T][s]" in result.stdout
    assert "results: runs/jm-C-3/results.json" in result.stdout
    results = json.loads((desk / "runs/jm-C-3/results.json").read_text())
    assert (results["method"], results["seed"], results["stream"]) == ("jm", 3, {"order": ["A", "B"], "unseen": "C"})
    assert results["config"]["network"]["width"] == 4


def test_the_run_s_own_file_makes_it_again_to_the_bit(desk: Path) -> None:
    smg("run", *STREAM, "--method", "c-meta", *TINY, "--out", "first", cwd=desk)
    result = smg("run", "first/run.yaml", "--data", "sites", "--out", "second", "--json", "--quiet", cwd=desk)
    assert result.stderr == ""
    made = [json.loads(result.stdout), json.loads((desk / "first/results.json").read_text())]
    times = [one["costs"].pop("seconds") for one in made]
    assert all(seconds > 0 for one in times for seconds in one.values())
    assert made[0] == made[1]
    weights = [(desk / run / "model/rounds/003/weights.safetensors").read_bytes() for run in ("first", "second")]
    assert weights[0] == weights[1]


def test_method_and_seed_are_settings_like_any_other(desk: Path) -> None:
    words = (*STREAM, *TINY, "--set", "method=jm", "--set", "seed=3", "--json", "--out", "by-set")
    results = json.loads(smg("run", *words, cwd=desk).stdout)
    assert (results["method"], results["seed"]) == ("jm", 3)


def test_threads_are_kept_with_the_result(desk: Path) -> None:
    before = torch.get_num_threads()
    try:
        words = (*STREAM, *TINY, "--threads", "1", "--json", "--out", "threads")
        assert json.loads(smg("run", *words, cwd=desk).stdout)["versions"]["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_validation_parts_can_be_judged_by(desk: Path) -> None:
    results = json.loads(smg("run", *STREAM, *TINY, "--part", "validation", "--json", "--out", "v", cwd=desk).stdout)
    split = json.loads((desk / "v/split.json").read_text())["sites"]
    assert {row["subject"] for row in results["subjects"] if row["site"] == "A"} == set(split["A"]["validation"])


def test_a_bench_ends_with_the_table_in_every_form(desk: Path) -> None:
    (desk / "copy").mkdir()
    for folder, site in (("A", "A"), ("North", "B"), ("C", "C")):
        (desk / "copy" / folder).symlink_to(desk / "sites" / site)
    lines = ["order: [A, B]", "unseen: C", "methods: [finetune, sga+c]", "seeds: [0, 1]", "data: copy"]
    lines += ["aliases: {B: [north]}"]  # the workers have to find that folder too
    lines += ["iterations: 9", "batch: 2", "preparation: {size: 16}", "network: {width: 4, depth: 1}"]
    (desk / "grid.yaml").write_text("\n".join(lines))
    result = smg("bench", "grid.yaml", "--seeds", "0", "--iterations", "2", cwd=desk)
    assert result.returncode == 0, result.stderr
    assert json.loads((desk / "runs/grid/bench.json").read_text())["settings"]["iterations"] == 2
    assert "[2/2]" in result.stderr
    assert "A B | C" in result.stdout
    for suffix in ("md", "tex", "csv"):
        assert "sga+c" in (desk / f"runs/grid/table.{suffix}").read_text()
    both = smg("bench", "grid.yaml", "--methods", "finetune", "--iterations", "2", "--quiet", cwd=desk)
    assert both.stderr == ""
    assert "±" in both.stdout
    assert (desk / "runs/grid/stream/finetune/seed-1/results.json").exists()


def test_a_ready_configuration_serves_learn(desk: Path) -> None:
    result = smg("learn", "lite", "sites/A", "--config", "prostate-lite", *TINY, "--json", cwd=desk)
    assert result.returncode == 0, result.stderr
    config = json.loads(result.stdout)["config"]
    assert config["method"] == "sga+c"
    assert config["seed"] == 0


def test_configurations_are_laid_over_one_another(desk: Path) -> None:
    both = ("--config", "prostate-lite", "--config", "recommended")
    result = smg("learn", "both", "sites/A", *both, *TINY, "--json", cwd=desk)
    assert result.returncode == 0, result.stderr
    config = json.loads(result.stdout)["config"]
    assert (config["method"], config["merge"], config["select"]) == ("jm", 0.7, "average")
    assert config["augment"]["rotation"]["probability"] > 0
    assert config["compile"]  # which is prostate-lite's word


def test_what_is_recommended_runs_under_its_name(desk: Path) -> None:
    words = ("run", "recommended", "--data", "sites", "--order", "A,B", "--unseen", "C", "--json")
    result = smg(*words, *TINY, "--out", "runs/recommended", cwd=desk)
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert (results["name"], results["method"], results["config"]["select"]) == ("recommended", "jm", "average")


def test_configurations_serve_a_run_as_they_serve_learn(desk: Path) -> None:
    (desk / "mine.yaml").write_text("augment: none\nbatch: 3\nseeds: [4]\n")
    configs = [word for one in ("prostate-lite", "recommended", "mine.yaml") for word in ("--config", one)]
    shorter = ("--set", "preparation.size=16", "--set", "network={width: 4, depth: 1}", "--set", "compile=false")
    words = (*configs, *shorter, "--iterations", "2", "--json")
    result = smg("run", *STREAM, *words, "--out", "laid", cwd=desk)
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert (results["name"], results["seed"], results["config"]["iterations"]) == ("recommended", 4, 2)
    assert results["config"] == json.loads(smg("learn", "laid-model", "sites/A", *words, cwd=desk).stdout)["config"]
    slip = smg("run", *STREAM, "--config", "recommnded", cwd=desk)
    assert slip.returncode == 2
    assert "did you mean recommended?" in slip.stderr


def test_a_file_of_many_runs_is_not_one_run(desk: Path) -> None:
    result = smg("run", "prostate-lite", "--data", "sites", cwd=desk)
    assert result.returncode == 2
    assert "plans 60 runs" in result.stderr
    assert "--stream (A-first, F-first)" in result.stderr


def test_what_a_shell_completes_is_what_there_is() -> None:
    from smg.cli.options import methods_by_prefix, ready_by_prefix
    from smg.settings_file import ready

    own = {name for name, method in METHODS.items() if method.__module__.startswith("smg.")}  # a test may add its own
    assert set(methods_by_prefix("")) == {*own, "sga+c"}
    assert methods_by_prefix("sga") == ["sga", "sga+c", "sga-direct"]
    assert ready_by_prefix("") == ready()
