"""`smg evaluate` says of whom its numbers are; `--round` asks an earlier network; CSV cells are never formulas."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from smg.files import plain_cell
from smg.sites.volume import read_volume
from tests.cli.commands import assert_line, smg, write_and_learn
from tests.conftest import write_site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_and_learn(tmp_path_factory.mktemp("evaluate"), "ABC", "AB", subjects=6)


def evaluated(folder: Path, *words: str) -> list[dict[str, object]]:
    result = smg("evaluate", "model", *words, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_site_never_learned_is_evaluated_whole_whatever_its_name(folder: Path) -> None:
    shutil.copytree(folder / "C", folder / "elsewhere/Z")
    under_two_names = [evaluated(folder, path) for path in ("C", "elsewhere/Z")]
    assert [row["classes"] for row in under_two_names[0]] == [row["classes"] for row in under_two_names[1]]
    assert [row["part"] for row in under_two_names[0]] == ["never learned"] * 6
    assert len(evaluated(folder, "A")) == 1
    assert {row["part"] for row in evaluated(folder, "A")} == {"test"}


def test_training_subjects_have_a_mean_of_their_own(folder: Path) -> None:
    result = smg("evaluate", "model", "A", "C", "--part", "all", "--csv", "n.csv", cwd=folder)
    rows = [[cell.strip() for cell in line.split("|")] for line in result.stdout.splitlines() if line.startswith("|")]
    means = {(row[1], row[2]): int(row[3]) for row in rows[1:]}
    assert means == {
        ("A", "test"): 1, ("A", "validation"): 1, ("A", "train (trained on)"): 4, ("C", "never learned"): 6
    }  # fmt: skip
    with (folder / "n.csv").open() as file:
        written = list(csv.DictReader(file))
    trained = {row["subject"] for row in written if row["part"] == "train"}
    assert len(trained) == 4
    line = next(line for line in result.stdout.splitlines() if line.startswith("A, train: "))
    assert set(line.removeprefix("A, train: ").split(", ")) == trained


def test_a_round_answers_as_it_did_when_it_was_current(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "back")
    assert smg("rollback", "back", "1", cwd=folder).returncode == 0
    then = smg("evaluate", "back", "C", "--json", cwd=folder)
    assert json.loads(then.stdout) == evaluated(folder, "C", "--round", "1")
    assert [r["classes"] for r in evaluated(folder, "C")] != [
        r["classes"] for r in evaluated(folder, "C", "--round", "1")
    ]
    for model, words in (("back", ()), ("model", ("--round", "1"))):
        done = smg("predict", model, "C/Case00.nii.gz", "--out", f"of-{model}", *words, "--json", cwd=folder)
        assert list(json.loads(done.stdout)[0]["distances"]) == ["A"]
    masks = [read_volume(folder / f"of-{model}/Case00.nii.gz").array for model in ("back", "model")]
    assert (masks[0] == masks[1]).all()
    for command in (("evaluate", "model", "C"), ("predict", "model", "C/Case00.nii.gz", "--out", "x")):
        assert_line(smg(*command, "--round", "9", cwd=folder), 1, "model: no round 9", "it has 1, 2")
        assert_line(smg(*command, "--round", "0", cwd=folder), 1, "model: no round 0")


def test_cells_of_a_csv_are_no_formulas(folder: Path) -> None:
    write_site(folder / "odd" / "=cmd()", 2, first_seed=70)
    for path in (folder / "odd" / "=cmd()").iterdir():
        path.rename(path.with_name(f"@{path.name}"))
    assert smg("evaluate", "model", "odd/=cmd()", "--csv", "odd.csv", cwd=folder).returncode == 0
    with (folder / "odd.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["site"] for row in rows} == {"'=cmd()"}
    assert all(row["subject"].startswith("'@Case") for row in rows)
    assert float(rows[0]["volume_difference"]) == float(rows[0]["volume_difference"])
    for cell in ("=1+1", "+a", "-a", "@a", "\t=1"):
        assert plain_cell(cell) == f"'{cell}"
    for cell in (-1.5, "-1.5", "+2e3", "a=1", "", None, "-"):
        assert plain_cell(cell) == cell
