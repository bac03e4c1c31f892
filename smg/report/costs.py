"""The table of costs: plasticity, what a method keeps, its size and its time, beside the paper's measures."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from smg.evaluation.measures import COSTS, Matrix, plasticity
from smg.evaluation.metrics import COMPARED
from smg.files import plain_cell
from smg.report.runs import Run
from smg.report.table import Cell, csv_numbers, in_latex, markdown_head, markdown_row

Value = Callable[[Run, Sequence[Run]], float | None]  # of a run, among all runs of its stream


@dataclass(frozen=True)
class Column:
    """One column of the table: its heading, its digits, and the function that reads its value from a run."""

    head: str
    digits: int
    value: Value
    by_median: bool = False


@dataclass(frozen=True)
class CostTable:
    """The methods of one stream."""

    stream: str
    rows: dict[str, list[Cell]]  # method -> cells, in the order of COLUMNS


def _plasticity(metric: str, scale: float) -> Value:
    """Return the function that computes a run's plasticity; None where no run of `per-site` matches it."""

    def of(run: Run, runs: Sequence[Run]) -> float | None:
        alone = next((other for other in runs if _is_baseline(other, run)), None)
        if alone is None:
            return None
        own = {site: values.get(site, float("nan")) for site, values in _accuracy(alone, metric).items()}
        value = plasticity(_accuracy(run, metric), run.order, own)
        return scale * value if value == value else None

    return of


def _is_baseline(other: Run, run: Run) -> bool:
    """Return whether the other run has a network for each site, on the same stream and seed, trained as long."""
    same = (other.stream, other.seed) == (run.stream, run.seed)
    as_long = other.results.config.iterations == run.results.config.iterations
    return same and other.results.method == "per-site" and as_long


def _accuracy(run: Run, metric: str) -> Matrix:
    matrix = run.results.matrix.get(metric, {})
    return {r: {s: float("nan") if v is None else v for s, v in row.items()} for r, row in matrix.items()}


def _stored(name: str, scale: float) -> Value:
    """Return the function that reads a cost from `results.json`; a cost of each round is averaged over the order."""

    def of(run: Run, runs: Sequence[Run]) -> float | None:
        if run.results.costs is None:
            return None
        value = getattr(run.results.costs, name)
        return scale * (statistics.fmean(value[site] for site in run.order) if isinstance(value, dict) else value)

    return of


def _columns() -> Iterator[Column]:
    for name, cost in COSTS.items():
        if cost.is_of_metric:
            for metric, entry in COMPARED.items():
                yield Column(f"{cost.label} {entry.head}", entry.digits, _plasticity(metric, entry.scale))
        else:
            yield Column(cost.label, cost.digits, _stored(name, cost.scale), cost.by_median)


COLUMNS = tuple(_columns())


def cost_tables(runs: Sequence[Run]) -> list[CostTable]:
    """Return one table for each stream in which a run has costs: mean and standard deviation over seeds, or median."""
    tables = []
    for stream in dict.fromkeys(run.stream for run in runs):
        here = [run for run in runs if run.stream == stream]
        names = dict.fromkeys(run.name for run in here)
        rows = {name: [_cell(column, name, here) for column in COLUMNS] for name in names}
        if any(cell.mean is not None for row in rows.values() for cell in row):
            tables.append(CostTable(stream, rows))
    return tables


def _cell(column: Column, name: str, runs: Sequence[Run]) -> Cell:
    values = [v for run in runs if run.name == name and (v := column.value(run, runs)) is not None]
    if column.by_median and len(values) > 2:  # of two it would be the mean, without what shows that they differ
        return Cell(statistics.median(values), None, len(values))
    return Cell.over(values)


def as_text(runs: Sequence[Run]) -> list[tuple[str, list[str], list[tuple[str, ...]]]]:
    """Return (heading, column heads, rows of text) of each stream."""
    return [
        (f"{table.stream.replace('|', 'unseen')}, costs", [c.head for c in COLUMNS], _texts(table))
        for table in cost_tables(runs)
    ]


def _texts(table: CostTable, pm: str = "±") -> list[tuple[str, ...]]:
    digits = [column.digits for column in COLUMNS]
    return [
        (name, *(cell.text(pm, d) for cell, d in zip(row, digits, strict=True))) for name, row in table.rows.items()
    ]


def written_as(kind: str, runs: Sequence[Run]) -> str:
    """Return the tables as Markdown (`md`), LaTeX (`tex`) or lines of CSV (`csv`), to follow the paper's table."""
    tables = cost_tables(runs)
    return {"md": _markdown, "tex": _latex, "csv": _csv}[kind](tables) if tables else ""


def _markdown(tables: Sequence[CostTable]) -> str:
    parts = []
    for table in tables:
        lines = [f"**{table.stream.replace('|', 'unseen')}**, what it costs and gives", ""]
        lines += markdown_head([column.head for column in COLUMNS])
        lines += [markdown_row(name, texts) for name, *texts in _texts(table)]
        parts.append("\n".join(lines))
    formulas = "\n".join(f"- *{cost.label}*: {cost.formula}" for cost in COSTS.values())
    return "\n" + "\n\n".join([*parts, formulas]) + "\n"


def _latex(tables: Sequence[CostTable]) -> str:
    lines = [r"\begin{tabular}{l" + "r" * len(COLUMNS) + "}", r"\toprule"]
    lines.append(" & " + " & ".join(in_latex(c.head) for c in COLUMNS) + r" \\")
    for table in tables:
        title = in_latex(table.stream.replace("|", "unseen"))
        lines += [r"\midrule", rf"\multicolumn{{{len(COLUMNS) + 1}}}{{l}}{{\textit{{{title}}}}} \\"]
        for name, *texts in _texts(table, pm=r"\pm"):
            lines.append(" & ".join([in_latex(name), *("--" if t == "-" else f"${t}$" for t in texts)]) + r" \\")
    return "\n" + "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _csv(tables: Sequence[CostTable]) -> str:
    """Return lines in the form of the paper's table: stream, method, `cost`, heading, mean, sd, seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for table in tables:
        for name, row in table.rows.items():
            for column, cell in zip(COLUMNS, row, strict=True):
                writer.writerow(map(plain_cell, [table.stream, name, "cost", column.head, *csv_numbers(cell)]))
    return out.getvalue()
