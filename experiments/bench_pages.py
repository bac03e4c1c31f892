"""The README of a published bench: its question, its table, and how to look at its runs or make one again."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from experiments.claims import MAIN, Paper, stream_of
from smg.bench.folder import planned_in
from smg.bench.planned_runs import read_plan
from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED, is_missed
from smg.learner.results import read_results
from smg.report.bench_tables import REFERENCE
from smg.report.paired import paired_differences, to_markdown
from smg.report.runs import Run, find_runs
from smg.report.table import Cell, cells, columns, paper_tables
from smg.settings_file import ready

FIRST = "prostate-lite"  # the first comparison, whose record is results/first-stage.md


# --- tables -----------------------------------------------------------------------------------------------------------


def beside_the_paper(runs: Sequence[Run], paper: Paper) -> str:
    """Return our table, mean ± standard deviation over seeds, with the paper's numbers below ours."""
    parts = []
    for stream in dict.fromkeys(stream_of(run) for run in runs):
        (table,) = paper_tables([run for run in runs if stream_of(run) == stream])
        heads = columns()
        compared = set(table.seeds.values())
        fair = len(compared) == 1 and len(compared.pop()) > 1  # bold type only where all rows have the same seeds
        lines = [f"**{stream}**: {table.stream.replace('|', 'unseen')}", ""]
        lines += ["| | seeds | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
        for name, row in table.rows.items():
            seeds = ", ".join(map(str, table.seeds[name]))
            keys = [(stream, name, metric, measure) for metric in COMPARED for measure in MEASURES]
            theirs = [f"<br>({paper[key]:.2f})" if key in paper else "" for key in keys]
            ours = [_shown(cell, digits, fair) for cell, digits in cells(row)]
            lines.append(f"| {name} | {seeds} | " + " | ".join(map("".join, zip(ours, theirs, strict=True))) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _shown(cell: Cell, digits: int, fair: bool) -> str:
    return f"**{cell.text(digits=digits)}**" if cell.best and fair else cell.text(digits=digits)


# --- the page --------------------------------------------------------------------------------------------------------

BESIDE = {  # prostate-lite's methods that are shown in another bench's table, and the suffix of their names there
    "prostate-lite-ablations": (("jm", "c-meta", "g-meta", "sga", "sga+c"), ""),
    "prostate-lite-aug": (("jm", "sga+c"), " plain"),
}
FOLDERS = (
    "The table is also here as [CSV](table.csv) and [LaTeX](table.tex). Each run's folder has its numbers, subject by "
    "subject, its split, and its `run.yaml`. The first command below draws the bench's curves and matrices; the second "
    "runs one run again and compares every number:"
)


def bench_page(bench: Path, paper: Paper, more: str = "") -> str:
    """Return the text of a bench's README; `more` stands below its table."""
    runs = find_runs([bench])
    made, count, part = runs[0].results.versions, len(runs), runs[0].results.part
    example = runs[-1].folder.relative_to(bench)
    source = bench.name if bench.name in ready() else f"experiments/{bench.name}.yaml"
    plan, planned = plan_of(bench), planned_of(bench)
    torch = str(made["torch"])
    vectors = sorted({str(run.results.versions["cpu"]) for run in runs if "cpu" in run.results.versions})
    about = [
        *([asked_in(Path(plan))] if Path(plan).exists() else []),
        f"{'All' if count == planned else f'{count} of the'} {planned} runs of `smg bench {source} --data DIR "
        f"--threads {made['threads']}`, torch {', '.join([torch, *vectors])}, measured on the {part} parts.",
        "Mean ± standard deviation over seeds; the best mean of a column is bold if all rows have the same seeds.",
        *without_surface(runs),
    ]
    differences = ""
    if bench.name in BESIDE:
        names, word = BESIDE[bench.name]
        main = find_runs([bench.with_name(FIRST)])
        seeds = {run.seed for run in runs}
        runs = [run.renamed(run.name + word) for run in main if run.name in names and run.seed in seeds] + runs
        reference = REFERENCE + word
        apart = to_markdown(paired_differences(runs, reference), reference).strip()
        differences = f"Differences to `{reference}`, paired over subjects and seeds:\n\n{apart}\n\n"
        if chosen_by := [run for run in map(on_validation, runs) if run]:
            differences += f"The same runs on the validation parts:\n\n{beside_the_paper(chosen_by, {})}\n\n"
        about.append(f"{', '.join(f'`{name}{word}`' for name in names)} are prostate-lite's, of the same seeds.")
    elif bench.name in (FIRST, MAIN):
        about += [
            "The paper's own numbers, of six sites at 384 x 384, are in brackets.",
            "`pooled` and `per-site` are references, not ranked.",
            "[claims.md](claims.md) has every comparison behind the paper's claims.",
        ]
    if (written := bench / "differences.md").exists() and not differences:
        reference = written.read_text().partition(": minus ")[2].partition(",")[0]
        about.append(
            f"[differences.md](differences.md) has the differences to `{reference}`, paired over subjects and seeds, "
            "with 95 % intervals by each pair's own seeds: they say more than bold type."
        )
    return f"""# {bench.name}

{wrapped(" ".join(about))}

{beside_the_paper(runs, paper if bench.name in (FIRST, MAIN) else {})}

{differences}{f"{more}{chr(10) * 2}" if more else ""}{wrapped(FOLDERS)}

    smg report results/{bench.name} --out report.html
    python -m experiments.reproduce "results/{bench.name}/{example}" --data DIR
"""


def without_surface(runs: Sequence[Run]) -> list[str]:
    """Return a sentence on the segmentations that have no ASD, if there are any."""
    rows = [row.classes[run.first_class] for run in runs for row in run.results.subjects]
    count = sum(map(is_missed, rows))
    if not count:
        return []
    return [
        f"{count} of {len(rows):,} segmentations are empty and have no ASD, so its means leave them out; their DSC is "
        "0 and counts."
    ]


def plan_of(bench: Path) -> str:
    """Return the plan of a published bench: the name of a ready configuration, or a path, which may be gone."""
    return bench.name if bench.name in ready() else str(Path(__file__).parent / f"{bench.name}.yaml")


def planned_of(bench: Path) -> int:
    """Return how many runs a published bench has when it is done."""
    plan = plan_of(bench)
    return len(read_plan(plan).runs() if plan in ready() or Path(plan).exists() else planned_in(bench))


def asked_in(plan: Path) -> str:
    """Return the question that a bench's file begins with, without the indented commands."""
    lines = takewhile(lambda line: line.startswith("#"), plan.read_text().splitlines())
    return " ".join(line.removeprefix("# ") for line in lines if not line.startswith("#   "))


def on_validation(run: Run) -> Run | None:
    """Return the run as measured on the validation parts by experiments.afterwards, if it was."""
    path = run.folder / "validation.json"
    return Run(run.folder, read_results(run.folder, path.name)).renamed(run.name) if path.exists() else None


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))
