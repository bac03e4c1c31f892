"""A settings file is read and checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.errors import Misuse, SmgError
from smg.settings_file import read_settings, stream_plan
from tests.settings_files import GRID, write


def test_its_settings_serve_a_single_model_too(tmp_path: Path) -> None:
    one = read_settings(write(tmp_path, "method: jm\nseed: 3\nbatch: 2"))
    assert one.layer() == {"method": "jm", "seed": 3, "batch": 2}
    assert read_settings(write(tmp_path, "batch: 2")).layer() == {"batch": 2}  # says nothing of seed and method
    assert read_settings(write(tmp_path, GRID)).layer() == {"iterations": 7, "network": {"width": 4}}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("iteratons: 3", "no setting 'iteratons'; did you mean iterations?"),
        ("network: {with: 3}", "no setting 'network.with'; did you mean network.width?"),
        ("methods: [gsa]", "no method 'gsa'; did you mean sga?"),
        ("methods: [{name: mine}]", "not a method"),
        ("methods: [{name: a/b, method: jm}]", "'a/b' cannot be a folder's name"),
        ("methods: [{method: jm, bath: 3}]", "no setting 'bath'; did you mean batch?"),
        ("streams: {one: [A, B]}", r"a stream cannot be read; write `order: \[SITE, SITE, ...\]`"),
        ("order: A", r"a stream cannot be read; write `order: \[SITE, SITE, ...\]`"),
        ("seeds: three", "seeds cannot be read; write whole numbers"),
        ("seeds: [-1]", "seeds cannot be read; write whole numbers"),
        ("part: tset", "part 'tset' does not exist; give one of train, validation, test"),
        ("[1, 2]", "not a mapping"),
        ("a: [", r"not YAML \(line"),
        ("methods: 5", "methods cannot be read; write a list"),
        ("streams: [a, b]", "streams cannot be read; write `NAME: {order: "),
        ("methods: [sga, {method: sga, batch: 3}]", "two methods are called 'sga'; give one of them another `name`"),
        ("seeds: [0, 1, 0]", "seed 0 .*twice"),
        ("streams: {../a: {order: [A, B]}}", "'../a' cannot be a folder's name; give the stream another name"),
        ("methods: [{name: '', method: jm}]", "'' cannot be a folder's name"),
        ("methods: [{method: jm, seed: 7}]", "method 'jm' has a seed; .*`seeds: "),
        ("streams: {a: {order: [A, B]}}\nunseen: C", "`unseen` without `order`"),
        ("order: [A, B]\nunseen: B", "site B is both in the order and unseen"),
        ("aliases: prostate-sites\norder: [RUNMC, HK]\nunseen: SiteF", "site HK is both in the order and unseen"),
        ("streams: {a: {order: [A, B], unseen: A}}", "site A is both in the order and unseen"),
        ("order: [A, B, A]", "names a site twice: A, B, A"),
        ("aliases: grid.yaml", "lists none"),  # itself
        ("aliases: demo", "demo lists none"),
        ("aliases: [ISBI]", r"aliases cannot be read; write `SITE: \[OTHER NAME, ...\]`"),
        ("aliases: {A: ISBI}", r"aliases cannot be read; write `SITE: \[OTHER NAME, ...\]`"),
        ("aliases: {A: [X], B: [x]}", "X stands for two sites"),
        ("1: 2", "no setting 1; `smg settings` lists them"),
        ("network: {8: 3}", "no setting 'network.8'"),
    ],
)
def test_a_mistake_names_the_file_and_what_to_do(tmp_path: Path, text: str, facts: str) -> None:
    with pytest.raises(SmgError, match=f"grid.yaml: .*{facts}"):
        read_settings(write(tmp_path, text))


def test_a_folder_called_as_a_ready_configuration_is_not_in_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # as the demonstration leaves it
    assert read_settings("demo").methods


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SmgError, match=r"prostate-light: .* did you mean prostate-lite"):
        read_settings("prostate-light")
    with pytest.raises(SmgError, match=r"nowhere.yaml: No such file"):
        read_settings(str(tmp_path / "nowhere.yaml"))


def test_a_stream_on_the_command_line_names_each_site_once() -> None:
    aliases = {"RUNMC": ["SiteA"], "BMC": ["ISBI_1.5"]}
    assert stream_plan(["SiteA", "C"], "isbi_1.5", aliases).sites == ("RUNMC", "C", "BMC")
    with pytest.raises(Misuse, match=r"site B .*both"):
        stream_plan(["A", "B"], "B")
    with pytest.raises(Misuse, match=r"twice: A, A"):
        stream_plan(["A", "A"], None)
    with pytest.raises(Misuse, match=r"--order"):
        stream_plan([], None)
