"""The researcher's commands: one run, and a bench of many."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import Configs, Iterations, LeaveOut, Settings, methods_by_prefix, ready_by_prefix, worded
from smg.cli.terminal import Teller, duration, looking, measuring, renewing, say
from smg.errors import Misuse, SmgError, Stopped
from smg.report.text import print_json, print_table
from smg.sites.site import pick

if TYPE_CHECKING:
    from rich.live import Live

    from smg.bench.plan import Plan, PlannedRun, StreamPlan
    from smg.bench.workers import Bench
    from smg.sites.site import Site


Data = Annotated[Path | None, typer.Option(help="The folder of sites, or a CSV file; else as the file says.")]
Order = Annotated[str | None, typer.Option(metavar="SITE,SITE", help="The sites in the order they come.")]
Unseen = Annotated[str | None, typer.Option(metavar="SITE", help="The site that is learned last, and judged before.")]
Part = Annotated[str | None, typer.Option(help="What is evaluated: `test`, or `validation` to choose settings by.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")]


def run(
    stream: Annotated[
        str | None,
        typer.Argument(metavar="STREAM", help="A YAML file or a ready configuration.", autocompletion=ready_by_prefix),
    ] = None,
    data: Data = None,
    order: Order = None,
    unseen: Unseen = None,
    which: Annotated[str | None, typer.Option("--stream", help="One of the file's streams, by name.")] = None,
    method: Annotated[str | None, typer.Option(help="The method.", autocompletion=methods_by_prefix)] = None,
    seed: Annotated[int | None, typer.Option(help="Of split, first weights and batches.", min=0)] = None,
    iterations: Iterations = None,
    configs: Configs = None,
    settings: Settings = None,
    part: Part = None,
    split: Annotated[Path | None, typer.Option(help="A split file; by a hash of seed and case if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. [default: runs/METHOD-LAST-SEED]")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of this process; another number, other last bits. [default: all cores]", min=1)
    ] = None,
    tensorboard: TensorBoard = False,
    leave_out: LeaveOut = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print `results.json`.")] = False,
) -> None:
    """Run one method over a stream of sites. Stopped at any moment, it goes on when run again.

    Example: `smg run --data data --order RUNMC,HCRUDB,UCL,BIDMC --unseen HK --method sga+c`
    """
    plan = _plan(stream, configs, order, unseen, part, worded(iterations, settings), "run")
    plan = plan.only([which] if which else None, [method] if method else None, [] if seed is None else [seed])
    if not plan.methods:
        plan = plan.only(methods=["sga+c"])
    runs = plan.runs()
    if len(runs) > 1:
        raise Misuse(
            f"{stream}: plans {len(runs)} runs; name one by --stream ({', '.join(plan.streams)}), "
            f"--method ({', '.join(plan.methods)}) and --seed, or do them all with `smg bench`"
        )
    if threads:
        _use(threads)
    results = _run(runs[0], _data(plan, data), out or _folder(runs[0]), split, tensorboard, leave_out)
    if as_json:
        print_json(results)
    else:
        _print_results(results)
        print(f"results: {out or _folder(runs[0])}/results.json")


def bench(
    grid: Annotated[
        str,
        typer.Argument(metavar="GRID", help="A YAML file or a ready configuration.", autocompletion=ready_by_prefix),
    ],
    data: Data = None,
    methods: Annotated[str | None, typer.Option(help="Only these, as `jm,sga+c`.")] = None,
    streams: Annotated[str | None, typer.Option(help="Only these of the file's streams.")] = None,
    seeds: Annotated[str | None, typer.Option(help="These seeds, as `0,1,2`.")] = None,
    iterations: Iterations = None,
    settings: Settings = None,
    part: Part = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time. [default: one a GPU, or one a core]", min=1)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of each run. [default: its share of the cores]", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="The bench's folder. [default: runs/GRID]")] = None,
    tensorboard: TensorBoard = False,
    leave_out: LeaveOut = False,
) -> None:
    """Run methods x streams x seeds over worker processes. Stopped at any moment, it goes on when run again.

    Example: `smg bench prostate-lite --data data/prostate`
    """
    from smg.bench.workers import Bench, cores, gpus
    from smg.sites.layouts import find_sites

    plan = _plan(grid, None, None, None, part, worded(iterations, settings), "bench")
    plan = plan.only(_list(streams), _list(methods), [_seed(s) for s in _list(seeds) or []])
    folder = out or Path("runs") / Path(grid).stem
    options = ("--tensorboard",) * tensorboard + ("--leave-out",) * leave_out
    where = _data(plan, data)
    sites = find_sites(where, plan.aliases)
    for stream in plan.streams.values():
        _those_of(stream, sites, where)
    work = Bench(plan, folder, where, workers or len(gpus()) or cores(), threads or 0, options)
    go_through(work)
    print_bench(folder)
    if work.failed:
        raise typer.Exit(1)


# --- on the way -------------------------------------------------------------------------------------------------------


def _plan(
    source: str | None,
    configs: list[str] | None,
    order: str | None,
    unseen: str | None,
    part: str | None,
    words: dict[str, Any],
    command: str,
) -> Plan:
    """The file's plan, with what the command line says over it."""
    from smg.bench.plan import Plan, read_plan, stream_plan

    plan = read_plan(source) if source else Plan()
    for config in configs or []:
        plan = plan.under(read_plan(config))
    if order:
        plan = replace(
            plan, streams={"stream": stream_plan(_list(order) or [], unseen and unseen.strip(), plan.aliases)}
        )
    elif unseen:
        raise Misuse("--unseen goes with --order SITE,SITE,...")
    elif not plan.streams:
        raise Misuse(f"no stream is named: `smg {command} FILE`, or --data, --order and --unseen; see --help")
    if part:
        if part not in ("test", "validation", "train"):
            raise Misuse(f"--part {part}: it is test, validation or train")
        plan = replace(plan, part=part)
    if "method" in words:
        plan = plan.only(methods=[str(words.pop("method"))])
    if "seed" in words:
        plan = plan.only(seeds=[_seed(str(words.pop("seed")))])
    return replace(plan, words=words)


def _data(plan: Plan, given: Path | None) -> Path:
    data = given or plan.data
    if data is None:
        raise Misuse("where are the sites? Give --data DIR")
    if not data.exists():
        raise SmgError(f"{data}: no such folder")
    return data


def _those_of(stream: StreamPlan, sites: dict[str, Site], where: Path) -> dict[str, Site]:
    """The stream's sites, in its order."""
    return {name: pick(sites, name, where) for name in stream.sites}


def _folder(run: PlannedRun) -> Path:
    return Path("runs") / f"{run.name}-{run.stream.unseen or run.stream.order[-1]}-{run.seed}"


def _use(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _run(
    planned: PlannedRun, data: Path, out: Path, split: Path | None, tensorboard: bool, leave_out: bool
) -> dict[str, Any]:
    from smg.files import replacing
    from smg.learner.processes import first_process
    from smg.learner.stream import Stream
    from smg.learner.tensorboard import to_tensorboard
    from smg.sites.layouts import find_sites
    from smg.sites.split import given_split, load_splits

    if (out / "model.json").exists():
        raise SmgError(f"{out}: is a model; give the run another folder")
    sites = _those_of(planned.stream, find_sites(data, planned.aliases), data)
    splits = {n: given_split(site, load_splits(split), split) for n, site in sites.items()} if split else None
    config = planned.config
    events = [to_tensorboard(out / "tensorboard", config.iterations)] if tensorboard and first_process() else []
    stream = Stream(
        sites,
        planned.stream.order,
        planned.stream.unseen,
        config,
        splits,
        part=planned.part,
        leave_out=leave_out,
        name=planned.name,
        say=say,
        listeners=[_say_dsc, *events],
    )
    stream.on_scan = looking(sum(len(site.subjects) for site in sites.values()))
    with Teller(config.iterations) as stream.on_step, measuring() as stream.on_subject:
        results = stream.run(out)
    if first_process():
        with replacing(out / "run.yaml") as temporary:
            temporary.write_text(planned.as_file())
    return results


def _say_dsc(event: dict[str, Any]) -> None:
    """What the model does at every site after a round, as soon as it is known."""
    if event["event"] == "evaluation":
        dsc = ", ".join(f"{site} {_dsc(value)}" for site, value in event["dsc"].items())
        say(f"after {event['site']}, DSC in %: {dsc}")


def _print_results(results: dict[str, Any]) -> None:
    from smg.evaluation.metrics import COMPARED

    matrix, stream = results["matrix"]["dsc"], results["stream"]
    sites = [*stream["order"], *([stream["unseen"]] if stream["unseen"] else [])]
    rows = [(f"after {r}", *(_dsc(matrix[r][site]) for site in sites)) for r in sites]
    print_table(("DSC %", *sites), rows)
    table = []
    for measure in results["measures"]["dsc"]:
        formula = results["formulas"][measure]
        values = [metric.text(results["measures"][name][measure]) for name, metric in COMPARED.items()]
        table.append((measure, *values, formula))
    print_table(("", *(metric.head for metric in COMPARED.values()), "of a[round][site]"), table)
    costs = results["costs"]
    kept = f"{costs['replay_subjects']} subjects, {costs['replay_bytes'] / 1e6:.1f} MB, kept"
    state = f"{costs['state_bytes'] / 1e6:.1f} MB remembered"
    times = [duration(seconds) for seconds in costs["seconds"].values()]
    print(f"{kept}; {state}; {costs['parameters']:,} parameters; rounds took {', '.join(times)}")


def _dsc(value: float | None) -> str:
    from smg.evaluation.metrics import METRICS

    return METRICS["dsc"].text(value)


def go_through(work: Bench) -> None:
    """Every run of a bench, told as it goes: a line at each one's end, and those under way while a terminal looks."""
    from smg.bench.workers import results_of

    planned = len(work.plan.runs())
    say(f"{planned} runs, {work.workers} at a time, into {work.folder}; follow them with `smg watch {work.folder}`")

    def finished(run: PlannedRun, fault: str | None) -> None:
        count = len(work.done) + len(work.failed)
        what = f"failed: {fault}" if fault else _measured(results_of(run.folder(work.folder)))
        say(f"[{count}/{planned}] {run.label}: {what}; {duration(work.seconds_left())} left")

    with _live() as live:

        def told(bench: Bench) -> None:
            if live is not None:
                live.update("\n".join(_lines(bench, planned)))

        try:
            work.go(told, finished)
        except KeyboardInterrupt:
            raise Stopped("stopped; the same command goes on where it was") from None
    for run, fault in work.failed:
        print(f"smg: {run.label}: {fault} (all it said: {run.folder(work.folder)}/failure.txt)", file=sys.stderr)


def _live() -> AbstractContextManager[Live | None]:
    if not renewing():
        return nullcontext()
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), transient=True, refresh_per_second=2)


def _lines(bench: Bench, planned: int) -> list[str]:
    """One line a run under way."""
    lines = []
    for worker in bench.active:
        at, run = worker.stands, worker.run
        rounds = len(run.stream.sites)
        where = f"round {at.round} of {rounds} ({at.site}), iteration {at.iteration} of {run.config.iterations}"
        lines.append(f"{run.label}: {where if at.round else 'starting'}, {duration(worker.seconds_left())} left")
    done = f"{len(bench.done)} of {planned} done, {len(bench.failed)} failed"
    return [*lines, f"{done}, {duration(bench.seconds_left())} left"]


def _measured(results: dict[str, Any] | None) -> str:
    if results is None:
        return "done"
    return "  ".join(f"{name} {_dsc(value)}" for name, value in results["measures"]["dsc"].items())


def print_bench(folder: Path) -> None:
    """Print a bench's tables, and write them, the paired differences and the report into its folder."""
    from smg.report import costs
    from smg.report.bench_tables import REFERENCE, write_tables
    from smg.report.page import write_report
    from smg.report.table import cells, columns

    written = write_tables(folder)
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
        print(f"differences to {REFERENCE}, paired over subjects and seeds: {written.differences}")
    elif len({run.name for run in written.runs}) > 1:
        print(f"no differences.md: it holds each method minus {REFERENCE}, which has no run here")
    write_report([folder], folder / "report.html", say=say)
    print(f"report: {folder}/report.html")


def _list(words: str | None) -> list[str] | None:
    return [word.strip() for word in words.split(",") if word.strip()] if words else None


def _seed(word: str) -> int:
    if not word.isdecimal():
        raise Misuse(f"seed {word!r} is no whole number; `bench --seeds 0,1,2` takes several")
    return int(word)
