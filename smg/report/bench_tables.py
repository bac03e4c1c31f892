"""Write a bench's tables and paired differences into its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from smg.files import replacing
from smg.report import costs, paired
from smg.report.focus import choose_baseline
from smg.report.runs import Run, find_runs
from smg.report.table import StreamTable, class_tables, to_csv, to_latex, to_markdown

REFERENCE = "sga+c"  # the method that published benches are compared with, pair by pair


class Written(NamedTuple):
    """A bench's runs, their tables (one for each stream and class), and the file of differences if there is one."""

    runs: list[Run]
    tables: list[StreamTable]
    differences: Path | None
    baseline: str | None


def write_tables(folder: Path, baseline: str | None = None) -> Written:
    """Write table.md, table.tex, table.csv and, if there are several methods, differences.md; return the tables.

    The differences are to the baseline, or to the one that a report chooses (smg.report.focus).
    """
    runs = find_runs([folder])
    chosen = choose_baseline(runs, baseline)
    tables = class_tables(runs)
    for suffix, written in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
        with replacing(folder / f"table.{suffix}") as temporary:
            temporary.write_text(written(tables) + costs.written_as(suffix, runs))
    path = None
    if chosen and (differences := paired.paired_differences(runs, chosen)):
        path = folder / "differences.md"
        with replacing(path) as temporary:
            temporary.write_text(paired.to_markdown(differences, chosen, tables[0].of))
    return Written(runs, tables, path, chosen)
