"""What published runs say of the paper: its table beside ours, and each of its claims with an interval and a verdict.

    python benchmarks/evidence.py results            # writes the README of each bench, and REPRODUCIBILITY.md's table
    python benchmarks/evidence.py results --check    # says whether they are what the runs say; exit code 1 if not

A claim is a statement that something is above zero: a difference of two methods' measures, paired over subjects and
seeds, or a change along the sequence. On each stream, by its 95 % bootstrap interval (`smg.report.paired`),

    holds            low > 0
    does not         high < 0, or zero within the interval and what the paper reports above it
    cannot be told   otherwise: zero and the paper's number are both within
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smg.bench.plan import ready
from smg.cli.runs import REFERENCE
from smg.report.paired import by_round, interval, paired_differences, to_markdown, values_of
from smg.report.runs import Run, find_runs
from smg.report.table import MEASURES, METRICS, Cell, cells, paper_tables

STREAMS = ("A-first", "F-first")
BEGIN, END = "<!-- claims: made by benchmarks/evidence.py -->", "<!-- end of claims -->"
Strata = list[list[np.ndarray]]  # seeds, sites, values of subjects
Paper = dict[tuple[str, str, str, str], float]  # (stream, method, metric, measure)


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """Something that the paper says is above zero, in points of DSC."""

    says: str
    what: str
    strata: Callable[[Sequence[Run]], Strata]
    papers: Callable[[Paper, str], float | None] = lambda paper, stream: None


def values(run: Run, measure: str) -> dict[str, dict[str, float]]:
    """DSC, site by site and subject by subject: of FM over all that the unseen site has (benchmarks/afterwards.py)."""
    more = run.folder / "unseen.json"
    if measure != "FM" or not more.exists():
        return values_of(run, "dsc", measure)
    rows = json.loads(more.read_text())
    return {rows[0]["site"]: {row["subject"]: next(iter(row["classes"].values()))["dsc"] for row in rows}}


def of_measure(method: str, measure: str, sign: int, says: str) -> Claim:
    """A method's own measure is above (sign 1) or below zero (sign -1)."""

    def strata(runs: Sequence[Run]) -> Strata:
        return [
            [sign * np.array(list(site.values())) for site in values(run, measure).values()]
            for run in runs
            if run.name == method
        ]

    what = f"{method}, {'-' * (sign < 0)}{measure}"
    return Claim(says, what, strata, lambda paper, stream: sign * paper[stream, method, "dsc", measure])


def over(method: str, rival: str, measure: str, says: str) -> Claim:
    """A method's measure is above a rival's: higher is better for all four of DSC."""

    def strata(runs: Sequence[Run]) -> Strata:
        return paired(runs, method, rival, lambda run: values(run, measure))

    def papers(paper: Paper, stream: str) -> float:
        return paper[stream, method, "dsc", measure] - paper[stream, rival, "dsc", measure]

    return Claim(says, f"{method} - {rival}, {measure}", strata, papers)


def along(method: str, which: int, sign: int, says: str) -> Claim:
    """From the first round to the last of the stream, DSC on a site (0 the first, -1 the unseen) rises or falls."""

    def change(run: Run) -> dict[str, dict[str, float]]:
        order, unseen = run.results["stream"]["order"], run.results["stream"]["unseen"]
        site, table = [*order, unseen][which], by_round(run, "dsc")
        first, last = table[order[0], site], table[order[-1], site]
        return {site: {case: sign * (last[case] - first[case]) for case in last if case in first}}

    def strata(runs: Sequence[Run]) -> Strata:
        return [[np.array(list(site.values())) for site in change(run).values()] for run in runs if run.name == method]

    where = "first site" if which == 0 else "unseen site"
    return Claim(says, f"{method}, {where}, {'fall' if sign < 0 else 'rise'} from first to last round", strata)


def at_all_lengths(method: str, rival: str, which: int, says: str) -> Claim:
    """Over the rounds after the first, DSC on a site is above a rival's."""

    def level(run: Run) -> dict[str, dict[str, float]]:
        order, unseen = run.results["stream"]["order"], run.results["stream"]["unseen"]
        site, table = [*order, unseen][which], by_round(run, "dsc")
        rounds = [table[name, site] for name in order[1:]]
        return {site: {case: float(np.mean([r[case] for r in rounds])) for case in rounds[0]}}

    def strata(runs: Sequence[Run]) -> Strata:
        return paired(runs, method, rival, level)

    where = "first site" if which == 0 else "unseen site"
    return Claim(says, f"{method} - {rival}, {where}, mean over rounds 2 to T", strata)


def paired(runs: Sequence[Run], method: str, rival: str, of: Callable[[Run], dict[str, dict[str, float]]]) -> Strata:
    """Subject by subject, for the seeds that both methods have."""
    ours, theirs = ({run.seed: of(run) for run in runs if run.name == name} for name in (method, rival))
    both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    sites = [[[x - b[s][case] for case, x in a[s].items() if case in b[s]] for s in a] for a, b in both]
    return [[np.array(site) for site in seed if site] for seed in sites]


def claims() -> Iterator[Claim]:
    """In the order of the paper."""
    yield of_measure("finetune", "BT", -1, "Fine-tuning on one site after another forgets")
    for measure in ("BM", "FM"):
        yield over("jm", "finetune", measure, "Replay remembers and generalises better than fine-tuning")
    yield of_measure("jm", "BT", -1, "Joint minimisation still forgets")
    for method in ("gem", "c-meta"):
        yield over(method, "jm", "BM", "CL methods remember better than joint minimisation")
    for method in ("isgm", "g-meta"):
        yield over(method, "jm", "FM", "DG methods generalise better than joint minimisation")
    yield over("c-meta", "g-meta", "BM", "Orientational alignment is the one that remembers")
    yield over("g-meta", "c-meta", "FM", "Arbitrary alignment is the one that generalises")
    for rival in ("jm", "gem", "c-meta", "isgm", "g-meta"):
        for measure in ("BM", "FM"):
            yield over("sga", rival, measure, "SGA outperforms baselines, CL and DG")
    for rival in ("jm", "gem", "c-meta", "isgm", "g-meta"):
        for measure in ("BM", "FM"):
            yield over("sga+c", rival, measure, "SGA(+c) outperforms them all")
    yield over("sga+c", "c-meta", "BT", "SGA(+c) has an obvious advantage over C-Meta in BT")
    yield over("sga+c", "g-meta", "FT", "SGA(+c) has an obvious advantage over G-Meta in FT")
    for measure in MEASURES:
        yield over("sga+c", "sga", measure, "The comprehensive buffer improves SGA")
    for method in ("finetune", "jm"):
        yield along(method, 0, -1, "A longer sequence forgets more of the first site")
    for method in ("finetune", "jm", "sga+c"):
        yield along(method, -1, 1, "A longer sequence generalises better to the unseen site")
    for which in (0, -1):
        yield at_all_lengths("sga+c", "jm", which, "SGA(+c) stays above the others at every length")


def verdict(low: float, high: float, papers: float | None) -> str:
    if low > 0:
        return "holds"
    if high < 0 or (papers is not None and papers > high):
        return "does not"
    return "cannot be told"


def claims_table(runs: Sequence[Run], paper: Paper) -> str:
    """One line a claim and comparison: on each stream the number, its interval and, in brackets, the paper's."""
    lines = ["| the paper says | measured, points of DSC | A-first | F-first | |", "|---|---|---:|---:|---|"]
    before = ""
    for claim in claims():
        told, verdicts = [], {}
        for stream in STREAMS:
            here = [run for run in runs if stream_of(run) == stream]
            found = interval(claim.strata(here), 100.0, 10_000, 0)
            papers = claim.papers(paper, stream)
            reported = "" if papers is None else f" ({papers:+.1f})"
            if found is None:
                told.append(f"-{reported}")
                continue
            mean, low, high = found
            verdicts[stream] = verdict(low, high, papers)
            told.append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]{reported}")
        says = claim.says if claim.says != before else ""
        before = claim.says
        lines.append(f"| {says} | {claim.what} | {told[0]} | {told[1]} | {_whole(verdicts)} |")
    return "\n".join([*lines, "", f"Of {'; '.join(_seeds(runs, stream) for stream in STREAMS)}."])


def _seeds(runs: Sequence[Run], stream: str) -> str:
    """How many seeds the methods have of a stream."""
    here = [run.name for run in runs if stream_of(run) == stream]
    counts = sorted({here.count(name) for name in here}) or [0]
    told = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{stream}, {told} seed{'s' * (counts != [1])} of {len(set(here))} methods"


def _whole(verdicts: dict[str, str]) -> str:
    if not verdicts:
        return "not run"
    if len(set(verdicts.values())) == 1 and len(verdicts) == len(STREAMS):
        return f"**{next(iter(verdicts.values()))}**"
    return ", ".join(f"{said} on {stream}" for stream, said in verdicts.items())


# --- tables -----------------------------------------------------------------------------------------------------------


def read_paper(path: Path) -> Paper:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(r["stream"], r["method"], r["metric"], r["measure"]): float(r["value"]) for r in rows}


def beside_the_paper(runs: Sequence[Run], paper: Paper) -> str:
    """Our table, mean ± standard deviation over seeds, with the paper's numbers below ours."""
    parts = []
    for stream in STREAMS:
        here = [run for run in runs if stream_of(run) == stream]
        for table in paper_tables(here):
            heads = [f"{measure} {METRICS[metric][0]}" for metric in METRICS for measure in MEASURES]
            lines = [f"**{stream}**: {table.stream.replace('|', 'unseen')}", ""]
            lines += ["| | seeds | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
            for name, row in table.rows.items():
                seeds = ", ".join(map(str, table.seeds[name]))
                theirs = [
                    f"({paper[stream, name, metric, measure]})" if (stream, name, metric, measure) in paper else ""
                    for metric in METRICS
                    for measure in MEASURES
                ]
                ours = [_shown(cell, digits) for cell, digits in cells(row)]
                both = [f"{a}<br>{b}" if b else a for a, b in zip(ours, theirs, strict=True)]
                lines.append(f"| {name} | {seeds} | " + " | ".join(both) + " |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _shown(cell: Cell, digits: int) -> str:
    return f"**{cell.text(digits=digits)}**" if cell.best else cell.text(digits=digits)


def stream_of(run: Run) -> str:
    return run.folder.parents[1].name


# --- the files --------------------------------------------------------------------------------------------------------

BESIDE = {"prostate-lite-ablations": ("jm", "c-meta", "g-meta", "sga", "sga+c")}  # of prostate-lite, in the same table


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
    about = [
        f"{count} runs of `smg bench {source} --data DIR --threads {made['threads']}`, torch {made['torch']},",
        f"measured on the {part} parts.",
        "Mean ± standard deviation over seeds. In bold the best mean of a column.",
    ]
    differences = ""
    if bench.name in BESIDE:
        main = find_runs([bench.with_name("prostate-lite")])
        runs = [run for run in main if run.name in BESIDE[bench.name]] + runs
        apart = to_markdown(paired_differences(runs, REFERENCE), REFERENCE).strip()
        differences = f"Differences to `{REFERENCE}`, paired over subjects and seeds:\n\n{apart}\n\n"
        about.append(f"{', '.join(f'`{name}`' for name in BESIDE[bench.name])} are prostate-lite's.")
        paper = {}
    elif part == "validation":
        paper = {}
    else:
        about.append("In brackets the paper's own numbers, of six sites at 384 x 384.")
        about.append("`pooled` and `per-site` are no rivals but a scale.")
        about.append(
            f"[differences.md](differences.md) has the differences to `{REFERENCE}`, paired over subjects and seeds, "
            "with 95 % intervals: trust these before bold type."
        )
    page = ""
    if (bench / "report.html").exists():
        page = (
            "[report.html](report.html) is the page that `smg report` makes of it (curves over the sequence, matrices, "
            "what the buffer chose, what the objective did), and [report_figures](report_figures) has its figures. "
        )
    return f"""# {bench.name}

{wrapped(" ".join(about))}

{beside_the_paper(runs, paper)}

{differences}{wrapped(page + FOLDERS)}

    python benchmarks/reproduce.py "results/{bench.name}/{example}" --data DIR
"""


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def pages(results: Path) -> dict[Path, str]:
    """Every file that follows from the runs, with its text."""
    paper = read_paper(results / "paper.csv")
    made = {
        bench.parent / "README.md": bench_page(bench.parent, paper) for bench in sorted(results.glob("*/bench.json"))
    }
    page = results.parent / "REPRODUCIBILITY.md"
    text = page.read_text()
    head, rest = text.split(BEGIN)
    table = claims_table(find_runs([results / "prostate-lite"]), paper)
    made[page] = f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"
    return made


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
    main()
