"""The table in the paper's form: methods by BM, BT, FM, FT of DSC and ASD, mean ± standard deviation over seeds."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from smg.report.runs import Run
from smg.sites.labels import first_class

BOUNDS = {"pooled": "keeps every scan", "per-site": "has a network for each site"}  # no rivals, but a scale
MEASURES = ("BM", "BT", "FM", "FT")
METRICS = {"dsc": ("DSC %", 100.0, "higher"), "asd": ("ASD mm", 1.0, "lower")}
DIGITS = {"dsc": 1, "asd": 2}
# Of every measure, which way is better: forgetting less ASD or transferring more of it are signs of the same formula.


@dataclass(frozen=True)
class Cell:
    """One measure of one method on one stream, over its seeds, in the unit of its column."""

    mean: float | None
    spread: float | None  # sample standard deviation; none of a single seed
    seeds: int
    best: bool = False

    def text(self, pm: str = "±", digits: int = 1) -> str:
        if self.mean is None:
            return "-"
        spread = "" if self.spread is None else f" {pm} {self.spread:.{digits}f}"
        return f"{printed(self.mean, digits)}{spread}"


def printed(value: float, digits: int) -> str:
    """To so many digits; a zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


@dataclass(frozen=True)
class StreamTable:
    """The methods of one stream."""

    stream: str
    rows: dict[str, dict[tuple[str, str], Cell]]  # method -> (metric, measure) -> cell
    seeds: dict[str, tuple[int, ...]]
    of: str = ""  # `class zone`, where there are several: the first is what is compared
    bounds: dict[str, str] = field(default_factory=dict)  # rows that are no rivals, and why

    @property
    def rivals(self) -> list[str]:
        return [name for name in self.rows if name not in self.bounds] or list(self.rows)

    @property
    def scale(self) -> str:
        """What is to be said of the rows that are no rivals, wherever a best one is named."""
        if not self.bounds:
            return ""
        are = "is a scale, no rival" if len(self.bounds) == 1 else "are a scale, not rivals"
        return f"{listed([f'{name} ({why})' for name, why in self.bounds.items()])} {are}"

    @property
    def even(self) -> bool:
        """Whether all rivals have the same seeds: else their means are no comparison."""
        return len({self.seeds[name] for name in self.rivals}) == 1

    @property
    def common(self) -> list[int]:
        """The seeds that all rivals have."""
        return sorted(set.intersection(*(set(self.seeds[name]) for name in self.rivals)))


def paper_tables(runs: Sequence[Run]) -> list[StreamTable]:
    """One table a stream; methods in the order they were met."""
    tables = []
    for stream in dict.fromkeys(run.stream for run in runs):
        here = [run for run in runs if run.stream == stream]
        names = list(dict.fromkeys(run.name for run in here))
        rows = {name: _row([run for run in here if run.name == name]) for name in names}
        seeds = {name: tuple(sorted(run.seed for run in here if run.name == name)) for name in names}
        bounds = {run.name: BOUNDS[run.results["method"]] for run in here if run.results["method"] in BOUNDS}
        table = StreamTable(stream, rows, seeds, _class_of(here[0]), bounds)
        tables.append(replace(table, rows=_with_best(rows, bounds)) if table.even else table)
    return tables


def _class_of(run: Run) -> str:
    several = len(run.results.get("classes", {})) > 1
    return f"class {first_class(run.results)}" if several else ""


def _row(runs: Sequence[Run]) -> dict[tuple[str, str], Cell]:
    row = {}
    for metric, (_, scale, _) in METRICS.items():
        for measure in MEASURES:
            values = [scale * v for run in runs if (v := run.measure(metric, measure)) is not None]
            row[metric, measure] = Cell(
                statistics.fmean(values) if values else None,
                statistics.stdev(values) if len(values) > 1 else None,
                len(values),
            )
    return row


def _with_best(
    rows: dict[str, dict[tuple[str, str], Cell]], bounds: Collection[str]
) -> dict[str, dict[tuple[str, str], Cell]]:
    marked = {name: dict(row) for name, row in rows.items()}
    for metric in METRICS:
        for measure in MEASURES:
            rivals = {name: row[metric, measure].mean for name, row in rows.items() if name not in bounds}
            means = {name: mean for name, mean in rivals.items() if mean is not None}
            if len(means) < 2:
                continue
            for name in leaders(means, metric):
                marked[name][metric, measure] = replace(rows[name][metric, measure], best=True)
    return marked


def leaders(means: dict[str, float], metric: str) -> list[str]:
    """Who has the best mean, and whose is equal to it as printed."""
    if not means:
        return []
    best = printed((max if METRICS[metric][2] == "higher" else min)(means.values()), DIGITS[metric])
    return [name for name, mean in means.items() if printed(mean, DIGITS[metric]) == best]


def columns() -> list[str]:
    return [f"{measure} {METRICS[metric][0]}" for metric in METRICS for measure in MEASURES]


def cells(row: dict[tuple[str, str], Cell]) -> list[tuple[Cell, int]]:
    """In the order of `columns`, with the digits each is told to."""
    return [(row[metric, measure], DIGITS[metric]) for metric in METRICS for measure in MEASURES]


def to_markdown(tables: Sequence[StreamTable]) -> str:
    """A GitHub table a stream; best in bold."""
    parts = []
    for table in tables:
        lines = [f"**{table.stream.replace('|', 'unseen')}**, {_about(table)}", ""]
        lines += ["| | " + " | ".join(columns()) + " |", "|---|" + "---:|" * len(columns())]
        for name, row in table.rows.items():
            texts = [f"**{c.text(digits=d)}**" if c.best else c.text(digits=d) for c, d in cells(row)]
            lines.append(f"| {in_markdown(name)} | " + " | ".join(texts) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def to_latex(tables: Sequence[StreamTable]) -> str:
    """A tabular with booktabs rules, for a paper; best in bold."""
    lines = [r"\begin{tabular}{l" + "r" * len(columns()) + "}", r"\toprule"]
    heads = [
        rf"\multicolumn{{{len(MEASURES)}}}{{c}}{{{head.replace('%', chr(92) + '%')}}}"
        for head, _, _ in METRICS.values()
    ]
    lines += [" & " + " & ".join(heads) + r" \\", " & " + " & ".join(MEASURES * len(METRICS)) + r" \\"]
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
    """One line for each method, metric and measure, for a spreadsheet or a script."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["stream", "method", "metric", "measure", "mean", "sd", "seeds"])
    for table in tables:
        for name, row in table.rows.items():
            for (metric, measure), cell in row.items():
                numbers = ["" if v is None else f"{v:.4f}" for v in (cell.mean, cell.spread)]
                writer.writerow([table.stream, name, metric, measure, *numbers, cell.seeds])
    return out.getvalue()


def _about(table: StreamTable) -> str:
    """The class, if there are several, and over how many seeds."""
    counts = sorted({len(seeds) for seeds in table.seeds.values()})
    told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = f"{told} seed{'s' * (counts != [1])}" + (", mean ± sd" if counts != [1] else "")
    uneven = "" if table.even else "; not the same for all, so nothing is in bold"
    scale = f"; {table.scale}" if table.scale else ""
    return ", ".join(filter(None, [table.of, seeds])) + uneven + scale


def listed(names: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def in_markdown(text: str) -> str:
    """A cell's text: a bar would end it."""
    return text.replace("|", r"\|")


def in_latex(text: str) -> str:
    """A text in which nothing is a command."""
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
