"""What published runs say of the paper: its table beside ours, and each of its claims with intervals and a verdict.

    python benchmarks/evidence.py results            # writes READMEs, claims.md, and REPRODUCIBILITY.md's table
    python benchmarks/evidence.py results --check    # says whether they are what the runs say; exit code 1 if not

A claim is a list of comparisons, each of which the paper reports to be above zero: a difference of two methods'
measures, paired over subjects and seeds, or a change along the sequence. By its 95 % interval (`smg.report.paired`)

    holds      low > 0
    reversed   high < 0
    smaller    zero is within, and what the paper reports is above the interval
    open       otherwise

and a claim holds if all its comparisons do, holds in part if some do, does not if none does and half or more are
reversed or smaller, and else cannot be told. Nothing is said of fewer than three seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smg.bench.plan import read_plan, ready
from smg.cli.runs import REFERENCE
from smg.report.paired import Values, apart, by_round, interval, paired_differences, to_markdown, values_of
from smg.report.runs import Run, find_runs
from smg.report.table import MEASURES, METRICS, Cell, cells, paper_tables

STREAMS = ("A-first", "F-first")  # the paper's two
SEEDS = 3  # fewer say nothing
BEGIN, END = "<!-- claims: made by benchmarks/evidence.py -->", "<!-- end of claims -->"
Paper = dict[tuple[str, str, str, str], float]  # (stream, method, metric, measure)


# --- comparisons ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Something of which the paper reports that it is above zero; for distances, the other way round."""

    what: str
    seeds: Callable[[Sequence[Run], str], list[Values]]  # of one stream's runs, by a metric
    papers: Callable[[Paper, str, str], float | None] = lambda paper, stream, metric: None


def better(metric: str) -> int:
    return 1 if METRICS[metric][2] == "higher" else -1


def times(sign: int, values: Values) -> Values:
    return {site: {case: sign * value for case, value in of.items()} for site, of in values.items()}


def measured(run: Run, metric: str, measure: str) -> Values:
    """What a measure is the mean of; FM is over all that the unseen site has (benchmarks/afterwards.py)."""
    if measure != "FM":
        return values_of(run, metric, measure)
    rows = json.loads((run.folder / "unseen.json").read_text())
    told = {row["subject"]: next(iter(row["classes"].values()))[metric] for row in rows}
    return {rows[0]["site"]: {case: value for case, value in told.items() if value is not None}}


def paired(runs: Sequence[Run], method: str, rival: str, of: Callable[[Run], Values]) -> list[Values]:
    """Subject by subject, for the seeds that both methods have."""
    ours, theirs = ({run.seed: of(run) for run in runs if run.name == name} for name in (method, rival))
    return [apart(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def over(method: str, rival: str, measure: str) -> Comparison:
    """A method's measure is better than a rival's."""

    def seeds(runs: Sequence[Run], metric: str) -> list[Values]:
        found = paired(runs, method, rival, lambda run: measured(run, metric, measure))
        return [times(better(metric), values) for values in found]

    def papers(paper: Paper, stream: str, metric: str) -> float:
        both = [paper[stream, name, metric, measure] for name in (method, rival)]
        return better(metric) * (both[0] - both[1])

    return Comparison(f"{method} over {rival}, {measure}", seeds, papers)


def forgets(method: str) -> Comparison:
    """BT is worse than nothing."""

    def seeds(runs: Sequence[Run], metric: str) -> list[Values]:
        return [times(-better(metric), values_of(run, metric, "BT")) for run in runs if run.name == method]

    return Comparison(f"{method}, -BT", seeds, lambda paper, stream, m: -better(m) * paper[stream, method, m, "BT"])


def along(method: str, which: int, sign: int) -> Comparison:
    """From the first to the last round of the stream a site (0 the first, -1 the unseen) gets better, or worse."""

    def change(run: Run, metric: str) -> Values:
        order, site = run.results["stream"]["order"], site_of(run, which)
        table = by_round(run, metric)
        return apart({site: table.get((order[-1], site), {})}, {site: table.get((order[0], site), {})})

    def seeds(runs: Sequence[Run], metric: str) -> list[Values]:
        return [times(sign * better(metric), change(run, metric)) for run in runs if run.name == method]

    return Comparison(f"{method}, {_site(which)}, {'rise' if sign > 0 else 'fall'} from first round to last", seeds)


def at_length(method: str, rival: str, which: int, round: int) -> Comparison:
    """After a round, a method is better than a rival on a site."""

    def level(run: Run, metric: str) -> Values:
        site = site_of(run, which)
        return {site: by_round(run, metric).get((run.results["stream"]["order"][round - 1], site), {})}

    def seeds(runs: Sequence[Run], metric: str) -> list[Values]:
        found = paired(runs, method, rival, lambda run: level(run, metric))
        return [times(better(metric), values) for values in found]

    return Comparison(f"{method} over {rival}, {_site(which)} after round {round}", seeds)


def site_of(run: Run, which: int) -> str:
    told = run.results["stream"]
    return str([*told["order"], told["unseen"]][which])


def _site(which: int) -> str:
    return "first site" if which == 0 else "unseen site"


# --- claims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What the paper says, in our words."""

    says: str
    comparisons: list[Comparison]


RIVALS = ("jm", "gem", "c-meta", "isgm", "g-meta")
CL, DG = ("gem", "c-meta"), ("isgm", "g-meta")


def claims() -> Iterator[Claim]:
    """In the paper's order. It draws the curves over the sequence for A-first alone."""
    yield Claim("Fine-tuning on one site after another forgets", [forgets("finetune")])
    for measure, does in (("BM", "remembers"), ("FM", "generalises")):
        yield Claim(f"Replay {does} better than fine-tuning", [over("jm", "finetune", measure)])
    yield Claim("Joint minimisation still forgets", [forgets("jm")])
    yield Claim("CL remembers better than joint minimisation", [over(m, "jm", x) for m in CL for x in ("BM", "BT")])
    yield Claim("CL generalises better than joint minimisation", [over(m, "jm", x) for m in CL for x in ("FM", "FT")])
    yield Claim("DG generalises better than joint minimisation", [over(m, "jm", x) for m in DG for x in ("FM", "FT")])
    yield Claim("DG remembers better than joint minimisation", [over(m, "jm", x) for m in DG for x in ("BM", "BT")])
    yield Claim("CL remembers better than DG", [over(a, b, x) for a in CL for b in DG for x in ("BM", "BT")])
    yield Claim("DG generalises better than CL", [over(a, b, x) for a in DG for b in CL for x in ("FM", "FT")])
    for method, says in (
        ("sga", "SGA outperforms them on almost all metrics"),
        ("sga+c", "SGA(+c) is the best of all"),
    ):
        yield Claim(says, [over(method, rival, measure) for rival in RIVALS for measure in MEASURES])
    yield Claim("SGA(+c) has an obvious advantage over C-Meta in BT", [over("sga+c", "c-meta", "BT")])
    yield Claim("SGA(+c) has an obvious advantage over G-Meta in FT", [over("sga+c", "g-meta", "FT")])
    yield Claim(
        "Both alignments together beat each alone", [over("sga", m, x) for m in ("c-meta", "g-meta") for x in MEASURES]
    )
    yield Claim("The comprehensive buffer improves SGA", [over("sga+c", "sga", measure) for measure in MEASURES])
    everyone = ("finetune", *RIVALS, "sga", "sga+c")
    yield Claim("A longer sequence forgets more of the first site", [along(method, 0, -1) for method in everyone])
    yield Claim("A longer sequence helps at the unseen site", [along(method, -1, 1) for method in everyone])
    lengths = [at_length("sga+c", m, which, r) for m in ("finetune", *RIVALS) for which in (0, -1) for r in (2, 3, 4)]
    yield Claim("SGA(+c) stays above the others at every length", lengths)


@dataclass(frozen=True)
class Found:
    """A comparison on one stream."""

    what: str
    mean: float
    low: float
    high: float
    papers: float | None
    seeds: int

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "holds"
        if self.high < 0:
            return "reversed"
        return "smaller" if self.papers is not None and self.papers > self.high else "open"

    def text(self, digits: int = 1) -> str:
        reported = "" if self.papers is None else f" ({self.papers:+.{digits}f})"
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]{reported}"


def found(claim: Claim, runs: Sequence[Run], stream: str, metric: str, paper: Paper) -> list[Found]:
    """The comparisons that have runs, and that the paper does report above zero."""
    here = [run for run in runs if stream_of(run) == stream]
    results = []
    for comparison in claim.comparisons:
        seeds = [values for values in comparison.seeds(here, metric) if any(values.values())]
        papers = comparison.papers(paper, stream, metric)
        one = interval(seeds, METRICS[metric][1])
        if one and (papers is None or papers > 0):
            results.append(Found(comparison.what, *one, papers, len(seeds)))
    return results


def verdict(results: Sequence[Found], expected: int) -> str:
    """Of a claim, from all its comparisons on both streams."""
    if not expected or not results or min(one.seeds for one in results) < SEEDS or len(results) < expected:
        fewest = min((one.seeds for one in results), default=0) if len(results) >= expected else 0
        return f"not told by {fewest} seed{'s' * (fewest != 1)}" if fewest else "not all run yet"
    counts = Counter(one.verdict for one in results)
    if counts["holds"] == len(results):
        return "**holds**"
    if counts["holds"]:
        return f"holds in part: {counts['holds']} of {len(results)}"
    return "**does not**" if 2 * (counts["reversed"] + counts["smaller"]) >= len(results) else "cannot be told"


def summary(runs: Sequence[Run], paper: Paper, metric: str) -> str:
    """One line a claim."""
    digits = 1 if metric == "dsc" else 2
    lines = ["| the paper says | A-first | F-first | |", "|---|---|---|---|"]
    for claim in claims():
        by_stream = [found(claim, runs, stream, metric, paper) for stream in STREAMS]
        told = [_told(results, digits) for results in by_stream]
        expected = sum(_expected(claim, paper, stream, metric) for stream in STREAMS)
        lines.append(f"| {claim.says} | {' | '.join(told)} | {verdict([*by_stream[0], *by_stream[1]], expected)} |")
    return "\n".join(lines)


def _expected(claim: Claim, paper: Paper, stream: str, metric: str) -> int:
    papers = [comparison.papers(paper, stream, metric) for comparison in claim.comparisons]
    return sum(value is None or value > 0 for value in papers)


def _told(results: Sequence[Found], digits: int) -> str:
    if not results:
        return "-"
    if len(results) == 1:
        return results[0].text(digits)
    counts = Counter(one.verdict for one in results)
    tally = ", ".join(f"{counts[name]} {name}" for name in ("holds", "reversed", "smaller", "open") if counts[name])
    means, papers = [one.mean for one in results], [one.papers for one in results if one.papers is not None]
    reported = f" ({min(papers):+.{digits}f} to {max(papers):+.{digits}f})" if papers else ""
    told = f"{min(means):+.{digits}f} to {max(means):+.{digits}f}{reported}"
    return told if min(one.seeds for one in results) < SEEDS else f"{told}: {tally}"


def details(runs: Sequence[Run], paper: Paper) -> str:
    """Every comparison."""
    parts = [
        "# Every comparison behind the claims",
        "Mean [95 % interval] (the paper's); distances are turned round, so that more is better.",
    ]
    for metric, (head, _, _) in METRICS.items():
        for stream in STREAMS:
            lines = [f"## {stream}, {head}", "", "| | | | seeds | |", "|---|---|---:|---|---|"]
            for claim in claims():
                for one in found(claim, runs, stream, metric, paper):
                    said = one.verdict if one.seeds >= SEEDS else ""
                    text = one.text(1 if metric == "dsc" else 2)
                    lines.append(f"| {claim.says} | {one.what} | {text} | {one.seeds} | {said} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


# --- tables -----------------------------------------------------------------------------------------------------------


def read_paper(path: Path) -> Paper:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(r["stream"], r["method"], r["metric"], r["measure"]): float(r["value"]) for r in rows}


def beside_the_paper(runs: Sequence[Run], paper: Paper) -> str:
    """Our table, mean ± standard deviation over seeds, with the paper's numbers below ours."""
    parts = []
    for stream in dict.fromkeys(stream_of(run) for run in runs):
        (table,) = paper_tables([run for run in runs if stream_of(run) == stream])
        heads = [f"{measure} {METRICS[metric][0]}" for metric in METRICS for measure in MEASURES]
        fair = len(set(table.seeds.values())) == 1  # bold type compares the same seeds, or nothing
        lines = [f"**{stream}**: {table.stream.replace('|', 'unseen')}", ""]
        lines += ["| | seeds | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
        for name, row in table.rows.items():
            seeds = ", ".join(map(str, table.seeds[name]))
            keys = [(stream, name, metric, measure) for metric in METRICS for measure in MEASURES]
            theirs = [f"<br>({paper[key]:.2f})" if key in paper else "" for key in keys]
            ours = [_shown(cell, digits, fair) for cell, digits in cells(row)]
            lines.append(f"| {name} | {seeds} | " + " | ".join(map("".join, zip(ours, theirs, strict=True))) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _shown(cell: Cell, digits: int, fair: bool) -> str:
    return f"**{cell.text(digits=digits)}**" if cell.best and fair else cell.text(digits=digits)


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
    planned = len(read_plan(source if source in ready() else str(Path(__file__).parent.parent / source)).runs())
    about = [
        f"{'All' if count == planned else f'{count} of the'} {planned} runs of `smg bench {source} --data DIR "
        f"--threads {made['threads']}`, torch {made['torch']}, measured on the {part} parts.",
        "Mean ± standard deviation over seeds; in bold the best mean of a column, where all have the same seeds.",
    ]
    differences = ""
    if bench.name in BESIDE:
        main = find_runs([bench.with_name("prostate-lite")])
        runs = [run for run in main if run.name in BESIDE[bench.name]] + runs
        apart = to_markdown(paired_differences(runs, REFERENCE), REFERENCE).strip()
        differences = f"Differences to `{REFERENCE}`, paired over subjects and seeds:\n\n{apart}\n\n"
        about.append(f"{', '.join(f'`{name}`' for name in BESIDE[bench.name])} are prostate-lite's.")
    elif part == "test":
        about.append("In brackets the paper's own numbers, of six sites at 384 x 384.")
        about.append("`pooled` and `per-site` are no rivals but a scale.")
    if (bench / "differences.md").exists() and not differences:
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

{beside_the_paper(runs, paper if part == "test" and bench.name not in BESIDE else {})}

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
    runs = find_runs([results / "prostate-lite"])
    made[results / "prostate-lite/claims.md"] = details(runs, paper)
    page = results.parent / "REPRODUCIBILITY.md"
    head, rest = page.read_text().split(BEGIN)
    dsc, asd = (summary(runs, paper, metric) for metric in METRICS)
    folded = f"<details><summary>The same by ASD, in mm, fewer of them being better</summary>\n\n{asd}\n\n</details>"
    made[page] = f"{head}{BEGIN}\n{dsc}\n\n{folded}\n{END}{rest.split(END)[1]}"
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
