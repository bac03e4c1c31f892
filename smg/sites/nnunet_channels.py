"""nnU-Net's names for channels: `CASE_0001` in a file name, `channel_names` in dataset.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smg.errors import SmgError
from smg.files import parse_json, write_json

_NUMBER = re.compile("_([0-9]{4})$")


def split_case(name: str) -> tuple[str, str | None]:
    """Split a file's name, without its suffix, into case and channel number: `p_01_0001` is (`p_01`, `0001`)."""
    found = _NUMBER.search(name)
    return (name[: found.start()], found[1]) if found else (name, None)


def numbered(index: int) -> str:
    """Return a channel's number as file names have it: `0001` for 1."""
    return f"{index:04d}"


@dataclass(frozen=True)
class Description:
    """Facts of a site from its dataset.json."""

    channels: tuple[str, ...] = ()  # names in the order of their numbers; empty if the file lists none
    label_values: frozenset[int] | None = None  # None without a dataset.json


def read_description(path: Path) -> Description:
    """Return the description in a dataset.json of nnU-Net v2 or v1; an empty one if there is no such file."""
    if not path.is_file():
        return Description()
    try:
        parsed = parse_json(path.read_bytes())
        values = _label_values(parsed["labels"])
    except (ValueError, KeyError, TypeError, AttributeError):
        example = '{"background": 0, "prostate": 1}'
        raise SmgError(
            f"{path}: not a dataset.json of nnU-Net v2: no usable 'labels'; list them, as {example}"
        ) from None
    key = "channel_names" if "channel_names" in parsed else "modality"
    try:
        return Description(_channel_names(parsed.get(key, {})), values)
    except (ValueError, AttributeError):
        example = '{"0": "T2", "1": "ADC"}'
        raise SmgError(f"{path}: no usable {key!r}; number the channels from 0, as {example}") from None


def _channel_names(listed: dict[str, object]) -> tuple[str, ...]:
    """Return the names in the order of their numbers, which count from 0."""
    names = {int(number): str(name) for number, name in listed.items()}
    if sorted(names) != list(range(len(listed))):
        raise ValueError(names)
    return tuple(names[number] for number in range(len(names)))


def _label_values(labels: dict[str, Any]) -> frozenset[int]:
    """Return the values listed: `{"background": 0, "prostate": 1, "region": [1, 2]}`, in v1 `{"0": "background"}`.

    `ignore` does not count, so a mask with such voxels has a fault until the user gives them to a class.
    """
    if all(isinstance(name, str) for name in labels.values()):
        return frozenset(int(value) for value, name in labels.items() if name != "ignore")
    values = [v if isinstance(v, list) else [v] for name, v in labels.items() if name != "ignore"]
    return frozenset(int(v) for group in values for v in group)


def write_description(path: Path, channels: Sequence[str], labels: Mapping[str, int], subjects: int) -> None:
    """Write a dataset.json as nnU-Net v2 reads it."""
    content = {
        "channel_names": {str(index): name for index, name in enumerate(channels)},
        "labels": dict(labels),
        "numTraining": subjects,
        "file_ending": ".nii.gz",
    }
    write_json(path, content)
