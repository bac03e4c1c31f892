"""The configuration of the runs: shared settings, differing settings, versions and splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smg.report.runs import Run

Settings = dict[str, str]  # dotted key -> value


@dataclass(frozen=True)
class Configuration:
    """The settings of all runs of a report, apart from the seeds."""

    shared: Settings  # equal in all runs
    differing: dict[str, Settings]  # by method; by method and stream where one method has several
    versions: dict[str, str]  # package -> version, or several
    splits: dict[str, dict[str, str]]  # site -> part -> number of subjects


def configuration_of(runs: Sequence[Run]) -> Configuration:
    """Return the configuration of the runs."""
    configs = _by_method(runs)
    keys = sorted({key for config in configs.values() for key in config})
    shared = {
        key: next(iter(values))
        for key in keys
        if len(values := {config.get(key, "-") for config in configs.values()}) == 1
    }
    differing = {name: {k: v for k, v in config.items() if k not in shared} for name, config in configs.items()}
    return Configuration(shared, differing, _versions(runs), _splits(runs))


def flattened(tree: dict[str, Any], under: str = "") -> Settings:
    """Return `{"network": {"width": 8}}` as `{"network.width": "8"}`."""
    flat: Settings = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{under}{key}.")
        else:
            flat[under + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _by_method(runs: Sequence[Run]) -> dict[str, Settings]:
    """Return the settings of each method without the seed; one entry a stream where they differ between streams."""
    found: dict[str, dict[str, Settings]] = {}
    for run in runs:
        config = {key: value for key, value in flattened(run.results.config.tree()).items() if key != "seed"}
        found.setdefault(run.name, {})[run.stream] = config
    configs: dict[str, Settings] = {}
    for name, by_stream in found.items():
        alike = len({tuple(sorted(config.items())) for config in by_stream.values()}) == 1
        configs |= {name if alike else f"{name}, {stream}": config for stream, config in by_stream.items()}
    return configs


def _versions(runs: Sequence[Run]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.results.versions.items():
            found.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def _splits(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return how many subjects of each site train, validate and test, from the `split.json` of each run."""
    found: dict[str, dict[str, set[int]]] = {}
    for run in runs:
        path = run.folder / "split.json"
        if path.is_file():
            for site, parts in json.loads(path.read_text())["sites"].items():
                for part, cases in parts.items():
                    found.setdefault(site, {}).setdefault(part, set()).add(len(cases))
    return {site: {part: _range(counts) for part, counts in parts.items()} for site, parts in found.items()}


def _range(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
