"""What a terminal is shown while a command is at work, and what a pipe."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from smg.cli import terminal
from smg.methods import Step
from smg.sites.site import Subject

SUBJECTS = [Subject("A", case, (Path(),), Path()) for case in ("Case00", "Case01")]


@pytest.fixture(autouse=True)
def _neither_quiet_nor_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "loudness", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven seconds pass between two looks at it."""
    monkeypatch.setattr(terminal.time, "monotonic", count(step=11.0).__next__)


def evaluated() -> None:
    with terminal.measuring() as told:
        for number, subject in enumerate(SUBJECTS, start=1):
            told(subject, number, len(SUBJECTS))


@pytest.mark.usefixtures("clock")
def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated()
    assert capsys.readouterr().err == "evaluating A: Case00, 1 of 2\nevaluating A: Case01, 2 of 2\n"
    look = terminal.looking(2)
    look("A")
    look("B")
    said = capsys.readouterr().err.splitlines()
    assert said == ["looked through 1 of 2 scans, at A", "looked through 2 of 2 scans, at B"]


def test_and_no_more_than_one_in_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("clock")
def test_a_terminal_gets_one_line_that_is_wiped_before_any_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "renewing", lambda: True)
    evaluated()
    wiped = "\r\033[K"
    assert capsys.readouterr().err == f"{wiped}evaluating A: Case00, 1 of 2{wiped}evaluating A: Case01, 2 of 2{wiped}"
    with terminal.Teller(3) as told:
        for iteration in (1, 2):
            told(iteration, Step({"incoming": 0.5}, {}, {}, ()))
    terminal.say("stopped")
    err = capsys.readouterr().err
    assert err.startswith(f"{wiped}iteration 2/3  loss: incoming 0.500")
    assert err.endswith(f"{wiped}stopped\n")
