"""What published runs say of the paper: its table beside ours, and each of its claims with intervals and a verdict.

python benchmarks/evidence.py results            # writes READMEs, claims.md, and REPRODUCIBILITY.md's table
python benchmarks/evidence.py results --check    # says whether they are what the runs say; exit code 1 if not
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from claims import Paper, beyond, details, read_paper, stream_of, summary  # benchmarks/claims.py
from explanations import MAIN, leads  # benchmarks/explanations.py
from friendly import in_one_line

from smg.bench.plan import read_plan, ready
from smg.cli.runs import REFERENCE
from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED
from smg.report.paired import paired_differences, to_markdown
from smg.report.runs import Run, find_runs
from smg.report.table import Cell, cells, columns, paper_tables

MADE = "<!-- {0}: made by benchmarks/evidence.py -->", "<!-- end of {0} -->"


# --- tables -----------------------------------------------------------------------------------------------------------


def beside_the_paper(runs: Sequence[Run], paper: Paper) -> str:
    """Our table, mean ± standard deviation over seeds, with the paper's numbers below ours."""
    parts = []
    for stream in dict.fromkeys(stream_of(run) for run in runs):
        (table,) = paper_tables([run for run in runs if stream_of(run) == stream])
        heads = columns()
        compared = set(table.seeds.values())
        fair = len(compared) == 1 and len(compared.pop()) > 1  # bold type compares the same seeds, or nothing
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


# --- the files --------------------------------------------------------------------------------------------------------

BESIDE = {  # prostate-lite's methods in the same table, and the word they have there behind their names
    "prostate-lite-ablations": (("jm", "c-meta", "g-meta", "sga", "sga+c"), ""),
    "prostate-lite-aug": (("jm", "sga+c"), " plain"),
}
FOLDERS = (
    "The table is here as [CSV](table.csv) and [LaTeX](table.tex) too. In each run's folder are its numbers, subject "
    "by subject, its split, and the `run.yaml` that makes it again:"
)


def bench_page(bench: Path, paper: Paper) -> str:
    """A bench's README."""
    runs = find_runs([bench])
    made, count, part = runs[0].results["versions"], len(runs), runs[0].results["part"]
    example = runs[-1].folder.relative_to(bench)
    source = bench.name if bench.name in ready() else f"benchmarks/{bench.name}.yaml"
    plan = source if source in ready() else str(Path(__file__).parent.parent / source)
    planned = len(read_plan(plan).runs())
    vectors = sorted({run.results["versions"]["cpu"] for run in runs if "cpu" in run.results["versions"]})
    about = [
        *([] if source in ready() else [asked_in(Path(plan))]),
        f"{'All' if count == planned else f'{count} of the'} {planned} runs of `smg bench {source} --data DIR "
        f"--threads {made['threads']}`, torch {', '.join([made['torch'], *vectors])}, measured on the {part} parts.",
        "Mean ± standard deviation over seeds; in bold the best mean of a column, where all have the same ones.",
    ]
    differences = ""
    if bench.name in BESIDE:
        names, word = BESIDE[bench.name]
        main = find_runs([bench.with_name(MAIN)])
        seeds = {run.seed for run in runs}
        runs = [renamed(run, run.name + word) for run in main if run.name in names and run.seed in seeds] + runs
        reference = REFERENCE + word
        apart = to_markdown(paired_differences(runs, reference), reference).strip()
        differences = f"Differences to `{reference}`, paired over subjects and seeds:\n\n{apart}\n\n"
        if chosen_by := [run for run in map(on_validation, runs) if run]:
            differences += f"The same runs on the validation parts:\n\n{beside_the_paper(chosen_by, {})}\n\n"
        about.append(f"{', '.join(f'`{name}{word}`' for name in names)} are prostate-lite's, of the same seeds.")
    elif bench.name == MAIN:
        about += [
            "In brackets the paper's own numbers, of six sites at 384 x 384.",
            "`pooled` and `per-site` are no rivals but a scale.",
            "[claims.md](claims.md) has the paper's claims, with FM over all of the unseen site, not its test part "
            "alone as here, and with narrower intervals, as methods with replay lend each other their noise there.",
        ]
    if (bench / "differences.md").exists() and not differences:
        about.append(
            f"[differences.md](differences.md) has the differences to `{REFERENCE}`, paired over subjects and seeds, "
            "with 95 % intervals by each pair's own seeds: trust these before bold type."
        )
    page = ""
    if (bench / "report.html").exists():
        page = (
            "[report.html](report.html) is the page that `smg report` makes of it (curves over the sequence, matrices, "
            "what the buffer chose, what the objective did), and [report_figures](report_figures) has its figures. "
        )
    return f"""# {bench.name}

{wrapped(" ".join(about))}

{beside_the_paper(runs, paper if bench.name == MAIN else {})}

{differences}{wrapped(page + FOLDERS)}

    python benchmarks/reproduce.py "results/{bench.name}/{example}" --data DIR
"""


def asked_in(plan: Path) -> str:
    """The question a bench's file begins with, without the commands that are indented there."""
    lines = takewhile(lambda line: line.startswith("#"), plan.read_text().splitlines())
    return " ".join(line.removeprefix("# ") for line in lines if not line.startswith("#   "))


def renamed(run: Run, name: str) -> Run:
    return replace(run, results=run.results | {"name": name})


def on_validation(run: Run) -> Run | None:
    """The run as benchmarks/afterwards.py has measured it on the validation parts, if it has."""
    path = run.folder / "validation.json"
    return renamed(Run(run.folder, json.loads(path.read_text())), run.name) if path.exists() else None


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def pages(results: Path) -> dict[Path, str]:
    """Every file that follows from the runs, with its text."""
    paper = read_paper(results / "paper.csv")
    made = {
        bench.parent / "README.md": bench_page(bench.parent, paper) for bench in sorted(results.glob("*/bench.json"))
    }
    runs = find_runs([results / MAIN])
    made[results / MAIN / "claims.md"] = details(runs, paper)
    dsc, asd = (summary(runs, paper, metric) for metric in COMPARED)
    head_asd = "The same by ASD, in mm, turned round: above zero is better here, too"
    folded = f"<details><summary>{head_asd}</summary>\n\n{asd}\n\n</details>"
    page = results.parent / "REPRODUCIBILITY.md"
    made[page] = placed_in(page.read_text(), "claims", f"{dsc}\n\n{folded}")
    if (augmented := results / "prostate-lite-aug").exists():
        more = [renamed(run, f"{run.name}, augmented") for run in find_runs([augmented])]
        made[page] = placed_in(made[page], "beyond", beyond(runs, more))
    made[page] = placed_in(made[page], "explanations", leads(results))
    return made


def placed_in(page: str, what: str, text: str) -> str:
    """The page with a text in the place that is marked for it."""
    begin, end = (mark.format(what) for mark in MADE)
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of published benches")
    parser.add_argument("--check", action="store_true", help="write nothing, say what is out of date")
    options = parser.parse_args()
    made = pages(options.results)
    stale = {path: text for path, text in made.items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path}: {'out of date' if options.check else 'written'}")
        if not options.check:
            path.write_text(text)
    sys.exit(bool(stale) and options.check)


if __name__ == "__main__":
    with in_one_line():
        main()
