"""Write the pages that follow from published runs: tables, claims with verdicts, the figure, the calculation of power.

python -m experiments.evidence results            # writes READMEs, the tables of REPRODUCIBILITY.md, and the figure
python -m experiments.evidence results --check    # only lists pages that are out of date; exit code 1 if any is
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from experiments import aims, baselines, claim_tables, claims, power, regime
from experiments.claims import AUGMENTED, MAIN, Paper, read_paper, stream_of
from experiments.decide import SEEDS
from experiments.explanations import leads
from experiments.figure import differences, drawing
from experiments.guard import page as guard_page
from experiments.mistakes import in_one_line
from smg.bench.folder import planned_in
from smg.bench.planned_runs import read_plan
from smg.evaluation.measures import MEASURES
from smg.evaluation.metrics import COMPARED
from smg.learner.results import read_results
from smg.report.bench_tables import REFERENCE
from smg.report.paired import paired_differences, to_markdown
from smg.report.runs import Run, find_runs
from smg.report.table import Cell, cells, columns, paper_tables
from smg.settings_file import ready

FIRST = "prostate-lite"  # the first comparison, whose record is results/first-stage.md
RECOMMENDED, BASELINE = "prostate-recommended", "jm"
FIGURE = "docs/differences.svg"
PAPERS, FALLING = "Trained as in the paper", "Trained with augmentation and a falling rate"
MADE = "<!-- {0}: made by experiments.evidence -->", "<!-- end of {0} -->"


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


KEPT = {  # the methods of the front page, and what they keep of earlier sites
    "recommended": "two subjects a site",
    "jm": "two subjects a site",
    "sga+c": "two subjects a site",
    "image-free": "no image",
    "finetune": "nothing",
    "pooled": "every scan",
}


def levels(runs: Sequence[Run]) -> str:
    """Return a short table for the front page: BM and FM of each method on each stream; empty without runs."""
    tables = paper_tables(runs)
    streams = [next(run for run in runs if run.stream == table.stream) for table in tables]
    heads = [f"{run.order[0]} to {run.order[-1]}: {what}" for run in streams
             for what in ("BM", f"FM, at {run.unseen}")]  # fmt: skip
    lines = ["| | keeps of earlier sites | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for name, kept in KEPT.items():
        if all(name in table.rows for table in tables):
            row = [table.rows[name]["dsc", measure].text() for table in tables for measure in ("BM", "FM")]
            lines.append(f"| `{name}` | {kept} | {' | '.join(row)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


# --- the files --------------------------------------------------------------------------------------------------------

BESIDE = {  # prostate-lite's methods that are shown in another bench's table, and the suffix of their names there
    "prostate-lite-ablations": (("jm", "c-meta", "g-meta", "sga", "sga+c"), ""),
    "prostate-lite-aug": (("jm", "sga+c"), " plain"),
}
FOLDERS = (
    "The table is also here as [CSV](table.csv) and [LaTeX](table.tex). Each run's folder has its numbers, subject by "
    "subject, its split, and its `run.yaml`. The first command below draws the bench's curves and matrices; the second "
    "runs one run again and compares every number:"
)


def bench_page(bench: Path, paper: Paper) -> str:
    """Return the text of a bench's README."""
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

{differences}{wrapped(FOLDERS)}

    smg report results/{bench.name} --out report.html
    python -m experiments.reproduce "results/{bench.name}/{example}" --data DIR
"""


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


def pages(results: Path) -> dict[Path, str]:
    """Return every file that follows from the runs, with its text."""
    paper = read_paper(results / "paper.csv")
    made = {
        bench.parent / "README.md": bench_page(bench.parent, paper) for bench in sorted(results.glob("*/bench.json"))
    }
    made[results / "guard.md"] = guard_page(results)
    page = results.parent / "REPRODUCIBILITY.md"
    runs, augmented, recommended = (
        find_runs([results / name]) if (results / name).is_dir() else [] for name in (MAIN, AUGMENTED, RECOMMENDED)
    )
    pilot = power.pilot_of(runs)
    if runs:
        made[results / MAIN / "claims.md"] = claim_tables.details(runs, paper)
        if pilot:
            made[results / MAIN / "power.md"] = power.page(pilot)
        trainings = {name: of for name, of in ((PAPERS, runs), (FALLING, augmented)) if differences(of)}
        if trainings:
            made[results.parent / FIGURE] = drawing(trainings)
    blocks = {
        "short": in_short(results, runs, paper),
        "figure": f"![differences to {BASELINE}]({FIGURE})" if results.parent / FIGURE in made else "",
        "claims": under(CLAIMS, both_metrics(runs, paper) if runs else ""),
        "augmented": with_augmentation(augmented, paper),
        "power": under(POWER.format(power.pilot_seeds(pilot)), wrapped(power.in_short(pilot))) if pilot else "",
        "regime": under(REGIME, regime.table(runs) if runs else ""),
        "aims": under(AIMS, aims.table(results)),
        RECOMMENDED: beside_the_paper(recommended, {}),
        "explanations": under(EXPLANATIONS, leads(results)),
        "baselines": under(BASELINES, baselines.table(results)),
    }
    made[page] = page.read_text()
    for name, text in blocks.items():
        made[page] = placed_in(made[page], name, text)
    front = results.parent / "README.md"
    made[front] = placed_in(front.read_text(), "levels", levels(recommended))
    verdicts = f"{claim_tables.in_short(runs, paper)} {are_in(len(runs), planned_of(results / MAIN))}." if runs else ""
    made[front] = placed_in(made[front], "verdicts", wrapped(verdicts))
    return made


# What stands above a table of REPRODUCIBILITY.md; it is left out with a table that has no runs yet.
CLAIMS = (
    "`implied` is what the paper's table shows rather than its text. Every comparison is in "
    "`results/prostate/claims.md`, the table of all methods in `results/prostate/README.md`."
)
POWER = "**How many seeds.** From a pilot of {} seeds:"
REGIME = "**What it costs, and how far it is from the paper.** The scans are stored as 192 x 192 pixels of 8 bit."
AIMS = "The aims, with their intervals: reached if the interval lies above the margin, missed if below it."
AUGMENTATION = (
    "**With augmentation and a falling rate** (`experiments/catalogue.yaml`; the table of all methods is in "
    "`results/catalogue/README.md`) runs scatter less."
)
EXPLANATIONS = (
    "**What could hide the lead of SGA(+c)?** Its lead over joint minimisation with one thing changed, over both "
    "streams, and how much that is more than as it is; trained with augmentation and a falling rate."
)
BASELINES = (
    "**A fair baseline.** GEM's margin, and ISGM's inner rate and epsilon, tried on validation parts; bold is the best "
    "mean of BM and FM."
)


def under(heading: str, table: str) -> str:
    """Return a table below the text that introduces it; nothing if there is no table."""
    return f"{wrapped(heading)}\n\n{table}" if table else ""


def in_short(results: Path, runs: Sequence[Run], paper: Paper) -> str:
    """Return the result in a few sentences: how much has been run, the claims, and the main comparison."""
    if not runs:
        return f"This comparison has not been run yet: `smg bench {MAIN} --data DIR --threads 1`."
    planned, seeds = planned_of(results / MAIN), sorted({run.seed for run in runs})
    made = f"{are_in(len(runs), planned)}, of seeds {', '.join(map(str, seeds))}."
    leads = [claims.find([(s, claims.Comparison("sga+c", claims.measure(name), BASELINE)) for s in claims.STREAMS],
                         runs, "dsc", {}) for name in ("BM", "FM")]  # fmt: skip
    said = [f"{one.text()} points of {name}" for name, one in zip(("BM", "FM"), leads, strict=True)
            if one and one.seeds >= SEEDS]  # fmt: skip
    lead = f" SGA(+c) differs from joint minimisation by {' and '.join(said)}, over both streams." if said else ""
    return wrapped(f"{claim_tables.in_short(runs, paper)}{lead} {made}")


def are_in(count: int, planned: int) -> str:
    return f"{'All' if count == planned else f'{count} of the'} {planned} runs are in"


def with_augmentation(runs: Sequence[Run], paper: Paper) -> str:
    """Return the claims by another training, as far as that has been run."""
    table = claim_tables.verdicts(runs, paper)
    return under(f"{AUGMENTATION} {claim_tables.in_short(runs, paper)}", table)


def both_metrics(runs: Sequence[Run], paper: Paper) -> str:
    """Return the claims by DSC, and folded those by ASD."""
    dsc, asd = (claim_tables.summary(runs, paper, metric) for metric in COMPARED)
    head = "The same by ASD, in mm, negated: above zero is better here, too"
    return f"{dsc}\n\n<details><summary>{head}</summary>\n\n{asd}\n\n</details>"


def placed_in(page: str, what: str, text: str) -> str:
    """Return the page with a text put in the place that is marked for it."""
    begin, end = (mark.format(what) for mark in MADE)
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}{chr(10) if text else ''}{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of published benches")
    parser.add_argument("--check", action="store_true", help="write nothing; list what is out of date")
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
