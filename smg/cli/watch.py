"""`smg watch`: follow a run, or all runs of a bench, from another terminal."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.options import Json
from smg.cli.terminal import redraws
from smg.report.text import duration, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from smg.report.watching import Watched

EVERY = {True: 1.0, False: 10.0}  # seconds between two updates: on a terminal, in a pipe


def watch(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or benches.")],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Follow runs from another terminal: rounds, losses, alignment, time left. Ends when all runs have ended.

    Example: `smg watch runs/prostate-lite`
    """
    from smg.report.watching import watch_all

    if as_json:
        runs, waiting = watch_all(folders)
        print_json({"runs": [dataclasses.asdict(run) | {"share": run.share} for run in runs], "waiting": waiting})
    elif once:
        runs, waiting = watch_all(folders)
        _print(runs, waiting, printed={})
    elif redraws() and sys.stdout.isatty():
        _follow_live(folders)
    else:
        _follow(folders)


def _follow(folders: list[Path]) -> None:
    """Print plain lines: one for each run that has changed since the last time."""
    from smg.report.watching import watch_all

    printed: dict[str, str] = {}
    while True:
        runs, waiting = watch_all(folders)
        _print(runs, waiting, printed)
        if _over(runs, waiting):
            return
        time.sleep(EVERY[False])


def _follow_live(folders: list[Path]) -> None:
    """Redraw a table on the terminal."""
    from rich.live import Live

    from smg.report.watching import watch_all

    with Live(refresh_per_second=2) as live:
        while True:
            runs, waiting = watch_all(folders)
            live.update(_table(runs, waiting))
            if _over(runs, waiting):
                return
            time.sleep(EVERY[True])


def _over(runs: list[Watched], waiting: int) -> bool:
    """Return whether all runs have ended, or the rest is waiting for a bench that was stopped."""
    return bool(runs) and all(run.over for run in runs) and (not waiting or any(run.state == "stopped" for run in runs))


def _print(runs: list[Watched], waiting: int, printed: dict[str, str]) -> None:
    """Print the lines that are not the same as those `printed` before."""
    for run in runs:
        line = "  ".join(cell for cell in _cells(run) if cell)
        if printed.get(run.label) != line:
            printed[run.label] = line
            print(line, flush=True)
    summary = _summary(runs, waiting)
    if printed.get("") != summary:
        printed[""] = summary
        print(summary, flush=True)


def _table(runs: list[Watched], waiting: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=_summary(runs, waiting), caption_justify="left", header_style="bold")
    for column in ("run", "state", "where", "loss", "alignment", "left"):
        table.add_column(column, overflow="fold")
    shown = [run for run in runs if not run.over] or runs  # a bench may have dozens; those under way matter
    for run in shown:
        table.add_row(*(Text(cell) for cell in _cells(run)))
    return table


def _cells(run: Watched) -> tuple[str, ...]:
    """Return label, state, position, losses, cosines and time left; or the results if the run is done."""
    if run.state == "done":
        measures = "  ".join(f"{k} {100 * v:.1f}" for k, v in (run.measures or {}).items() if v is not None)
        return run.label, "done", f"{run.rounds} rounds", measures, "", ""
    if run.state == "failed":
        return run.label, "failed", run.said, "", "", ""
    where = f"round {run.round} of {run.rounds} ({run.site}), iteration {run.iteration} of {run.iterations}"
    losses = "  ".join(f"{name} {value:.3f}" for name, value in (run.losses or {}).items() if "virtual" not in name)
    cosines = "  ".join(f"{name.replace('_', ' ')} {value:+.2f}" for name, value in (run.cosines or {}).items())
    left = f"{duration(run.seconds_left)} left" if run.seconds_left is not None else ""
    return run.label, run.state, where if run.round else "starting", losses and f"loss: {losses}", cosines, left


def _summary(runs: list[Watched], waiting: int) -> str:
    counts = {state: sum(run.state == state for run in runs) for state in ("done", "under way", "failed", "stopped")}
    parts = [f"{count} {state}" for state, count in counts.items() if count or state == "done"]
    return f"{len(runs) + waiting} runs: " + ", ".join(parts + [f"{waiting} to come"] * bool(waiting))
