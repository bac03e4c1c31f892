"""How far a bench's training is from the paper's, and what a run of it costs, read off its settings and its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from smg.report.runs import Run

SHOWN = ("jm", "sga+c")  # methods whose time is named


def table(runs: Sequence[Run]) -> str:
    """Return the paper's training beside that of the runs, and the time of a run."""
    config: dict[str, Any] = runs[0].results.config.tree()
    sides, network, optimiser = config["preparation"], config["network"], config["optimiser"]
    size, spacing = sides["size"], sides.get("spacing")
    view = f"{size} x {size}, {spacing:g} mm a pixel" if spacing else f"{size} x {size}, whole slices"
    closed = {"last": "the last weights", "average": "the mean of the weights over the round's second half"}
    augmented = any(isinstance(one, dict) and one.get("probability") for one in (config.get("augment") or {}).values())
    rows = {
        "sites": ("six", "five: the images of site B cannot be had"),
        "slices": ("384 x 384", view),
        "network": ("a 2-D U-Net", f"a 2-D U-Net of width {network['width']} and depth {network['depth']}"),
        "iterations a round": ("20 000", f"{config['iterations']:,}".replace(",", " ")),
        "optimiser": ("Adam, 5e-4", f"Adam, {optimiser['rate']:g}, {optimiser['schedule']} rate"),
        "batch, exemplars a site": ("5, 2", f"{config['batch']}, {config['replay']['subjects']}"),
        "augmentation": ("not stated", "as set in the bench" if augmented else "none"),
        "a round is closed by": ("not stated", closed.get(config["select"], config["select"])),
        "a run": ("not stated", cost(runs)),
    }
    lines = ["| | the paper | here |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {theirs} | {ours} |" for name, (theirs, ours) in rows.items())])


def cost(runs: Sequence[Run]) -> str:
    """Return the median minutes of a run, on a machine that may have been shared."""
    minutes = {
        name: [sum(run.results.costs.seconds.values()) / 60 for run in runs if run.name == name and run.results.costs]
        for name in SHOWN
    }
    said = [f"{statistics.median(of):.1f} minutes of {name}" for name, of in minutes.items() if of]
    threads = runs[0].results.versions.get("threads")
    return f"{', '.join(said) or 'not timed'}, {threads} thread{'s' * (threads != 1)} of a shared CPU (median)"
