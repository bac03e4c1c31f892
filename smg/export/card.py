"""The model card: what a version has learned, how well, where its limits are, and what it must not be used for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import smg
from smg.export.release import Learned, Release
from smg.learner.config_layers import to_yaml
from smg.learner.history import described

OWN = ("method", "options", "iterations", "batch", "seed", "preparation", "augment", "network", "optimiser", "replay",
       "select", "largest_component", "mirror")  # fmt: skip


def card(release: Release, files: Mapping[str, str] | None = None) -> str:
    """Return the card as Markdown; `files` are those of an export, each with its sha256."""
    parts = [
        f"# {release.name}, round {release.number}",
        _what(release),
        "## Intended use\n\n" + _use(release),
        "## Sites learned\n\n" + _sites(release),
        "## Sites never learned\n\n" + _unseen(release),
        "## Scans it has not seen the like of\n\n" + _familiarity(release),
        "## What is in it of patients\n\nWeights alone: no scan, no slice kept for replay, no feature of one, and no "
        "name, alias or hash of a subject.",
        "## Settings\n\n```yaml\n" + to_yaml(_settings(release.settings)) + "```",
        "## Versions\n\n" + _versions(release, files or {}),
    ]
    return "\n\n".join(parts) + "\n"


def _what(release: Release) -> str:
    options = release.config.preparation
    classes = ", ".join(options.labels.names)
    channels = ", ".join(options.channels or ("one image",))
    line = f"A 2-D network that segments {classes} slice by slice. Channels of a scan: {channels}."
    if release.origin:
        line += f"\nIts first weights came from {described(release.origin)}."
    if release.one_network_a_site and release.learned:
        line += f"\nThe method trains a network for each site: this is the one of {release.learned[-1].site}."
    return line


def _use(release: Release) -> str:
    return (
        "Research, on scans like those of the sites below. **Not a medical device**: it has no approval, and what it "
        "draws is for research until someone qualified has looked at it.\nIt answers for every scan, also for one with "
        "another organ, contrast or orientation than it has learned; its masks do not say how sure it is."
    )


def _sites(release: Release) -> str:
    if not release.learned:
        return "None: these are the weights the model started from."
    rows = ["| site | round | trained on | tested | DSC when learned | DSC now |", "|---|---|---|---|---|---|"]
    for one in release.learned:
        counts = f"{one.round} | {one.trained} | {one.tested}"
        rows.append(f"| {_cell(one.site)} | {counts} | {_by_class(one.then)} | {_now(one, release)} |")
    return "\n".join(rows) + (
        "\n\nDSC in %, mean over the subjects of a site's test part, on each scan's own grid. `Now` is with these "
        "weights: on the test part where the model is that of a run, otherwise on the few subjects that the guard "
        "keeps or was given, which no gradient has seen. A site that is marked as lost fell by more than was tolerated."
    )


def _now(one: Learned, release: Release) -> str:
    mark = ", **lost**" if one.lost else ""
    if one.now is not None:
        return _percent(one.now) + mark
    if one.round == release.number:
        return _by_class(one.then)
    return f"{_percent(one.judged)} ({one.evidence}){mark}" if one.judged is not None else "not measured" + mark


def _unseen(release: Release) -> str:
    if not release.unseen:
        return "Not measured with these weights. `smg evaluate MODEL SITE` measures a site."
    rows = [
        "| site | DSC |",
        "|---|---|",
        *(f"| {_cell(site)} | {_percent(d)} |" for site, d in release.unseen.items()),
    ]
    return "\n".join(rows) + "\n\nDSC in %, on each scan's own grid, before the site was learned."


def _familiarity(release: Release) -> str:
    known, first = (
        release.familiar,
        "`smg predict` tells how far a scan is from every site; an exported model does not.",
    )
    if known.threshold is None:
        return f"{first}\nNo threshold is known: that takes two validation subjects."
    text = (
        f"{first}\nIt marks a scan as unlike every site at a distance over {known.threshold:.2f}, farther than "
        f"validation subjects were from their own site (there were {known.validated})."
    )
    if missing := [site for site, mean in known.means.items() if mean is None]:
        text += f"\nThere is no distance to {', '.join(missing)}: nothing of it was kept."
    return text + "\nA scan without the mark may still be segmented badly."


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the round's training; of a method of the user's own, the file without its folder."""
    method = str(config["method"])
    return {key: config[key] for key in OWN if key in config} | {"method": PurePath(method).name}


def _versions(release: Release, files: Mapping[str, str]) -> str:
    rows = ["| | |", "|---|---|", f"| weights.safetensors of round {release.number}, sha256 | `{release.sha256}` |"]
    rows += [f"| {path}, sha256 | `{sha256}` |" for path, sha256 in files.items()]
    rows += [f"| {name}, in training | {value} |" for name, value in release.versions.items()]
    return "\n".join([*rows, f"| smg, that wrote this card | {smg.__version__} |"])


def _by_class(dsc: Mapping[str, float]) -> str:
    if len(dsc) == 1:
        return _percent(next(iter(dsc.values())))
    return ", ".join(f"{name} {_percent(value)}" for name, value in dsc.items()) or "-"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
