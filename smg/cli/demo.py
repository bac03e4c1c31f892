"""`smg demo`: compare two methods on phantom sites, without any data of the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.terminal import say

if TYPE_CHECKING:
    from smg.bench.workers import Bench
    from smg.report.runs import Run

SUBJECTS = 12  # per site: with fewer, the test parts are too small
SEEDS = 2  # runs of each method, with different first weights and test subjects


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the phantoms and of the first weights.", min=0)] = 0,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of each run; changes rounding. [default: its share of the cores]", min=1),
    ] = None,
    federation: Annotated[
        bool,
        typer.Option("--federation", help="Run three phantom hospitals as processes whose exemplars stay at home."),
    ] = False,
) -> None:
    """Compare fine-tuning with SGA(+c) on a stream of small phantom hospitals, and draw what each has forgotten.

    With --federation, three hospitals learn one model over a relay with mutual TLS on this machine instead, and the
    result is compared with the centralised one.

    Example: `smg demo --out demo`
    """
    if federation:
        from smg.cli.demo_federation import federated_demo

        federated_demo(out, seed)
        return
    from smg.bench.planned_runs import read_plan
    from smg.bench.workers import Bench
    from smg.cli.bench import go_through
    from smg.cli.sites import make_phantoms
    from smg.cores import cores
    from smg.report.demo_picture import draw_demo
    from smg.report.page import write_report
    from smg.report.runs import find_runs
    from smg.report.site_picture import draw_sites, plain_tiles
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites

    plan = read_plan("demo").only(seeds=[SEEDS * seed + n for n in range(SEEDS)])
    (stream,) = plan.streams.values()
    work = Bench(plan, out / "runs", out / "sites", min(cores(), len(plan.methods)), threads or 0)
    _refuse_another(work, out)
    make_phantoms(out / "sites", small=True, seed=seed, letters=[*stream.order, str(stream.unseen)], subjects=SUBJECTS)
    draw_sites(find_sites(out / "sites").values(), out / "sites.png", plain_tiles(Labels()), subjects=6)
    say(f"order of the hospitals: {' '.join(stream.order)}; held out: {stream.unseen}")
    go_through(work)
    if work.failed:
        raise typer.Exit(1)
    runs = [run for run in find_runs([out / "runs"]) if run.seed in plan.seeds]
    draw_demo(runs, out / "sites", out / "demo.png")
    print("\n".join(sentences(runs)))
    write_report([out / "runs"], out / "report.html", pictures=True, data=out / "sites", say=say)
    print(f"The picture: {out / 'demo.png'}. The full report: {out / 'report.html'}")


def _refuse_another(work: Bench, out: Path) -> None:
    """Raise an error, before anything is drawn, if the folder's runs cannot be resumed, as those of another version."""
    from smg.errors import SmgError
    from smg.files import locked

    with locked(work.folder):
        try:
            replace(work, todo=[], done=[]).sort()
        except SmgError:
            raise SmgError(
                f"{out}: holds a demo that cannot go on with these sites and settings; delete the folder, or give "
                "another --out"
            ) from None


def sentences(runs: list[Run]) -> list[str]:
    """Return the results as text: one line for each method and one for the held-out hospital; means over seeds."""
    from smg.report.demo_picture import by_method, lost, mean_dsc

    order, unseen = runs[0].order, str(runs[0].unseen)
    first, since = order[0], " and ".join(order[1:])
    lines, methods = [], by_method(runs)
    for name, of in methods.items():
        then, now = mean_dsc(of, first, first), mean_dsc(of, order[-1], first)
        kept = of[0].results.config.tree()["replay"]["subjects"]
        means = f", with {kept} subjects of each hospital kept" if name != "finetune" else ""
        course = f"learned {first} to a DSC of {100 * then:.1f} %; after {since}, {100 * now:.1f} %"
        lines.append(f"{name}: {course}: {lost(then, now)}{means}.")
    there = ", ".join(f"{name} {100 * mean_dsc(of, order[-1], unseen):.1f} %" for name, of in methods.items())
    seeds = len({run.seed for run in runs})
    return [
        *lines,
        f"On {unseen}, the held-out hospital: {there}.{f' Means over {seeds} seeds.' * (seeds > 1)}",
    ]
