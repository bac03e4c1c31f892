"""Write a bench's tables and paired differences into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from smg.files import replacing
from smg.report import costs, paired
from smg.report.runs import Run, find_runs
from smg.report.table import StreamTable, paper_tables, to_csv, to_latex, to_markdown

REFERENCE = "sga+c"  # the method that the others are compared with, pair by pair


class Written(NamedTuple):
    """A bench's runs, their tables (one for each stream), and the file of differences if there is one."""

    runs: list[Run]
    tables: list[StreamTable]
    differences: Path | None


def write_tables(folder: Path) -> Written:
    """Write table.md, table.tex, table.csv and, if the reference method has run, differences.md; return the tables."""
    runs = find_runs([folder])
    tables = paper_tables(runs)
    for suffix, written in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
        with replacing(folder / f"table.{suffix}") as temporary:
            temporary.write_text(written(tables) + costs.written_as(suffix, runs))
    path = None
    if differences := paired.paired_differences(runs, REFERENCE):
        path = folder / "differences.md"
        with replacing(path) as temporary:
            temporary.write_text(paired.to_markdown(differences, REFERENCE))
    return Written(runs, tables, path)
