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


AT_AN_IMPORT = """
import os, signal, sys
class Counting:
    left, begun = {number}, False
    def find_spec(self, name, *_):
        self.begun |= name == "smg.cli"
        self.left -= self.begun
        if self.left == 0 and self.begun:
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Counting())
"""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_at_many_moments_of_the_beginning(tmp_path: Path, signal: str) -> None:
    """The n-th import of a command that imports over a thousand modules, torch among them."""
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    words = [sys.executable, "-m", "smg", "learn", str(tmp_path / "model"), str(tmp_path)]
    for number in (1, 2, 20, 90, 250, 500):
        (tmp_path / "sitecustomize.py").write_text(AT_AN_IMPORT.format(number=number, signal=signal))
        ended = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (130, "smg: stopped\n"), number


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_at_the_very_end_leaves_no_traceback(tmp_path: Path, signal: str) -> None:
    """When a command has said everything and Python only clears up."""
    code = f"""
import atexit, os, signal, sys
from smg.__main__ import main
atexit.register(lambda: (sys.stdout.flush(), os.kill(os.getpid(), signal.{signal}), None)[2])
sys.argv = ["smg", "--version"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout.startswith("smg ")
    assert ended.returncode == (130 if signal == "SIGINT" else 0)


def test_an_interrupt_that_became_another_error_is_still_one(tmp_path: Path) -> None:
    code = """
import os, signal, sys
import smg.cli
def hide(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler may; it does not end what is ending
    except BaseException as error:
        raise RuntimeError("hidden") from error
sys.modules["smg.cli.run"].planned = hide  # `smg.cli.run` itself is the command
sys.argv = ["smg", "run"]
smg.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "smg: stopped\n")
