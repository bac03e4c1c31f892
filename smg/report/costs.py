"""What a method costs and gives beside the paper's measures: plasticity, what it keeps, its size, its time."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smg.evaluation.measures import COSTS, Matrix, plasticity
from smg.report.runs import Run
from smg.report.table import Cell, in_latex, in_markdown

Value = Callable[[Run, Sequence[Run]], float | None]


@dataclass(frozen=True)
class Column:
    """One cost: its name, its heading with the unit, its digits, and how it is read off a run."""

    name: str
    head: str
    digits: int
    value: Value

    @property
    def formula(self) -> str:
        return COSTS[self.name].formula


@dataclass(frozen=True)
class CostTable:
    """The methods of one stream."""

    stream: str
    rows: dict[str, list[Cell]]  # method -> cells, in the order of COLUMNS


def _plasticity(metric: str, scale: float) -> Value:
    def of(run: Run, runs: Sequence[Run]) -> float | None:
        alone = next((other for other in runs if _is_reference(other, run)), None)
        if alone is None:
            return None
        order = run.results["stream"]["order"]
        own = {site: _accuracy(alone, metric)[site][site] for site in order}
        value = plasticity(_accuracy(run, metric), order, own)
        return scale * value if value == value else None

    return of


def _is_reference(other: Run, run: Run) -> bool:
    """Whether the other is of a network for each site, on the same stream and seed, with as many iterations."""
    same = (other.stream, other.seed) == (run.stream, run.seed)
    iterations = [one.results.get("config", {}).get("iterations") for one in (other, run)]
    return same and other.results["method"] == "per-site" and iterations[0] == iterations[1]


def _accuracy(run: Run, metric: str) -> Matrix:
    matrix = run.results["matrix"][metric]
    return {r: {s: float("nan") if v is None else v for s, v in row.items()} for r, row in matrix.items()}


def _cost(name: str, scale: float = 1.0) -> Value:
    def of(run: Run, runs: Sequence[Run]) -> float | None:
        value = run.results.get("costs", {}).get(name)
        if isinstance(value, dict):  # of each round: those of the order, which every stream has
            value = statistics.fmean(value[site] for site in run.results["stream"]["order"])
        return None if value is None else scale * value

    return of


COLUMNS = (
    Column("plasticity", "plasticity DSC %", 1, _plasticity("dsc", 100.0)),
    Column("plasticity", "plasticity ASD mm", 2, _plasticity("asd", 1.0)),
    Column("replay_subjects", "subjects kept", 0, _cost("replay_subjects")),
    Column("replay_bytes", "MB kept", 1, _cost("replay_bytes", 1e-6)),
    Column("state_bytes", "MB remembered", 1, _cost("state_bytes", 1e-6)),
    Column("parameters", "million parameters", 2, _cost("parameters", 1e-6)),
    Column("seconds", "seconds a round", 0, _cost("seconds")),
)


def cost_tables(runs: Sequence[Run]) -> list[CostTable]:
    """Return one table for each stream of which any run has costs; mean and standard deviation over seeds."""
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
    mean = statistics.fmean(values) if values else None
    return Cell(mean, statistics.stdev(values) if len(values) > 1 else None, len(values))


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
    """Return the tables as Markdown (`md`), LaTeX (`tex`) or lines of CSV (`csv`), to go behind the paper's."""
    tables = cost_tables(runs)
    return {"md": _markdown, "tex": _latex, "csv": _csv}[kind](tables) if tables else ""


def _markdown(tables: Sequence[CostTable]) -> str:
    parts = []
    for table in tables:
        lines = [f"**{table.stream.replace('|', 'unseen')}**, what it costs and gives", ""]
        lines += ["| | " + " | ".join(c.head for c in COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
        lines += [f"| {in_markdown(name)} | " + " | ".join(texts) + " |" for name, *texts in _texts(table)]
        parts.append("\n".join(lines))
    formulas = "\n".join(f"- *{name.replace('_', ' ')}*: {cost.formula}" for name, cost in COSTS.items())
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
    """Lines as the paper's table has them: stream, method, `cost`, heading, mean, sd, seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for table in tables:
        for name, row in table.rows.items():
            for column, cell in zip(COLUMNS, row, strict=True):
                numbers = ["" if v is None else f"{v:.4f}" for v in (cell.mean, cell.spread)]
                writer.writerow([table.stream, name, "cost", column.head, *numbers, cell.seeds])
    return out.getvalue()
