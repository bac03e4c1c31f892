"""Write the pages that follow from published runs: tables, claims with verdicts, the figure, the calculation of power.

python -m experiments.evidence results            # writes READMEs, the tables of REPRODUCIBILITY.md, and the figure
python -m experiments.evidence results --check    # only lists pages that are out of date; exit code 1 if any is
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import aims, baselines, claim_tables, claims, explanations, power, regime
from experiments.bench_pages import bench_page, planned_of, wrapped
from experiments.claims import AUGMENTED, MAIN, Paper, read_paper
from experiments.decide import SEEDS
from experiments.figure import differences, drawing
from experiments.guard import page as guard_page
from experiments.mistakes import in_one_line
from smg.report.runs import Run, find_runs
from smg.report.table import paper_tables

RECOMMENDED, BASELINE = aims.BENCH, "jm"
FIGURE = "docs/differences.svg"
TRAININGS = {  # the parts of the figure
    MAIN: "Trained as in the paper",
    AUGMENTED: "The same network with augmentation and a falling rate",
    RECOMMENDED: "As a user would train",
}
MADE = "<!-- {0}: made by experiments.evidence -->", "<!-- end of {0} -->"


# --- the front page ---------------------------------------------------------------------------------------------------

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


def pages(results: Path) -> dict[Path, str]:
    """Return every file that follows from the runs, with its text."""
    paper = read_paper(results / "paper.csv")
    below = {explanations.HERE: explanations.page(results), baselines.BENCH: baselines.page(results)}
    made = {
        bench.parent / "README.md": bench_page(bench.parent, paper, below.get(bench.parent.name, ""))
        for bench in sorted(results.glob("*/bench.json"))
    }
    made[results / "guard.md"] = guard_page(results)
    trained = {name: find_runs([results / name]) if (results / name).is_dir() else [] for name in TRAININGS}
    runs, recommended = trained[MAIN], trained[RECOMMENDED]
    pilot = power.pilot_of(runs)
    if runs:
        made[results / MAIN / "claims.md"] = claim_tables.details(runs, paper)
    if pilot:
        made[results / MAIN / "power.md"] = power.page(pilot)
    if text := aims.page(results):
        made[results / RECOMMENDED / "aims.md"] = text
    if drawn := {TRAININGS[name]: of for name, of in trained.items() if has_enough(of)}:
        made[results.parent / FIGURE] = drawing(drawn)
    verdicts = wrapped(in_short(results, runs, paper))
    blocks = {
        "short": verdicts,
        "levels": levels(recommended),
        "pairs": aims.pairs(results),
        "aims": aims.in_short(results),
        "claims": claim_tables.summary(runs, trained[AUGMENTED], paper) if runs else "",
        "figure": f"![{CAPTION}]({FIGURE})" if drawn else "",
        "power": wrapped(power.in_short(pilot)) if pilot else "",
        "regime": regime.table(runs) if runs else "",
        "explanations": explanations.in_short(results),
        "baselines": baselines.in_short(results),
    }
    made[results.parent / "REPRODUCIBILITY.md"] = filled(results.parent / "REPRODUCIBILITY.md", blocks)
    shorter = wrapped(claim_tables.in_short(runs, paper)) if runs else verdicts
    front = {"levels": levels(recommended), "verdicts": shorter}
    made[results.parent / "README.md"] = filled(results.parent / "README.md", front)
    return made


CAPTION = "differences to joint minimisation, with 95 % intervals"


def has_enough(runs: Sequence[Run]) -> bool:
    """Return whether a training has a part in the figure: some difference of enough seeds."""
    return any(one.seeds >= SEEDS for one in differences(runs).values())


def in_short(results: Path, runs: Sequence[Run], paper: Paper) -> str:
    """Return the result in a few sentences: the claims, the main comparison, and how much has been run."""
    if not runs:
        return f"This comparison has not been run yet: `smg bench {MAIN} --data DIR --threads 1`."
    planned, seeds = planned_of(results / MAIN), sorted({run.seed for run in runs})
    leads = [claims.over_streams("sga+c", BASELINE, name, runs) for name in ("BM", "FM")]
    said = [f"{one.text()} points of {name}" for name, one in zip(("BM", "FM"), leads, strict=True)
            if one and one.seeds >= SEEDS]  # fmt: skip
    lead = f" SGA(+c) differs from joint minimisation by {' and '.join(said)}, over both streams." if said else ""
    made = f"{'All' if len(runs) == planned else f'{len(runs)} of'} {planned} runs are done"
    return f"{claim_tables.in_short(runs, paper)}{lead} {made} (seeds {', '.join(map(str, seeds))})."


def filled(page: Path, blocks: dict[str, str]) -> str:
    """Return a page with a text put in each place that is marked for it."""
    text = page.read_text()
    for name, block in blocks.items():
        text = placed_in(text, name, block)
    return text


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
