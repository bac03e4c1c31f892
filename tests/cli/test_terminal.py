"""What a terminal shows while a command is at work, and what a pipe gets."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from smg.cli import terminal
from smg.methods import Step
from smg.report.text import duration
from smg.sites.site import Subject

SUBJECTS = [Subject("A", case, (Path(),), Path()) for case in ("Case00", "Case01")]
STEP = Step({"incoming": 0.123, "replay": 0.456, "virtual": 1.0}, {}, {"incoming_replay": 0.12, "train_test": -0.1}, ())


@pytest.fixture(autouse=True)
def _neither_quiet_nor_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "loudness", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eleven seconds pass between two readings."""
    monkeypatch.setattr(terminal.time, "monotonic", count(step=11.0).__next__)


@pytest.fixture(params=[40, 90])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A terminal of so many columns."""
    console = Console(file=io.StringIO(), force_terminal=True, width=request.param, _environ={})
    monkeypatch.setattr(terminal, "redraws", lambda: True)
    monkeypatch.setattr(terminal, "_console", lambda: console)
    yield console
    terminal.clear()


def shown(console: Console) -> list[str]:
    """Return the lines that were ever drawn, without control sequences."""
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [Text.from_ansi(line).plain for line in re.split(r"[\r\n]|\x1b\[\d*[A-K]", text)]
    return [line for line in lines if line.strip()]


def evaluate() -> None:
    with terminal.subject_progress() as on_subject:
        for index, subject in enumerate(SUBJECTS, start=1):
            on_subject(subject, index, len(SUBJECTS))


@pytest.mark.usefixtures("clock")
def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate()
    assert capsys.readouterr().err == "evaluating A: Case00, 1 of 2\nevaluating A: Case01, 2 of 2\n"
    with terminal.progress("checking", 2) as on_done:
        on_done("A")
        on_done("B")
    assert capsys.readouterr().err.splitlines() == ["checking 1/2", "checking 2/2"]


def test_a_pipe_gets_one_line_in_ten_seconds_and_always_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate()
    assert capsys.readouterr().err == ""
    with terminal.progress("checking", 3) as on_done:
        for name in "ABC":
            on_done(name)
    assert capsys.readouterr().err.splitlines() == ["checking 3/3"]


@pytest.mark.usefixtures("clock")
def test_a_training_line_fits_the_terminal(screen: Console) -> None:
    with terminal.TrainingProgress(20_000) as on_step:
        for iteration in (12_345, 12_346, 20_000):
            on_step(iteration, STEP)
    lines = shown(screen)
    assert lines
    assert max(map(len, lines)) <= screen.width
    last = lines[-1]
    assert "iteration 20000/20000" in last  # it stays when the round has ended
    if screen.width == 90:
        for fact in ("0 s left", "incoming 0.123", "replay 0.456"):
            assert fact in last


@pytest.mark.usefixtures("clock")
def test_a_terminal_shows_one_line_at_a_time(screen: Console) -> None:
    with terminal.progress("looking", 9) as on_done, terminal.TrainingProgress(9) as on_step:
        on_done("A")
        assert terminal._drawn is not None
        first = terminal._drawn
        on_step(1, STEP)
        on_step(2, STEP)
        assert terminal._drawn is on_step.line
        assert first.bar is None
    assert terminal._drawn is None
    drawn = shown(screen)
    assert any("looking 1/9" in line for line in drawn)
    assert any("iteration 2/9" in line for line in drawn)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (45, "45 s"), (99.4, "99 s"), (720, "12 min"), (12_000, "3 h 20 min")]
)
def test_a_duration_is_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
