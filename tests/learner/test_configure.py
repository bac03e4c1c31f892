"""Configurations and the mistakes people make in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.learner.configure import configuration, from_words, read_yaml


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
        (["iterations"], "'iterations': settings are given as key=value"),
        (["iterations=many"], "iterations: Input should be a valid integer"),
        (["method=sgaa"], "no method 'sgaa'; did you mean sga?"),
        (["options.gama=1"], "method sga has no option 'gama'"),
        (["augment=wild"], "there is no augmentation preset 'wild'"),
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
    for text, sentence in (("a: [1", "not YAML (line"), ("- a", "a configuration is a mapping")):
        path.write_text(text)
        with pytest.raises(SmgError) as error:
            read_yaml(path)
        assert sentence in str(error.value)
    with pytest.raises(SmgError, match="No such file"):
        read_yaml(tmp_path / "missing.yaml")
