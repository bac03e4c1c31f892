"""The table in the paper's form: methods by BM, BT, FM, FT of each metric, mean ± standard deviation over seeds."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED, decimal
from smg.files import plain_cell
from smg.report.runs import Run

# Methods that show what is possible without continual learning, and why they are not ranked.
REFERENCE_METHODS = {"pooled": "keeps every scan", "per-site": "has a network for each site"}


@dataclass(frozen=True)
class Cell:
    """One measure of one method on one stream, over its seeds, in the unit of its column."""

    mean: float | None
    spread: float | None  # sample standard deviation; None for a single seed
    seeds: int
    missing: int = 0  # seeds of the method without a value
    best: bool = False

    @classmethod
    def over(cls, values: Sequence[float], missing: int = 0) -> Cell:
        """Return the cell of one value a seed; `missing` seeds have none."""
        return cls(
            statistics.fmean(values) if values else None,
            statistics.stdev(values) if len(values) > 1 else None,
            len(values),
            missing,
        )

    def text(self, pm: str = "±", digits: int = 1) -> str:
        """Return `mean ± spread`, or `-` where there is no value, and how many seeds have one, if not all."""
        if self.mean is None:
            return "-"
        spread = "" if self.spread is None else f" {pm} {self.spread:.{digits}f}"
        some = f" ({self.seeds} of {self.seeds + self.missing})" if self.missing else ""
        return f"{decimal(self.mean, digits)}{spread}{some}"


Row = dict[tuple[str, str], Cell]  # (metric, measure) -> cell


@dataclass(frozen=True)
class StreamTable:
    """The methods of one stream."""

    stream: str
    rows: dict[str, Row]  # by method
    seeds: dict[str, tuple[int, ...]]  # by method
    of: str = ""  # `class zone`, where there are several classes: the first one is compared
    references: dict[str, str] = field(default_factory=dict)  # methods that are not ranked, and why

    @property
    def ranked(self) -> list[str]:
        """Return the methods that are ranked; all, where there are only reference methods."""
        return [name for name in self.rows if name not in self.references] or list(self.rows)

    @property
    def reference_note(self) -> str:
        """Return a note that says which methods are references, for every place that names a best method."""
        if not self.references:
            return ""
        are = "is a reference" if len(self.references) == 1 else "are references"
        return f"{enumerated([f'{name} ({why})' for name, why in self.references.items()])} {are}, not ranked"

    @property
    def has_equal_seeds(self) -> bool:
        """Return whether all ranked methods have the same seeds; otherwise their means cannot be compared."""
        return len({self.seeds[name] for name in self.ranked}) == 1

    @property
    def common_seeds(self) -> list[int]:
        """Return the seeds that all ranked methods have."""
        return sorted(set.intersection(*(set(self.seeds[name]) for name in self.ranked)))


def class_tables(runs: Sequence[Run]) -> list[StreamTable]:
    """Return one table for each stream and each class, the first class first."""
    first = paper_tables(runs)
    names = list(dict.fromkeys(name for run in runs for name in run.results.classes if name != run.first_class))
    others = [table for name in names for table in paper_tables(runs, name)]
    return [one for table in first for one in (table, *(t for t in others if t.stream == table.stream))]


def paper_tables(runs: Sequence[Run], class_name: str | None = None) -> list[StreamTable]:
    """Return one table for each stream, methods in the order of the runs; of the first class if none is named."""
    tables = []
    for stream in dict.fromkeys(run.stream for run in runs):
        here = [run for run in runs if run.stream == stream]
        names = list(dict.fromkeys(run.name for run in here))
        rows = {name: _row([run for run in here if run.name == name], class_name) for name in names}
        seeds = {name: tuple(sorted(run.seed for run in here if run.name == name)) for name in names}
        methods = {run.name: run.results.method for run in here}
        references = {name: REFERENCE_METHODS[m] for name, m in methods.items() if m in REFERENCE_METHODS}
        table = StreamTable(stream, rows, seeds, _class_of(here[0], class_name), references)
        tables.append(replace(table, rows=_with_best(rows, references)) if table.has_equal_seeds else table)
    return tables


def _class_of(run: Run, name: str | None) -> str:
    several = len(run.results.classes) > 1
    return f"class {name or run.first_class}" if several else ""


def _row(runs: Sequence[Run], class_name: str | None = None) -> Row:
    row = {}
    for metric, entry in COMPARED.items():
        for measure in MEASURES:
            values = [entry.scale * v for run in runs if (v := run.measure(metric, measure, class_name)) is not None]
            row[metric, measure] = Cell.over(values, len(runs) - len(values))
    return row


def _with_best(rows: dict[str, Row], references: Collection[str]) -> dict[str, Row]:
    """Return the rows with the best cell of each column marked, where several ranked methods have as many values."""
    marked = {name: dict(row) for name, row in rows.items()}
    for metric in COMPARED:
        for measure in MEASURES:
            ranked = {name: row[metric, measure].mean for name, row in rows.items() if name not in references}
            means = {name: mean for name, mean in ranked.items() if mean is not None}
            if len(means) < 2 or len({rows[name][metric, measure].seeds for name in means}) > 1:
                continue  # a seed without a value, such as the ASD of an empty mask, would flatter the others' mean
            for name in leaders(means, metric):
                marked[name][metric, measure] = replace(rows[name][metric, measure], best=True)
    return marked


def leaders(means: dict[str, float], metric: str) -> list[str]:
    """Return the methods whose mean equals the best one in the digits that are shown."""
    if not means:
        return []
    entry = COMPARED[metric]
    best = decimal((max if entry.better == "higher" else min)(means.values()), entry.digits)
    return [name for name, mean in means.items() if decimal(mean, entry.digits) == best]


def columns() -> list[str]:
    """Return the headings of the table's columns."""
    return [f"{measure} {entry.head}" for entry in COMPARED.values() for measure in MEASURES]


def cells(row: Row) -> list[tuple[Cell, int]]:
    """Return (cell, digits) in the order of `columns`."""
    return [(row[metric, measure], entry.digits) for metric, entry in COMPARED.items() for measure in MEASURES]


# --- formats ----------------------------------------------------------------------------------------------------------


def to_markdown(tables: Sequence[StreamTable]) -> str:
    """Return one GitHub table for each stream, the best in bold."""
    parts = []
    for table in tables:
        lines = [f"**{table.stream.replace('|', 'unseen')}**, {_about(table)}", "", *markdown_head(columns())]
        for name, row in table.rows.items():
            texts = [f"**{c.text(digits=d)}**" if c.best else c.text(digits=d) for c, d in cells(row)]
            lines.append(markdown_row(name, texts))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def markdown_head(heads: Sequence[str]) -> list[str]:
    """Return the two head lines of a Markdown table whose first column has no heading."""
    return ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]


def markdown_row(name: str, texts: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {in_markdown(name)} | " + " | ".join(texts) + " |"


def to_latex(tables: Sequence[StreamTable]) -> str:
    """Return one LaTeX tabular of all streams, with booktabs rules and the best in bold."""
    lines = [r"\begin{tabular}{l" + "r" * len(columns()) + "}", r"\toprule"]
    heads = [rf"\multicolumn{{{len(MEASURES)}}}{{c}}{{{in_latex(entry.head)}}}" for entry in COMPARED.values()]
    lines += [" & " + " & ".join(heads) + r" \\", " & " + " & ".join([*MEASURES] * len(COMPARED)) + r" \\"]
    for table in tables:
        title = in_latex(f"{table.stream.replace('|', 'unseen')}, {_about(table)}")
        lines += [r"\midrule", rf"\multicolumn{{{len(columns()) + 1}}}{{l}}{{\textit{{{title}}}}} \\"]
        for name, row in table.rows.items():
            texts = []
            for cell, digits in cells(row):
                number = f"${cell.text(pm=chr(92) + 'pm', digits=digits)}$" if cell.mean is not None else "--"
                texts.append(rf"\boldmath\textbf{{{number}}}" if cell.best else number)
            lines.append(f"{in_latex(name)} & " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(tables: Sequence[StreamTable]) -> str:
    """Return CSV with one line for each method, metric and measure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    several = any(table.of for table in tables)
    writer.writerow(["stream", "method", "metric", "measure", "mean", "sd", "seeds", *(["class"] if several else [])])
    for table in tables:
        of = [table.of.removeprefix("class ")] if several else []
        for name, row in table.rows.items():
            for (metric, measure), cell in row.items():
                writer.writerow(map(plain_cell, [table.stream, name, metric, measure, *csv_numbers(cell), *of]))
    return out.getvalue()


def csv_numbers(cell: Cell) -> list[str]:
    """Return mean, standard deviation and number of seeds; empty where there is none."""
    return [*("" if v is None else f"{v:.4f}" for v in (cell.mean, cell.spread)), str(cell.seeds)]


def _about(table: StreamTable) -> str:
    """Return what a table's title adds to the stream: the class, the number of seeds, and notes."""
    counts = sorted({len(seeds) for seeds in table.seeds.values()})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = f"{number} seed{'s' * (counts != [1])}" + (", mean ± sd" if counts != [1] else "")
    unequal = "" if table.has_equal_seeds else "; methods have different seeds, so none is in bold"
    note = f"; {table.reference_note}" if table.reference_note else ""
    return ", ".join(filter(None, [table.of, seeds])) + unequal + note


def enumerated(names: Sequence[str]) -> str:
    """Return names as `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def in_markdown(text: str) -> str:
    """Return a text for a cell of a Markdown table, where a bar would end the cell."""
    return text.replace("|", r"\|")


def in_latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
