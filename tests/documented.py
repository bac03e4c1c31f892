"""Try what a page of documentation shows as a reader would: write its files and type its commands, in order.

A ```yaml or ```python block whose first line names a file, as `# grid.yaml`, is written to it. Every `smg` and `make`
line of a ```sh block is run; a line for torchrun, in this process alone (tests/cli/test_torchrun_job.py runs it in
several). A command that trains gets smaller settings, since the paper's take days.
"""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cli.commands import TINY, smg

ROOT = Path(__file__).parents[1]
FEWER = ["--methods", "jm", "--seeds", "0"]
HELD = 3  # `learn` may well hold a round of three iterations


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a page: language and text."""
    for match in re.finditer(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL):
        indent = len(match[1])
        yield match[2], "".join(line[indent:] for line in match[3].splitlines(keepends=True))


def commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        command = line.split("  #")[0].strip().removeprefix(".venv/bin/")
        if command and not command.startswith("#"):
            yield command


def try_page(page: Path, folder: Path) -> int:
    """Do all of it in a folder; how many commands there were."""
    for language, text in blocks(page):
        if language in ("yaml", "python") and (name := re.match(r"# (\S+\.(?:ya?ml|py))\n", text)):
            (folder / name[1]).write_text(text)
    typed = [command for language, text in blocks(page) if language == "sh" for command in commands(text)]
    for command in typed:
        _try(command, folder)
    return len(typed)


def _smaller(words: list[str], folder: Path) -> list[str]:
    """Smaller settings; a model from nnU-Net keeps its network and patch, and is small as the desk has it."""
    about = folder / words[2] / "model.json" if words[1] == "learn" else None
    from_nnunet = any(word.startswith("nnunet:") for word in words)
    if from_nnunet or (about and about.is_file() and '"PlainConvUNet"' in about.read_text()):
        return ["--set", "iterations=3", "--set", "batch=2"]
    return TINY


def _try(command: str, folder: Path) -> None:
    words = [found for word in shlex.split(command) for found in _expanded(word, folder)]
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        return
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    assert words[0] == "smg", f"{command}: only smg, make and torchrun -m smg can be tried"
    trains = words[1] in ("init", "learn", "run", "bench")
    more = (_smaller(words, folder) if trains else []) + (FEWER if words[1] == "bench" else [])
    more += ["--workers", "1"] if words[1] == "bench" and "--slurm" not in words else []
    result = smg(*words[1:], *more, cwd=folder)
    well = (0, HELD) if words[1] == "learn" else (0,)
    assert result.returncode in well, f"{command}: exit {result.returncode}\n{result.stderr}"


def _expanded(word: str, folder: Path) -> list[str]:
    found = sorted(glob.glob(word, root_dir=folder))
    return found if found and "*" in word else [word]
