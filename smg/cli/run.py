"""`smg run`: one method on one stream of sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import (
    Configs,
    Iterations,
    LeaveOut,
    Settings,
    Track,
    methods_by_prefix,
    ready_by_prefix,
    tracked,
    worded,
)
from smg.cli.terminal import TrainingProgress, progress, say, subject_progress
from smg.errors import Misuse, SmgError
from smg.report.text import duration, print_json, print_line, print_table
from smg.sites.site import pick

if TYPE_CHECKING:
    from smg.bench.planned_runs import Plan, PlannedRun
    from smg.learner.events import Event
    from smg.learner.results import Results
    from smg.settings_file import StreamPlan
    from smg.sites.site import Site


Data = Annotated[
    Path | None, typer.Option(help="Folder of the sites, or a CSV file. [default: `data` in the settings file]")
]
Order = Annotated[
    str | None, typer.Option(metavar="SITE,SITE", help="Sites in the order they are learned. [default: the file's]")
]
Unseen = Annotated[
    str | None, typer.Option(metavar="SITE", help="Held-out site: evaluated before it is learned. [default: none]")
]
Part = Annotated[
    str | None,
    typer.Option(help="Part that is evaluated: `test`, or `validation` while choosing settings. [default: test]"),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="The same as `--track tensorboard`.")]


def run(
    stream: Annotated[
        str | None,
        typer.Argument(metavar="STREAM", help="A YAML file or a ready configuration.", autocompletion=ready_by_prefix),
    ] = None,
    data: Data = None,
    order: Order = None,
    unseen: Unseen = None,
    which: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="One of the file's streams. [default: its only one]")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method, or one of the file's variants. [default: `sga+c`]", autocompletion=methods_by_prefix
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the split, the first weights and the batches. [default: 0]", min=0)
    ] = None,
    iterations: Iterations = None,
    configs: Configs = None,
    settings: Settings = None,
    part: Part = None,
    split: Annotated[
        Path | None,
        typer.Option(help="Split file (JSON: train, validation and test). [default: by a hash of seed and case]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. [default: runs/METHOD-LAST-SEED]")] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; changes rounding. [default: all cores]", min=1)
    ] = None,
    tensorboard: TensorBoard = False,
    track: Track = None,
    leave_out: LeaveOut = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print `results.json`.")] = False,
) -> None:
    """Run one method on a stream of sites. After a stop the same command resumes it.

    Example: `smg run --data data --order RUNMC,HCRUDB,UCL,BIDMC --unseen HK --method sga+c`
    """
    plan = planned(stream, configs, order, unseen, part, worded(iterations, settings), "run")
    plan = plan.only([which] if which else None, [method] if method else None, [] if seed is None else [seed])
    if not plan.methods:
        plan = plan.only(methods=["sga+c"])
    runs = plan.runs()
    if len(runs) > 1:
        raise Misuse(
            f"{stream}: plans {len(runs)} runs; choose one by --stream ({', '.join(plan.streams)}), "
            f"--method ({', '.join(plan.methods)}) and --seed, or run them all with `smg bench`"
        )
    if threads:
        _use(threads)
    results = _run(
        runs[0], data_folder(plan, data), out or _folder(runs[0]), split, tracked(track, tensorboard), leave_out
    )
    if as_json:
        print_json(results.model_dump(mode="json"))
    else:
        _print_results(results)
        print_line(f"results: {out or _folder(runs[0])}/results.json")


# --- helpers ----------------------------------------------------------------------------------------------------------


def planned(
    source: str | None,
    configs: list[str] | None,
    order: str | None,
    unseen: str | None,
    part: str | None,
    words: dict[str, Any],
    command: str,
) -> Plan:
    """Return the file's plan with the command line's options laid over it."""
    from smg.bench.planned_runs import Plan, read_plan
    from smg.settings_file import read_settings, stream_plan

    plan = read_plan(source) if source else Plan()
    for config in configs or []:
        plan = plan.under(read_settings(config))
    if order:
        plan = replace(
            plan, streams={"stream": stream_plan(listed(order) or [], unseen and unseen.strip(), plan.aliases)}
        )
    elif unseen:
        raise Misuse("--unseen without --order; give --order SITE,SITE,... as well")
    elif not plan.streams:
        raise Misuse(f"no stream is named; give a file, `smg {command} FILE`, or --data, --order and --unseen")
    if part:
        if part not in ("test", "validation", "train"):
            raise Misuse(f"--part {part}: no such part; give test, validation or train")
        plan = replace(plan, part=part)
    if "method" in words:
        plan = plan.only(methods=[str(words.pop("method"))])
    if "seed" in words:
        plan = plan.only(seeds=[seed_of(str(words.pop("seed")))])
    return replace(plan, words=words)


def data_folder(plan: Plan, given: Path | None) -> Path:
    """Return the folder of the sites."""
    data = given or plan.data
    if data is None:
        raise Misuse("the folder of the sites is not known; give --data DIR")
    if not data.exists():
        raise SmgError(f"{data}: no such folder; give the folder of the sites by --data")
    return data


def sites_of(stream: StreamPlan, sites: dict[str, Site], where: Path) -> dict[str, Site]:
    """Return the stream's sites, in its order."""
    return {name: pick(sites, name, where) for name in stream.sites}


def _folder(run: PlannedRun) -> Path:
    return Path("runs") / f"{run.name}-{run.stream.unseen or run.stream.order[-1]}-{run.seed}"


def _use(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _run(
    planned: PlannedRun, data: Path, out: Path, split: Path | None, trackers: list[str], leave_out: bool
) -> Results:
    from smg.files import replacing
    from smg.learner.processes import first_process
    from smg.learner.stream import Stream
    from smg.learner.tracking import tracker
    from smg.sites.layouts import find_sites
    from smg.sites.split import given_split, load_splits

    if (out / "model.json").exists():
        raise SmgError(f"{out}: is a model; give another folder for the run")
    sites = sites_of(planned.stream, find_sites(data, planned.aliases), data)
    splits = {n: given_split(site, load_splits(split), split) for n, site in sites.items()} if split else None
    config = planned.config
    dumped = config.model_dump(mode="json")
    names = trackers if first_process() else []
    events = [tracker(name, out, planned.label, config.iterations, dumped) for name in names]
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
    total = sum(len(site.subjects) for site in sites.values())
    with (
        progress("looking through the scans", total) as stream.on_scan,
        TrainingProgress(config.iterations) as stream.on_step,
        subject_progress() as stream.on_subject,
    ):
        results = stream.run(out)
    if first_process():
        with replacing(out / "run.yaml") as temporary:
            temporary.write_text(planned.as_file())
    return results


def _say_dsc(event: Event) -> None:
    """Print the DSC at every site after a round."""
    from smg.learner.events import Evaluation

    if isinstance(event, Evaluation):
        dsc = ", ".join(f"{site} {dsc_text(value)}" for site, value in event.means["dsc"].items())
        say(f"after {event.site}, DSC in %: {dsc}")


def _print_results(results: Results) -> None:
    from smg.evaluation.metrics import COMPARED

    matrix, sites = results.matrix["dsc"], results.stream.sites
    rows = [(f"after {r}", *(dsc_text(matrix[r][site]) for site in sites)) for r in sites]
    print_table(("DSC %", *sites), rows)
    of = results.classes if len(results.classes) > 1 else {"": results.measures}  # of every class, if there are several
    table = []
    for measure in results.measures["dsc"]:
        formula = results.formulas[measure]
        values = [metric.text(by[name][measure]) for by in of.values() for name, metric in COMPARED.items()]
        table.append((measure, *values, formula))
    heads = [f"{name} {metric.head}".strip() for name in of for metric in COMPARED.values()]
    print_table(("", *heads, "of a[round][site]"), table)
    if (costs := results.costs) is None:
        return
    kept = f"{costs.replay_subjects} subjects, {costs.replay_bytes / 1e6:.1f} MB, kept"
    state = f"{costs.state_bytes / 1e6:.1f} MB remembered"
    times = [duration(seconds) for seconds in costs.seconds.values()]
    print_line(f"{kept}; {state}; {costs.parameters:,} parameters; rounds took {', '.join(times)}")


def dsc_text(value: float | None) -> str:
    from smg.evaluation.metrics import METRICS

    return METRICS["dsc"].text(value)


def listed(words: str | None) -> list[str] | None:
    return [word.strip() for word in words.split(",") if word.strip()] if words else None


def seed_of(word: str) -> int:
    if not word.isdecimal():
        raise Misuse(f"seed {word!r} is not a whole number; give one, or several with `bench --seeds 0,1,2`")
    return int(word)
