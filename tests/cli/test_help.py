"""Help, completion and colour: what every command has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from smg.cli import app
from tests.cli.commands import SMG, smg


def every_command(group: typer.Typer = app, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        yield (*above, command.name or command.callback.__name__)  # type: ignore[union-attr]
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from every_command(inner.typer_instance, (*above, str(inner.name)))


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_every_command_has_an_example_and_can_be_hushed(words: tuple[str, ...]) -> None:
    result = smg(*words, "--help")
    assert result.returncode == 0
    assert f"Example: smg {' '.join(words)}" in " ".join(result.stdout.split())
    for option in ("--quiet", "--verbose"):
        assert option in result.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "monai", "scipy", "SimpleITK", "nibabel", "numpy", "pydantic", "yaml", "matplotlib", "jinja2")
    probe = f"import sys, smg.cli; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", probe], text=True).strip() == "[]"


def test_no_colour_where_none_is_wanted() -> None:
    def help_with(**environment: str) -> str:
        return subprocess.check_output([SMG, "--help"], text=True, env=os.environ | environment)

    assert "\x1b[" in help_with(FORCE_COLOR="1")
    plain = help_with(FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[3" not in plain  # no colour; bold may stay


def test_a_shell_is_offered_the_commands() -> None:
    asked = {"_SMG_COMPLETE": "complete_bash", "COMP_WORDS": "smg re", "COMP_CWORD": "1"}
    offered = subprocess.run([SMG], capture_output=True, text=True, env=os.environ | asked, check=False).stdout
    assert "replay" in offered.split()
