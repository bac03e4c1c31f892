"""Names and files that would deceive a terminal, or go deeper than a stack, are one plain line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smg.cli import main
from smg.report.text import one_line, printable
from tests.cli.commands import TINY, assert_line, smg
from tests.conftest import write_site

LONG = "Hospital of the " + "very " * 80 + "long name"
ESCAPE = "\x1b[2J\x1b]0;owned\x07\u202egnp"


def test_escapes_of_file_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    site = write_site(tmp_path / "A", 4)
    (site / "Case01.nii.gz").rename(site / f"{ESCAPE}.nii.gz")
    (site / "Case01_segmentation.nii.gz").rename(site / f"{ESCAPE}_segmentation.nii.gz")
    (site / "Case02.nii.gz").write_bytes(b"no scan")
    (site / "Case02.nii.gz").rename(site / f"b{ESCAPE}.nii.gz")
    (site / "Case02_segmentation.nii.gz").rename(site / f"b{ESCAPE}_segmentation.nii.gz")
    for words in (("sites", "check", "A"), ("learn", "m", "A", *TINY), ("learn", "m", "A", "--leave-out", *TINY),
                  ("evaluate", "m", "A", "--part", "all", "--leave-out"),
                  ("predict", "m", f"A/b{ESCAPE}.nii.gz", f"A/{ESCAPE}.nii.gz", "--out", "o")):  # fmt: skip
        result = smg(*words, cwd=tmp_path)
        said = result.stdout + result.stderr
        assert "\\x1b[2J" in said
        assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_escapes_in_the_names_of_a_model_from_elsewhere_do_not_reach_the_terminal(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    write_site(tmp_path / "B", 4, first_seed=10)
    said = []
    for words in (("learn", "m", "A", "--as", ESCAPE, *TINY), ("learn", "m", "B", "--tolerance", "0"), ("history", "m"),
                  ("card", "m"), ("replay", "show", "m"), ("predict", "m", "B/Case00.nii.gz", "--out", "o"),
                  ("replay", "drop", "m", ESCAPE, "--yes"), ("history", "m")):  # fmt: skip
        result = smg(*words, cwd=tmp_path)
        said.append(result.stdout + result.stderr)
        assert not {"\x1b", "\x07", "\u202e"} & set(said[-1]), words
    assert all("\\x1b[2J" in text for text in said)


def test_plain_text_stays_as_it_is() -> None:
    for text in ("Prostata größer 3 mm² 前列腺 a\tb", "two\nlines"):
        assert printable(text) == text
    assert one_line("two\nlines") == "two lines"


def test_deep_yaml_and_deep_json_are_one_line(tmp_path: Path) -> None:
    write_site(tmp_path / "A", 4)
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 5000)
    assert_line(smg("learn", "m", "A", "--config", "deep.yaml", cwd=tmp_path), 1, "deep.yaml: not YAML")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert_line(smg("learn", "m", "A", "--split", "deep.json", cwd=tmp_path), 1, "deep.json")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/model.json").write_text("[" * 100_000)
    for words in (("history", "m"), ("predict", "m", "A", "--out", "o"), ("evaluate", "m", "A")):
        assert_line(smg(*words, cwd=tmp_path), 1, "m/model.json: damaged")


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_no_command_expects_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error

    assert callable(main)
    monkeypatch.setattr("smg.sites.layouts.find_sites", fail)
    assert_line(smg("sites", "check", tmp_path), 1, "memory" if error is MemoryError else "nested too deeply")


def test_a_hospital_s_name_too_long_for_a_file_is_a_name_like_others(tmp_path: Path) -> None:
    site = write_site(tmp_path / "A", 4)
    rows = [f"{site}/Case{n:02d}.nii.gz,{site}/Case{n:02d}_segmentation.nii.gz,{LONG},{n}" for n in range(4)]
    (tmp_path / "sites.csv").write_text("\n".join(["image,mask,site,case", *rows]))
    assert smg("learn", "m", "sites.csv", *TINY, cwd=tmp_path).returncode == 0
    assert LONG in smg("history", "m", "--json", cwd=tmp_path).stdout
    page = json.loads(smg("report", "m", "--json", cwd=tmp_path).stdout)
    assert page["histories"]["m"]["knows"] == [LONG]
    assert [one["evidence"] for one in page["histories"]["m"]["rounds"]["1"]] == ["test part"]
    for words in (("history", "m"), ("evaluate", "m", "sites.csv"),
                  ("replay", "drop", "m", LONG, "--yes"), ("forget", "m", "--case", "0", "--yes")):  # fmt: skip
        result = smg(*words, cwd=tmp_path)
        assert result.returncode == 0, (words, result.stderr)
