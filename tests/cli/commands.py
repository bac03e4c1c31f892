"""Run commands in tests as a user types them."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

from smg.cli import main
from tests.conftest import write_site

TINY = [
    word
    for setting in (
        "iterations=3", "batch=2", "preparation.size=16", "network.width=4", "network.depth=1", "validate_every=2",
    )
    for word in ("--set", setting)
]  # fmt: skip
SMG = Path(sys.executable).with_name("smg")


def smg(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, since a new one would have to import torch again."""
    arguments, out, err = [str(word) for word in words], io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["smg", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def write_and_learn(folder: Path, sites: str, learned: str, *words: str, subjects: int = 4) -> Path:
    """Write sites of one letter each, let `model` learn some of them, and return the folder."""
    for place, name in enumerate(sites):
        write_site(folder / name, subjects, first_seed=10 * place)
    for name in learned:
        more = [*TINY, *words] if name == learned[0] else []
        result = smg("learn", "model", name, "--unguarded", *more, cwd=folder)
        assert result.returncode == 0, result.stderr
    return folder


def assert_line(result: subprocess.CompletedProcess[str], code: int, *facts: str) -> None:
    """Assert that a command failed with this code, without a traceback, and that its message has these facts."""
    message = " ".join(result.stderr.split())
    assert result.returncode == code, message
    assert "Traceback" not in message
    for fact in facts:
        assert fact in message
