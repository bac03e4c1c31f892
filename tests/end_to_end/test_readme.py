"""The README from top to bottom, as a new user would go through it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from tests.documented import ROOT, blocks, commands, try_page

README = ROOT / "README.md"


def test_every_command_line(desk: Path) -> None:
    assert try_page(README, desk) >= 10


def test_the_python_example(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [text for language, text in blocks(README) if language == "python" and "import smg" in text]
    shorter = re.sub(r"iterations=\d+", 'iterations=2, batch=2, network={"width": 4, "depth": 1}', example)
    shorter = re.sub(r'"size": \d+', '"size": 16', shorter)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12  # ten lines, and two imports at most
    with contextlib.chdir(desk):
        exec(compile(shorter, "README.md", "exec"), {"__name__": "__main__"})
    assert "BM" in capsys.readouterr().out


def test_every_command_stands_in_the_table() -> None:
    from smg.cli import app

    text = README.read_text()
    for command in app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert f"| `smg {name}" in text or f"`smg {name} " in text
    for group in app.registered_groups:
        assert f"| `smg {group.name}" in text
    assert not re.search(r"^    smg ", text, re.MULTILINE)  # commands stand in sh blocks, which are tried


def test_lines_are_read_as_a_shell_would() -> None:
    assert list(commands("smg a \\\n  b  # why\n# no\n.venv/bin/smg c\n")) == ["smg a    b", "smg c"]
