"""A model folder is plain files that its owner alone can read: no link leads out of it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from smg.files import make_private
from tests.cli.commands import TINY, assert_line, smg
from tests.conftest import write_site


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sites A and B, and a model that has learned A under a umask that lets everyone read."""
    folder = tmp_path_factory.mktemp("made")
    for place, name in enumerate("AB"):
        write_site(folder / name, 4, first_seed=10 * place)
    before = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SMG_CACHE", str(folder / "cache"))
            result = smg("learn", "model", "A", *TINY, cwd=folder)
    finally:
        os.umask(before)
    assert result.returncode == 0, result.stderr
    return folder


COMMANDS = (
    ["history", "model"],
    ["rollback", "model", "0"],
    ["replay", "show", "model"],
    ["replay", "drop", "model", "A", "--yes"],
    ["forget", "model", "--case", "Case00", "--yes"],
    ["predict", "model", "A/Case00.nii.gz", "--out", "masks"],
    ["learn", "model", "B"],
)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "rounds", "progress", "model.json", "rounds/.002", "more"])
def test_a_link_inside_a_model_is_refused_and_its_target_untouched(name: str, command: list[str], desk: Path) -> None:
    victim = desk / "victim"
    place = desk / "model" / name
    if place.is_dir() or name in ("progress", "rounds/.002"):
        victim.mkdir()
        (victim / "002").mkdir()
        (victim / "002" / "kept").write_text("precious")
        shutil.rmtree(place, ignore_errors=True)
    else:
        victim.write_text("precious" if name != "model.json" else place.read_text())
        place.unlink(missing_ok=True)
    place.symlink_to(victim)
    before = everything(victim) if victim.is_dir() else victim.read_bytes()
    assert_line(smg(*command, cwd=desk), 1, f"model/{name}: a link; a model holds plain files")
    assert (everything(victim) if victim.is_dir() else victim.read_bytes()) == before


@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "progress/0.safetensors", "rounds/001/round.json"])
def test_a_pipe_hangs_no_command(name: str, desk: Path) -> None:
    place = desk / "model" / name
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place)
    for command in COMMANDS[:3]:
        assert_line(smg(*command, cwd=desk), 1, f"model/{name}: a pipe")


def test_the_model_itself_may_be_named_by_a_link(desk: Path) -> None:
    (desk / "shortcut").symlink_to("model")
    assert smg("history", "shortcut", cwd=desk).returncode == 0


def _modes(folder: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in (folder, *folder.rglob("*"))}


def test_models_and_caches_are_their_owners_whatever_the_umask(made: Path) -> None:
    for folder in (made / "model", made / "cache"):
        assert _modes(folder) == {(True, 0o700), (False, 0o600)}


def test_a_model_made_readable_is_made_private_by_the_next_command_that_writes(desk: Path) -> None:
    for path in (desk / "model", *(desk / "model").rglob("*")):
        path.chmod(0o755)
    assert smg("rollback", "model", "0", cwd=desk).returncode == 0
    assert _modes(desk / "model") == {(True, 0o700), (False, 0o600)}


def test_a_run_keeps_its_model_private(desk: Path) -> None:
    before = os.umask(0o022)
    try:
        assert smg("run", "--data", ".", "--order", "A", "--out", "run", *TINY, cwd=desk).returncode == 0
    finally:
        os.umask(before)
    assert _modes(desk / "run" / "model") == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE((desk / "run" / "results.json").stat().st_mode) == 0o644


def test_a_folder_of_someone_else_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "shared").stat().st_uid + 1)
    make_private(tmp_path / "shared")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_what_is_protected_against_writing_stays_so(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "model.json").write_text("{}")
    (tmp_path / "kept" / "model.json").chmod(0o444)
    (tmp_path / "kept").chmod(0o555)
    make_private(tmp_path / "kept")
    assert _modes(tmp_path / "kept") == {(True, 0o500), (False, 0o400)}
    (tmp_path / "kept").chmod(0o700)
