"""A settings file for tests, and a function that writes one."""

from __future__ import annotations

from pathlib import Path

GRID = """
data: sites
aliases: prostate-sites
streams:
  there: {order: [SiteA, C], unseen: isbi_1.5}
  back: {order: [C, RUNMC]}
methods: [finetune, {name: sga adam, method: sga, options: {inner: adam}, batch: 3}]
seeds: [4, 5]
part: validation
iterations: 7
network: {width: 4}
"""


def write(folder: Path, text: str) -> str:
    """Write a settings file into the folder and return its path."""
    (folder / "grid.yaml").write_text(text)
    return str(folder / "grid.yaml")
