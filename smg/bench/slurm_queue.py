"""Ask Slurm which runs of a bench are in its queue, and cancel them. No torch is imported, so it answers at once."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from smg.errors import SmgError

Queue = dict[tuple[str, int], tuple[str, str]]  # (name, task) -> (state, reason)


def submitted(folder: Path) -> dict[str, list[str]]:
    """Return the arrays that were submitted for a bench, by name, each with its runs in the order of tasks."""
    files = sorted((folder / "slurm").glob("*.json"))
    return {file.stem: list(json.loads(file.read_text())["runs"]) for file in files}


def queue(names: Sequence[str]) -> Queue:
    """Return the tasks of arrays of these names that Slurm has not finished with."""
    if not names:
        return {}
    listed = ask("squeue", "--noheader", "--array", f"--name={','.join(dict.fromkeys(names))}", "--format=%j|%K|%T|%r")
    found: Queue = {}
    for line in listed.splitlines():
        name, index, state, reason = line.split("|", 3)
        found[name, int(index)] = state, reason
    return found


def queued_runs(folder: Path) -> set[Path]:
    """Return the folders of a bench's runs that are in the queue of a cluster; none where there is no Slurm."""
    arrays = submitted(folder)
    try:
        states = queue(list(arrays))
    except SmgError:
        return set()
    return {folder / arrays[name][index] for name, index in states}


def cancel(folder: Path) -> int:
    """Cancel a bench's tasks in the queue, and return how many there were; what is done stays, and can be resumed."""
    states = queue(list(submitted(folder)))
    for name in sorted({name for name, _ in states}):
        ask("scancel", f"--name={name}")
    return len(states)


def ask(*words: str) -> str:
    """Return the output of a Slurm command; a failure is one line. The user's own squeue formats are ignored."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        asked = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise SmgError(f"{words[0]}: no such command; run this where Slurm's commands are, or use --commands") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"exit {error.returncode}"
        raise SmgError(
            f"{words[0]} failed: {said}; jobs in the queue go on, and the same command rejoins them"
        ) from None
    return asked.stdout
