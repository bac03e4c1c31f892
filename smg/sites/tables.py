"""CSV files that list a site's scans: their rows, channel columns and paths."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path, PureWindowsPath

from smg.errors import SmgError

CHANNEL = re.compile("image([0-9]{0,3})")
MOST_BYTES, MOST_COLUMNS = 64 << 20, 1000


def channel_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that are channels, each once: `image`, then `image2` and so on by number."""
    found = {column: int(match[1] or 1) for column in columns if (match := CHANNEL.fullmatch(column))}
    return sorted(found, key=lambda column: found[column])


def read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file, each as (line number, {column: cell}), column names in lower case.

    Spreadsheets' habits are accepted: a byte order mark, semicolons or tabs between cells, spaces around cells,
    capitals in the first line, and empty rows.
    """
    if path.stat().st_size > MOST_BYTES:
        raise SmgError(f"{path}: a CSV file of over {MOST_BYTES >> 20} MiB; list the scans of fewer sites")
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    if "\ufffd" in text or "\0" in text:
        raise SmgError(f"{path}: not a CSV file in UTF-8; save it as CSV with UTF-8 encoding")
    between = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=between, skipinitialspace=True, strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise SmgError(f"{path}: line {reader.line_num} is not CSV: {error}; correct its quotes") from None
    columns = [name.lower() for name in lines[0][1]] if lines else []
    if len(columns) > MOST_COLUMNS:
        raise SmgError(f"{path}: its first line names {len(columns):,} columns; keep image, mask, site and case")
    for name in ("image", "mask"):
        if columns.count(name) != 1:
            raise SmgError(
                f"{path}: its first line does not name the columns image and mask once each; "
                "add them (site and case are optional)"
            )
    channels = channel_columns(columns)
    expected = ["image", *(f"image{n}" for n in range(2, len(channels) + 1))]
    if channels != expected or any(columns.count(name) > 1 for name in channels):
        listed = ", ".join(name for name in columns if name in channels)
        raise SmgError(f"{path}: its columns of channels are {listed}; name them {', '.join(expected)}")
    rows = []
    for line, cells in lines[1:]:
        if any(cells[len(columns) :]):
            raise SmgError(
                f"{path}: line {line} has {len(cells)} cells, and the first line has {len(columns)}; "
                "quote a path that contains a separator"
            )
        if any(cells):
            named = zip_longest(columns, cells[: len(columns)], fillvalue="")
            rows.append((line, {name: cell for name, cell in named if name in (*channels, "mask", "site", "case")}))
    return rows


def listed_path(table: Path, word: str) -> Path:
    """Return the path in a cell, relative to the CSV's folder; a relative path may have backslashes."""
    path = table.parent / word
    if "\\" in word and not PureWindowsPath(word).is_absolute() and not path.exists():
        return table.parent / word.replace("\\", "/")
    return path
