"""A plan holds the runs that its file and the command line name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smg.bench.planned_runs import Plan, read_plan
from smg.errors import SmgError
from smg.learner.config_layers import configuration
from smg.settings_file import read_settings, ready, stream_plan
from tests.settings_files import GRID, write

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_a_grid_is_every_method_on_every_stream_with_every_seed(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, GRID))
    runs = plan.runs()
    assert [(run.seed, run.stream_name, run.name) for run in runs] == [
        (seed, stream, name) for seed in (4, 5) for stream in ("there", "back") for name in ("finetune", "sga adam")
    ]
    assert plan.data == tmp_path / "sites"  # beside the file, wherever the command is typed
    assert runs[0].stream == stream_plan(["RUNMC", "C"], "BMC")  # under their own names
    assert runs[1].config.options == {"inner": "adam"}
    assert [run.config.batch for run in runs[:2]] == [5, 3]
    assert {run.config.iterations for run in runs} == {7}
    assert {run.part for run in runs} == {"validation"}
    assert runs[1].folder(Path("out")) == Path("out/there/sga adam/seed-4")


def test_one_run_written_down_makes_the_same_run(tmp_path: Path) -> None:
    for run in read_plan(write(tmp_path, GRID)).runs():
        (again,) = read_plan(write(tmp_path, run.as_file())).runs()
        assert again.config == run.config
        assert (again.name, again.stream, again.part) == (run.name, run.stream, run.part)
        assert again.aliases == run.aliases  # so that a worker finds the site's folder


def test_aliases_name_the_sites_of_a_stream_and_come_from_a_file_too(tmp_path: Path) -> None:
    stream = "order: [SiteA, mine]\nunseen: sitef"
    assert read_plan(write(tmp_path, stream)).streams["stream"] == stream_plan(["SiteA", "mine"], "sitef")
    (tmp_path / "hospitals.yaml").write_text("aliases: {North: [SiteA], South: [SiteF], East: [Mine]}")
    plan = read_plan(write(tmp_path, f"{stream}\naliases: hospitals.yaml"))
    assert plan.streams["stream"] == stream_plan(["North", "East"], "South")
    laid = read_plan(write(tmp_path, stream)).under(read_settings("prostate-sites"))
    assert laid.streams["stream"] == stream_plan(["RUNMC", "mine"], "HK")
    assert {run.aliases["BMC"] for run in laid.only(methods=["jm"]).runs()} == {("ISBI_1.5", "SiteB")}
    with pytest.raises(SmgError, match="twice: RUNMC, RUNMC"):
        read_plan(write(tmp_path, "order: [SiteA, ISBI]")).under(read_settings("prostate-sites"))


def test_the_prostate_configurations_know_the_folders_names_in_other_copies_of_the_data() -> None:
    aliases = read_plan("prostate-sites").aliases
    assert set(aliases) == {"RUNMC", "BMC", "HCRUDB", "UCL", "BIDMC", "HK"}
    for name in ready():
        if name.startswith("prostate-"):
            assert read_plan(name).aliases == aliases


def test_what_the_command_line_says_is_over_the_file_and_its_methods(tmp_path: Path) -> None:
    plan = replace(read_plan(write(tmp_path, GRID)), words={"options": {"inner": "sgd"}, "batch": 2})
    sga = [run.config for run in plan.only(methods=["sga adam"]).runs()]
    assert {(config.options["inner"], config.batch) for config in sga} == {("sgd", 2)}
    one = replace(plan.only(methods=["sga adam"]), words={}).runs()[0]
    written = replace(read_plan(write(tmp_path, one.as_file())), words={"options": {"gamma": 0.1}})
    assert written.runs()[0].config.options == {"inner": "adam", "gamma": 0.1}


def test_a_plan_can_be_cut_and_given_other_methods(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, GRID)).only(streams=["back"], methods=["sga adam", "jm"], seeds=[9])
    assert [(run.name, run.config.method, run.seed) for run in plan.runs()] == [("sga adam", "sga", 9), ("jm", "jm", 9)]
    with pytest.raises(SmgError, match=r"no stream 'forth'.* there, back"):
        plan = read_plan(write(tmp_path, GRID)).only(streams=["forth"])
    with pytest.raises(SmgError, match=r"seed 9 .*twice"):
        plan.only(seeds=[9, 9])
    with pytest.raises(SmgError, match=r"two methods .*'mine'"):
        plan.only(methods=["a/mine.py:mine", "b/mine.py:mine"])


def test_a_method_of_one_s_own_goes_by_its_name(tmp_path: Path) -> None:
    code = "from smg.methods import JM, register\n@register('{0}')\nclass Mine(JM): pass\n"
    (tmp_path / "mine.py").write_text(code.format("mine"))
    named = f"{tmp_path}/mine.py:mine+c"
    plans = [
        read_plan(write(tmp_path, GRID)).only(methods=[named]),
        read_plan(write(tmp_path, f"methods: ['{named}']")),
    ]
    for plan in plans:
        assert plan.methods == {"mine+c": {"method": named}}
    assert plans[0].runs()[0].folder(Path("out")) == Path("out/there/mine+c/seed-4")


def test_configurations_laid_over_a_plan_are_as_learn_lays_them(tmp_path: Path) -> None:
    base, grid = read_settings(write(tmp_path, GRID)).layer(), read_plan(write(tmp_path, GRID))
    texts = ("method: sga\noptions: {inner: adam}\naugment: mild", "batch: 2\naugment: {flip: {probability: 0}}",
             "method: jm\nseed: 3\nselect: best")  # fmt: skip
    others = [read_settings(write(tmp_path, text)) for text in texts]
    for upto in (1, 2, 3):
        plan = grid
        for other in others[:upto]:
            plan = plan.under(other)
        (run,) = plan.only(seeds=[3]).runs()[-1:]
        assert run.config == configuration(base, *(other.layer() for other in others[:upto]), {"seed": 3})
        assert run.name == ("sga", "sga", "jm")[upto - 1]
        assert plan.streams == grid.streams
    assert [run.config.batch for run in grid.under(others[1]).runs()] == [2] * len(grid.runs())  # over its methods' own


def test_a_configurations_options_go_with_its_method_alone() -> None:
    """As `smg learn --config image-free --method NAME` has it."""
    plan = Plan(streams={"s": stream_plan(["A", "B"], "C")}).under(read_settings("image-free"))
    assert plan.only(methods=["lwf"]).runs()[0].config.options == {"weight": 0.5}
    assert plan.only(methods=["jm"]).runs()[0].config.options == {}
    assert plan.runs()[0].name == "image-free"


def test_every_ready_configuration_is_a_sound_plan() -> None:
    assert {"prostate-paper", "prostate-lite", "demo", "recommended"} <= set(ready())
    for name in ready():
        if read_plan(name).streams:
            assert len(read_plan(name).runs()) >= 2


@pytest.mark.parametrize(("name", "tried"), [("recommended", "jm merge"), ("image-free", "lwf 0.5 merge")])
def test_what_is_recommended_is_what_was_chosen_and_what_was_tested(name: str, tried: str) -> None:
    """The methods of results/what-to-keep and results/prostate-recommended; sizes and augmentation are the benches'."""
    (chosen,) = read_plan(str(EXPERIMENTS / "what-to-keep.yaml")).only(["A-first"], [tried], [0]).runs()
    (tested,) = read_plan("prostate-recommended").only(["A-first"], [name], [0]).runs()
    ours = configuration(read_settings(name).layer()).model_dump()
    for config in (chosen.config.model_dump(), tested.config.model_dump()):
        assert all(config[key] == ours[key] for key in ("method", "options", "memory", "merge", "merge_by", "select"))


def test_the_paper_s_configuration_is_the_paper_s() -> None:
    config = read_plan("prostate-paper").runs()[-1].config
    assert (config.preparation.size, config.network.width, config.iterations) == (384, 32, 20_000)
    assert (config.batch, config.optimiser.rate, config.replay.subjects) == (5, 5e-4, 2)
    first = read_plan("prostate-paper").streams["A-first"]
    assert first == stream_plan(["RUNMC", "BMC", "HCRUDB", "UCL", "BIDMC"], "HK")


def test_a_plan_without_a_stream_or_a_method_has_no_runs(tmp_path: Path) -> None:
    with pytest.raises(SmgError, match=r"no stream .*--order"):
        Plan(methods={"jm": {"method": "jm"}}).runs()
    with pytest.raises(SmgError, match=r"no method .*--method"):
        read_plan(write(tmp_path, "order: [A]")).runs()


def test_what_is_image_free_keeps_no_image() -> None:
    for run in Plan(streams={"s": stream_plan(["A", "B"], "C")}).under(read_settings("image-free")).runs():
        assert run.name == "image-free"
        assert (run.config.recipe().method.keeps, run.config.guard.subjects) == ("nothing", 0)
        assert (run.config.memory, run.config.merge) == ("none", 0.6)


def test_a_method_of_a_grid_has_its_own_memory_and_merging(tmp_path: Path) -> None:
    plan = read_plan(str(EXPERIMENTS / "what-to-keep.yaml"))
    runs = {run.name: run for run in plan.runs() if run.stream_name == "A-first"}
    found = {name: (run.config.method, run.config.memory, run.config.merge) for name, run in runs.items()}
    assert found["finetune"] == ("finetune", "none", None)
    assert found["style lwf merge"] == ("lwf", "style", 0.6)
    assert found["jm merge"] == ("jm", "none", 0.7)
    (again,) = read_plan(write(tmp_path, runs["style lwf merge"].as_file())).runs()
    assert again.config == runs["style lwf merge"].config
