"""`smg demo`: the main job, on phantom sites, with no data of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.terminal import say

if TYPE_CHECKING:
    from smg.report.runs import Run

SUBJECTS = 12  # a site: of fewer, too few are left to test with
SEEDS = 2  # runs of each method, with other first weights and other test subjects


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed: other patients, other first weights.", min=0)] = 0,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each run; changes rounding. [default: its share]", min=1)
    ] = None,
) -> None:
    """Compare fine-tuning with SGA(+c) on small phantom hospitals that come one after another; draw what each lost.

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

    plan = read_plan("demo").only(seeds=[SEEDS * seed + n for n in range(SEEDS)])
    (stream,) = plan.streams.values()
    make_phantoms(out / "sites", small=True, seed=seed, letters=[*stream.order, str(stream.unseen)], subjects=SUBJECTS)
    draw_sites(find_sites(out / "sites").values(), out / "sites.png", plain_tiles(Labels()), subjects=6)
    say(f"hospitals come in the order {' '.join(stream.order)}; {stream.unseen} is never seen")
    work = Bench(plan, out / "runs", out / "sites", min(cores(), len(plan.methods)), threads or 0)
    go_through(work)
    if work.failed:
        raise typer.Exit(1)
    runs = [run for run in find_runs([out / "runs"]) if run.seed in plan.seeds]
    draw_demo(runs, out / "sites", out / "demo.png")
    print("\n".join(sentences(runs)))
    write_report([out / "runs"], out / "report.html", pictures=True, data=out / "sites", say=say)
    print(f"The picture: {out / 'demo.png'}. All of it: {out / 'report.html'}")


def sentences(runs: list[Run]) -> list[str]:
    """Return what happened, a line a method and one more: means over seeds, and no judgement."""
    from smg.report.demo import by_method, lost, mean_dsc

    order, unseen = runs[0].results["stream"]["order"], runs[0].results["stream"]["unseen"]
    first, since = order[0], " and ".join(order[1:])
    lines, methods = [], by_method(runs)
    for name, of in methods.items():
        then, now = mean_dsc(of, first, first), mean_dsc(of, order[-1], first)
        kept = of[0].results["config"]["replay"]["subjects"]
        means = f", with {kept} subjects of each hospital kept" if name != "finetune" else ""
        course = f"learned {first} to a DSC of {100 * then:.1f} %; after {since}, {100 * now:.1f} %"
        lines.append(f"{name}: {course}: {lost(then, now)}{means}.")
    there = ", ".join(f"{name} {100 * mean_dsc(of, order[-1], unseen):.1f} %" for name, of in methods.items())
    seeds = len({run.seed for run in runs})
    return [*lines, f"On {unseen}, which neither had seen: {there}.{f' Means over {seeds} seeds.' * (seeds > 1)}"]
