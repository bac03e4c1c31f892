"""The model card: what it says, and `smg export` and `smg card` as they are typed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from smg.export.card import card
from smg.export.release import release
from smg.learner.learner import Learner
from smg.learner.records import RoundRecord
from smg.learner.results import write_results
from smg.learner.stream import Stream
from smg.sites.site import Site
from tests.cli.commands import TINY, smg
from tests.conftest import write_site
from tests.learner.streams import tiny_stream, write_sites


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned two sites."""
    made = tmp_path_factory.mktemp("card")
    for place, name in enumerate("AB"):
        write_site(made / name, 8, first_seed=10 * place)
        result = smg("learn", "model", name, *(() if place else TINY), "--tolerance", "100", cwd=made)
        assert result.returncode == 0, result.stderr
    return made


def row_of(text: str, site: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {site} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def mean(record: RoundRecord) -> str:
    values = [row.classes["foreground"]["dsc"] for row in record.test]
    return f"{100 * sum(values) / len(values):.1f}"


def test_the_card_says_what_was_learned_and_how_well(folder: Path) -> None:
    result = smg("card", "model", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    text, learner = result.stdout, Learner(folder / "model")
    first, second = (learner.store.read_round(number) for number in (1, 2))
    kept = f"{100 * second.guard.sites['A'].after:.1f} (1 sentinel)"
    counts = [[str(one.subjects.train), str(one.subjects.test)] for one in (first, second)]
    assert row_of(text, "A") == ["A", "1", *counts[0], mean(first), kept]
    assert row_of(text, "B") == ["B", "2", *counts[1], mean(second), mean(second)]
    assert "Not measured with these weights" in text
    assert "**Not a medical device**" in text
    assert second.files["weights.safetensors"] in text
    assert f"distance over {learner.predictor().familiar.threshold:.2f}" in text
    assert f"(there were {learner.predictor().familiar.validated})" in text
    for fact in (
        "method: sga+c",
        "iterations: 3",
        "width: 4",
        f"| torch, in training | {second.versions['torch']} |",
    ):
        assert fact in text


def test_an_earlier_round_has_its_own_card(folder: Path) -> None:
    text = smg("card", "model", "--round", "1", cwd=folder).stdout
    assert text.startswith("# model, round 1\n")
    assert "| B |" not in text
    record = Learner(folder / "model").store.read_round(1)
    assert record.files["weights.safetensors"] in text
    assert row_of(text, "A")[-1] == mean(record)


def test_the_model_of_a_run_knows_every_sites_numbers(tmp_path: Path) -> None:
    stream: Stream = tiny_stream(write_sites(tmp_path / "sites"))
    results = stream.run(tmp_path / "run")
    text = card(release(tmp_path / "run" / "model", 2))
    matrix = results.matrix["dsc"]["B"]
    assert row_of(text, "A")[-1] == f"{100 * matrix['A']:.1f}"
    assert row_of(text, "C") == ["C", f"{100 * matrix['C']:.1f}"]  # held out, and not yet learned
    last = card(release(tmp_path / "run" / "model"))
    assert row_of(last, "C")[:2] == ["C", "3"]
    assert "Not measured" in last
    shutil.move(tmp_path / "run" / "model", tmp_path / "apart")  # numbers that are not at hand are not made up
    assert "Not measured" in card(release(tmp_path / "apart", 2))


def test_a_model_that_has_gone_its_own_way_does_not_take_the_runs_numbers(tmp_path: Path) -> None:
    tiny_stream(write_sites(tmp_path / "sites")).run(tmp_path / "run")
    model = tmp_path / "run" / "model"
    Learner(model).rollback(1)
    write_site(tmp_path / "B", 4, first_seed=60)
    assert smg("learn", model, tmp_path / "B", "--as", "D", "--tolerance", "100").returncode == 0
    text = card(release(model))
    assert "(1 sentinel)" in row_of(text, "A")[-1]
    assert "Not measured" in text


def test_numbers_of_another_part_or_of_other_weights_are_not_the_cards(tmp_path: Path) -> None:
    sites, run = write_sites(tmp_path / "sites"), tmp_path / "run"
    results = tiny_stream(sites).run(run)
    write_results(run, results.model_copy(update={"part": "validation"}))
    assert "Not measured" in card(release(run / "model", 2))
    write_results(run, results)
    assert "Not measured" not in card(release(run / "model", 2))
    model = Learner(run / "model")
    model.rollback(1)
    model.learn(Site.find(sites, "B"), again=True, unguarded=True)
    assert "(1 sentinel)" in row_of(card(release(run / "model")), "A")[-1]


def test_two_classes_each_have_their_number(tmp_path: Path) -> None:
    write_site(tmp_path / "A")
    words = ["--labels", "gland=1", "--labels", "tumour=2", "--labels", "background=0"]
    assert smg("learn", "model", "A", *words, *TINY, cwd=tmp_path).returncode == 0
    assert re.search(r"\| gland \d+\.\d, tumour \d+\.\d \|", smg("card", "model", cwd=tmp_path).stdout)


def test_the_path_of_a_method_of_ones_own_is_not_shown(tmp_path: Path) -> None:
    write_site(tmp_path / "A")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom smg.methods import Method, register\n\n\n"
        '@register("mine")\n@dataclass(frozen=True)\nclass Mine(Method):\n'
        "    def direction(self, theta, grad, batches):\n        return grad(theta, batches.incoming)\n"
    )
    result = smg("learn", "model", "A", "--method", tmp_path / "secret" / "mine.py:mine", *TINY, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    text = smg("card", "model", "--trust-code", cwd=tmp_path).stdout
    assert "method: mine.py:mine" in text
    assert "secret" not in text


def test_an_export_as_it_is_typed(folder: Path) -> None:
    result = smg("export", "model", "--as", "torch", "--out", "new/out", "--round", "1", cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    names = ("README.md", "models/model.pt", "models/model.safetensors", "preparation.json", "scripts/segment.py")
    assert result.stdout.split() == [f"new/out/{name}" for name in names]
    readme = (folder / "new" / "out" / "README.md").read_text()
    shown = smg("card", "model", "--round", "1", cwd=folder).stdout
    assert [line for line in readme.splitlines() if "| models/" not in line] == shown.splitlines()
    record = Learner(folder / "model").store.read_round(1)
    sha256 = record.files["weights.safetensors"]
    assert f"| models/model.safetensors, sha256 | `{sha256}` |" in readme  # the same file, byte for byte
    assert list(json.loads((folder / "new" / "out" / "preparation.json").read_text()))[:3] == [
        "format", "channels", "orientation",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("export", "model", "--as", "keras", "--out", "o"), 2, "keras: no such kind"),
        (("export", "model", "--as", "torch", "--out", "o", "--round", "7"), 1, "model: no round 7; it has 1, 2"),
        (("export", "model", "--as", "torch", "--out", "A"), 1, "A: is there already; give a new folder"),
        (("export", "nowhere", "--as", "torch", "--out", "o"), 1, "nowhere: no model there"),
        (("card", "model", "--round", "0"), 1, "model: has learned nothing yet"),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(folder: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    result = smg(*words, cwd=folder)
    assert result.returncode == code
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (folder / "o").exists()


def test_without_the_extra_the_line_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as where it is not installed
    result = smg("export", "model", "--as", "onnx", "--out", "o", cwd=folder)
    assert result.returncode == 1
    assert "--as onnx needs onnxscript: pip install 'smg-learning[export]'" in result.stderr
    assert not (folder / "o").exists()


def test_the_first_weights_can_be_exported_where_they_were_given(folder: Path, tmp_path: Path) -> None:
    write_site(tmp_path / "C", first_seed=30)
    assert smg("learn", "new", "C", "--from", folder / "model", cwd=tmp_path).returncode == 0
    text = smg("card", "new", "--round", "0", cwd=tmp_path).stdout
    assert "these are the weights the model started from" in text
    assert "came from the model model (sha256" in text
    assert smg("export", "new", "--as", "torch", "--out", "out", "--round", "0", cwd=tmp_path).returncode == 0
    start = folder / "model" / "rounds" / "002" / "weights.safetensors"
    assert (tmp_path / "out" / "models" / "model.safetensors").read_bytes() == start.read_bytes()
