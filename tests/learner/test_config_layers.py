"""Configurations and the mistakes people make in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.errors import Misuse, SmgError
from smg.learner.config import LearnerConfig
from smg.learner.config_layers import configuration, from_words, from_yaml, read_yaml, to_yaml
from smg.learner.learner import Learner
from smg.networks.network_config import NetworkConfig
from smg.prepare.effects import Augmentation


def test_layers_go_over_one_another_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("method: jm\nnetwork:\n  width: 16\n  depth: 3\naugment: mild\n")
    words = from_words(["network.width=8", "replay.subjects=4", "preparation.clip=[1, 99]"])
    config = configuration(read_yaml(tmp_path / "c.yaml"), words)
    assert (config.method, config.network.width, config.network.depth) == ("jm", 8, 3)
    assert config.replay.subjects == 4
    assert config.preparation.clip == (1, 99)
    assert config.augment.rotation.probability > 0
    assert configuration(config.model_dump(mode="json")) == config


def test_channels_and_classes_follow_from_the_preparation() -> None:
    config = configuration(from_words(["preparation.adjacent=3", "preparation.labels={a: 1, b: 2}"]))
    assert (config.network.channels, config.network.classes) == (3, 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["network.wdith=8"], "no setting 'network.wdith'; did you mean network.width?"),
        (["itertions=8"], "no setting 'itertions'; did you mean iterations?"),
        (["iterations"], "'iterations': not a setting; write key=value"),
        (["iterations=many"], "iterations: Input should be a valid integer"),
        (["method=sgaa"], "no method 'sgaa'; did you mean sga?"),
        (["options.gama=1"], "method sga has no option 'gama'"),
        (["augment=wild"], "no augmentation preset 'wild'"),
        (["options.gamma=big"], "options.gamma: Input should be a valid number"),
        (["replay.policy=best"], "no replay policy 'best'; it is one of random, representative"),
        (["network={width"], "the value cannot be read; write a mapping as {key: value, key: value}"),
        (["seed=2020-13-45"], "'seed=2020-13-45': the value cannot be read"),
        (["network.classes=3"], "network.classes follows from preparation.labels; set that"),
        (["network={8: 1}"], "no setting 'network.8'; `smg settings` lists them"),
        (["select=first"], "select: Input should be 'last', 'best' or 'average'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], sentence: str) -> None:
    with pytest.raises(SmgError) as error:
        configuration(from_words(words))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for text, sentence in (
        ("a: [1", "not YAML (line"),
        ("a: 2020-13-45", "c.yaml: not YAML"),
        ("- a", "not a mapping"),
    ):
        path.write_text(text)
        with pytest.raises(SmgError) as error:
            read_yaml(path)
        assert sentence in str(error.value)
    with pytest.raises(SmgError, match="No such file"):
        read_yaml(tmp_path / "missing.yaml")


def test_numbers_as_everyone_writes_them(tmp_path: Path) -> None:
    assert from_words(["options.gamma=5e-3"]) == {"options": {"gamma": 0.005}}
    assert from_words(["options.gamma=.5e-3", "options.beta=1.5e3"]) == {"options": {"gamma": 0.0005, "beta": 1500.0}}
    assert from_yaml(to_yaml({"name": "1e-3", "number": 1e-3})) == {"name": "1e-3", "number": 1e-3}
    (tmp_path / "c.yaml").write_text("method: sga\noptions: {beta: 1E-2}\n")
    assert configuration(read_yaml(tmp_path / "c.yaml")).options == {"beta": 0.01}
    assert configuration({"method": "sga", "options": {"gamma": "5e-3"}}).recipe().method.gamma == 0.005  # type: ignore[attr-defined]


def test_what_goes_with_a_setting_goes_when_it_is_replaced() -> None:
    before = configuration(from_words(["method=sga", "options.inner=adam", "preparation.labels={a: 1, b: 2}"]))
    stored = before.model_dump(mode="json")
    assert configuration(stored, {"method": "jm"}).options == {}
    assert configuration(stored, {"method": "sga"}).options == {"inner": "adam"}
    assert configuration(stored, from_words(["options={}"])).options == {}
    assert configuration(stored, from_words(["options.gamma=0.1"])).options == {"inner": "adam", "gamma": 0.1}
    assert configuration(stored, from_words(["augment.preset=mild"])).augment == Augmentation.preset("mild")
    assert configuration(stored, from_words(["preparation.labels={c: 3}"])).preparation.labels.names == ("c",)
    words = ["preparation.labels.c=3", "preparation.labels.d=4"]
    assert configuration(stored, from_words(words)).preparation.labels.names == ("c", "d")
    more = configuration(stored, from_words(["preparation.labels.background=[0, 9]"])).preparation.labels
    assert (more.names, more.background) == (("a", "b"), (0, 9))
    assert configuration(stored, {"method": "sga+c"}).options == {"inner": "adam"}  # the same method, another buffer
    changed = configuration({"augment": "mild"}, from_words(["augment.flip.probability=0"])).augment
    assert changed.rotation == Augmentation.preset("mild").rotation
    assert not changed.flip.active
    both = from_words(["augment.rotation={strength: 30, probability: 1}", "augment.preset=mild"])
    assert configuration(both).augment.rotation.strength == 30


def test_a_model_is_made_with_options_laid_over_its_configuration(tmp_path: Path) -> None:
    below = configuration({"method": "sga", "options": {"gamma": 0.1}, "iterations": 9, "network": {"width": 4}})
    made = Learner.create(tmp_path / "a", below, iterations=5, network={"depth": 2}, options={"beta": 0.2}).config
    assert (made.iterations, made.network.width, made.network.depth) == (5, 4, 2)
    assert made.options == {"gamma": 0.1, "beta": 0.2}
    assert Learner(tmp_path / "a").config == made  # as written, too
    assert Learner.create(tmp_path / "b", below, method="jm").config.options == {}  # those were of another method
    network = NetworkConfig(width=6, depth=1)
    assert Learner.create(tmp_path / "c", below, network=network).config.network.width == 6
    assert Learner.create(tmp_path / "d", below).config == below


@pytest.mark.parametrize("below", [None, configuration({"iterations": 9})], ids=["alone", "over a configuration"])
def test_a_model_is_not_made_with_options_that_are_wrong(below: LearnerConfig | None, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="did you mean iterations"):
        Learner.create(tmp_path / "model", below, iteration=5)
    with pytest.raises(Misuse, match="iterations: Input should be greater"):
        Learner.create(tmp_path / "model", below, iterations=0)
    assert not (tmp_path / "model").exists()
