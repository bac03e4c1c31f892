"""`smg bench`: many runs, in worker processes of this machine or as jobs of a cluster."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.options import Baseline, Iterations, LeaveOut, Settings, Track, ready_by_prefix, tracked, worded
from smg.cli.run import Data, Part, TensorBoard, data_folder, dsc_text, listed, planned, seed_of, sites_of
from smg.cli.terminal import redraws, say
from smg.errors import Misuse, Stopped
from smg.report.text import duration, print_table

if TYPE_CHECKING:
    from rich.live import Live

    from smg.bench.planned_runs import PlannedRun
    from smg.bench.slurm import SlurmBench
    from smg.bench.workers import Bench
    from smg.learner.results import Results


def bench(
    grid: Annotated[
        str,
        typer.Argument(metavar="GRID", help="A YAML file or a ready configuration.", autocompletion=ready_by_prefix),
    ],
    data: Data = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Methods, as `jm,sga+c`. [default: the file's]")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Streams of the file. [default: all of them]")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="N,N", help="Seeds, as `0,1,2`. [default: the file's]")] = None,
    iterations: Iterations = None,
    settings: Settings = None,
    part: Part = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time. [default: one per GPU, or one per core]", min=1)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of each run; changes rounding. [default: its share of the cores]", min=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the bench. [default: runs/GRID]")] = None,
    baseline: Baseline = None,
    tensorboard: TensorBoard = False,
    track: Track = None,
    leave_out: LeaveOut = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Run as jobs of a Slurm cluster, and follow them.")] = False,
    partition: Annotated[str | None, typer.Option(help="Slurm: partition of the jobs.")] = None,
    gres: Annotated[str | None, typer.Option(help="Slurm: what each run needs, such as `gpu:1`.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Slurm: time limit; a run that reaches it is requeued and resumes.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option("--max", help="Slurm: runs at a time. [default: Slurm's]", min=1)
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Slurm: a further option of sbatch, such as `account=radiology`."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Slurm: print the script; submit nothing.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Slurm: cancel the bench's jobs; what is done stays.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print one command for each unfinished run, for another scheduler.")
    ] = False,
) -> None:
    """Run methods x streams x seeds in worker processes or on a cluster. After a stop the same command resumes it.

    Example: `smg bench prostate-lite --data data/prostate`
    """
    only_slurm = {"--partition": partition, "--gres": gres, "--time": time, "--max": at_once, "--sbatch": sbatch,
                  "--dry-run": dry_run, "--cancel": cancel}  # fmt: skip
    _refuse_mixed(slurm, commands, workers, [name for name, given in only_slurm.items() if given])
    from smg.cores import cores
    from smg.sites.layouts import find_sites

    plan = planned(grid, None, None, None, part, worded(iterations, settings), "bench")
    plan = plan.only(listed(streams), listed(methods), [seed_of(s) for s in listed(seeds) or []])
    folder = out or Path("runs") / Path(grid).stem
    if cancel:
        _cancel(folder)
        return
    if baseline and baseline not in plan.methods and not any(folder.glob(f"*/{baseline}/seed-*/results.json")):
        raise Misuse(f"--baseline {baseline}: not a method of this bench; it has {', '.join(plan.methods)}")
    trackers = [word for name in tracked(track, tensorboard) for word in ("--track", name)]
    options = (*trackers, *("--leave-out",) * leave_out)
    where = data_folder(plan, data)
    sites = find_sites(where, plan.aliases)
    for stream in plan.streams.values():
        sites_of(stream, sites, where)
    work: Bench | SlurmBench
    if slurm:
        from smg.bench.slurm import Resources, SlurmBench

        resources = Resources(partition or "", gres or "", time or "", at_once or 0, tuple(sbatch or ()))
        work = SlurmBench(plan, folder, where, at_once or 1, threads or 0, options, resources=resources)
        if dry_run:
            print(work.dry_run() or "# every run is done: there is nothing to submit")
            return
    else:
        from smg.bench.workers import Bench, gpus

        work = Bench(plan, folder, where, workers or len(gpus()) or cores(), threads or 0, options)
        if commands:
            _print_commands(work)
            return
    go_through(work)
    print_bench(folder, baseline)
    if work.failed:
        raise typer.Exit(1)


def _refuse_mixed(slurm: bool, commands: bool, workers: int | None, only_slurm: list[str]) -> None:
    """Refuse options that do not go together."""
    if only_slurm and not slurm:
        raise Misuse(f"{only_slurm[0]} is for a cluster; give --slurm as well")
    if slurm and commands:
        raise Misuse("--slurm submits the commands that --commands prints; give one of them")
    if slurm and workers:
        raise Misuse("--workers is for this machine; give --max with --slurm")


def _cancel(folder: Path) -> None:
    from smg.bench.slurm_queue import cancel

    count = cancel(folder)
    print(f"{count} of its runs were in the queue and are cancelled; the same command without --cancel resumes them")


def _print_commands(work: Bench) -> None:
    """Print the command of each unfinished run, with paths that hold everywhere."""
    from smg.files import locked

    work.folder, work.data = work.folder.resolve(), work.data.resolve()
    with locked(work.folder):
        lines = work.commands()
    for line in lines:
        print(line)
    say(f"{len(lines)} of {len(work.plan.runs())} runs are to do; when they are done, `smg bench` makes the tables")


def go_through(work: Bench | SlurmBench) -> None:
    """Carry out a bench: print a line at each run's end, and on a terminal also the runs under way."""
    from smg.bench.slurm import SlurmBench
    from smg.files import locks_stay_here
    from smg.learner.results import results_of

    total = len(work.plan.runs())
    cluster = isinstance(work, SlurmBench)
    how = "on the cluster" if cluster else f"{work.workers} at a time"
    say(f"{total} runs, {how}, into {work.folder}; follow them with `smg watch {work.folder}`")
    if cluster and (reason := locks_stay_here(work.folder)):
        say(f"{work.folder}: locks there do not reach other hosts ({reason}); start no second bench into it elsewhere")
    left = "jobs go on; the same command rejoins them, with --cancel it ends them" if cluster else ""

    def on_finished(run: PlannedRun, fault: str | None) -> None:
        count = len(work.done) + len(work.failed)
        what = f"failed: {fault}" if fault else _measured(results_of(run.folder(work.folder)))
        say(f"[{count}/{total}] {run.label}: {what}; {duration(work.seconds_left())} left")

    with _live() as live:

        def on_poll() -> None:
            if live is not None:
                live.update("\n".join(_lines(work, total)))

        try:
            work.go(on_poll, on_finished)
        except KeyboardInterrupt:
            raise Stopped(f"stopped; {left or 'the same command resumes there'}") from None
    for run, fault in work.failed:
        print(
            f"smg: {run.label}: {fault}; the full message is in {run.folder(work.folder)}/failure.txt", file=sys.stderr
        )


def _live() -> AbstractContextManager[Live | None]:
    """Return a display that is redrawn on a terminal, or none in a pipe."""
    if not redraws():
        return nullcontext()
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), transient=True, refresh_per_second=2)


def _lines(bench: Bench | SlurmBench, total: int) -> list[str]:
    """Return one line for each run under way, and one for the whole bench."""
    lines = []
    for worker in bench.active:
        at, run = worker.stands, worker.run
        rounds = len(run.stream.sites)
        where = f"round {at.round} of {rounds} ({at.site}), iteration {at.iteration} of {run.config.iterations}"
        what = worker.waits or (where if at.round else "starting")
        lines.append(f"{run.label}: {what}, {duration(worker.seconds_left())} left")
    done = f"{len(bench.done)} of {total} done, {len(bench.failed)} failed"
    return [*lines, f"{done}, {duration(bench.seconds_left())} left"]


def _measured(results: Results | None) -> str:
    if results is None:
        return "done"
    return "  ".join(f"{name} {dsc_text(value)}" for name, value in results.measures["dsc"].items())


def print_bench(folder: Path, baseline: str | None = None) -> None:
    """Print a bench's tables, and write them, the paired differences and the report into its folder."""
    from smg.report import costs
    from smg.report.bench_tables import write_tables
    from smg.report.page import write_report
    from smg.report.table import cells, columns

    written = write_tables(folder, baseline)
    for table in written.tables:
        counts = sorted({len(seeds) for seeds in table.seeds.values()})
        seeds = "-".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
        print(", ".join(filter(None, [table.stream, table.of, f"seeds: {seeds}"])))
        rows = [(name, *(cell.text(digits=d) for cell, d in cells(row))) for name, row in table.rows.items()]
        print_table(("", *columns()), rows)
    for heading, heads, texts in costs.as_text(written.runs):
        print(heading)
        print_table(("", *heads), texts)
    if not written.tables:
        return
    print(f"tables: {folder}/table.md, table.tex, table.csv")
    if written.differences:
        print(f"differences to {written.baseline}, paired over subjects and seeds: {written.differences}")
    write_report([folder], folder / "report.html", say=say, baseline=baseline)
    print(f"report: {folder}/report.html")
