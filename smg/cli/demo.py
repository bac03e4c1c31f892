"""`smg demo`: the main job, on phantom sites, with no data of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.terminal import say

if TYPE_CHECKING:
    from smg.report.runs import Run

SUBJECTS = 10  # a site: of fewer, too few are left to test with


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed: other patients, other first weights.", min=0)] = 0,
) -> None:
    """Fine-tuning against SGA(+c) on small phantom hospitals that come one after another; draws what each lost.

    Example: `smg demo --out demo`
    """
    from smg.bench.plan import read_plan
    from smg.bench.workers import Bench, cores
    from smg.cli.runs import go_through
    from smg.cli.sites import make_phantoms
    from smg.report.demo import draw_demo
    from smg.report.page import write_report
    from smg.report.runs import find_runs
    from smg.report.sites import draw_sites, plain_tiles
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites

    plan = read_plan("demo").only(seeds=[seed])
    (stream,) = plan.streams.values()
    make_phantoms(out / "sites", small=True, seed=seed, letters=[*stream.order, str(stream.unseen)], subjects=SUBJECTS)
    draw_sites(find_sites(out / "sites").values(), out / "sites.png", plain_tiles(Labels()), subjects=6)
    say(f"hospitals come in the order {' '.join(stream.order)}; {stream.unseen} is never seen")
    work = Bench(plan, out / "runs", out / "sites", min(cores(), len(plan.methods)))
    go_through(work)
    if work.failed:
        raise typer.Exit(1)
    runs = [run for run in find_runs([out / "runs"]) if run.seed == seed]
    draw_demo(runs, out / "sites", out / "demo.png")
    print("\n".join(sentences(runs)))
    write_report([out / "runs"], out / "report.html", pictures=True, data=out / "sites", say=say)
    print(f"The picture: {out / 'demo.png'}. All of it: {out / 'report.html'}")


def sentences(runs: list[Run]) -> list[str]:
    """What happened, in as many lines as there are runs and one more: numbers, and no judgement."""
    from smg.report.demo import lost

    order, unseen = runs[0].results["stream"]["order"], runs[0].results["stream"]["unseen"]
    first, since = order[0], " and ".join(order[1:])
    lines = []
    for run in runs:
        matrix = run.results["matrix"]["dsc"]
        then, now = matrix[first][first], matrix[order[-1]][first]
        kept = run.results["config"]["replay"]["subjects"]
        means = f", with {kept} subjects of each hospital kept" if run.name != "finetune" else ""
        course = f"learned {first} to a DSC of {100 * then:.1f} %; after {since}, {100 * now:.1f} %"
        lines.append(f"{run.name}: {course}: {lost(then, now)}{means}.")
    there = ", ".join(f"{run.name} {100 * run.results['matrix']['dsc'][order[-1]][unseen]:.1f} %" for run in runs)
    return [*lines, f"On {unseen}, which neither had seen: {there}."]
