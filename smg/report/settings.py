"""What the runs were made with: settings they share, settings in which they differ, versions, seeds and splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from smg.report.runs import Run


def flattened(tree: dict[str, Any], under: str = "") -> dict[str, str]:
    """`{"network": {"width": 8}}` as `{"network.width": "8"}`."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{under}{key}.")
        else:
            flat[under + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def shared_and_own(runs: Sequence[Run]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Settings equal in all runs; and for each method those that are not, the seed apart.

    A method that has others on one stream than on another stands there once for each.
    """
    told: dict[str, dict[str, dict[str, str]]] = {}
    for run in runs:
        config = {key: value for key, value in flattened(run.results["config"]).items() if key != "seed"}
        told.setdefault(run.name, {})[run.stream] = config
    configs: dict[str, dict[str, str]] = {}
    for name, by_stream in told.items():
        alike = len({tuple(sorted(config.items())) for config in by_stream.values()}) == 1
        configs |= {name if alike else f"{name}, {stream}": config for stream, config in by_stream.items()}
    keys = sorted({key for config in configs.values() for key in config})
    shared = {
        key: next(iter(values))
        for key in keys
        if len(values := {config.get(key, "-") for config in configs.values()}) == 1
    }
    own = {name: {k: v for k, v in config.items() if k in keys and k not in shared} for name, config in configs.items()}
    return shared, own


def made_with(runs: Sequence[Run]) -> dict[str, str]:
    """Each version; several, where runs were made with several."""
    told: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.results["versions"].items():
            told.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(versions)) for name, versions in told.items()}


def splits(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Of each site how many subjects train, validate and test; a run's `split.json` names them."""
    told: dict[str, dict[str, set[int]]] = {}
    for run in runs:
        path = run.folder / "split.json"
        if path.is_file():
            for site, parts in json.loads(path.read_text())["sites"].items():
                for part, cases in parts.items():
                    told.setdefault(site, {}).setdefault(part, set()).add(len(cases))
    return {site: {part: _range(counts) for part, counts in parts.items()} for site, parts in told.items()}


def _range(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
