"""A command that is asked to end while it still imports ends with 130, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDES = """
import os, signal
try:
    os.kill(os.getpid(), signal.{signal})
    import time
    time.sleep(60)
except BaseException:
    raise ImportError("an import that hides what ended it") from None
"""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("package", ["typer", "torch"])  # which commands import first, and when they begin to work
def test_a_signal_during_an_import(tmp_path: Path, package: str, signal: str) -> None:
    (tmp_path / f"{package}.py").write_text(HIDES.format(signal=signal))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    words = [sys.executable, "-m", "smg", "run", "--data", str(tmp_path), "--order", "A"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "smg: stopped\n")


def test_an_interrupt_that_became_another_error_is_still_one(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import smg.cli, smg.cli.runs
def hide(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler may; it does not end what is ending
    except BaseException as error:
        raise RuntimeError("hidden") from error
smg.cli.runs.planned = hide
sys.argv = ["smg", "run"]
smg.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "smg: stopped\n")
