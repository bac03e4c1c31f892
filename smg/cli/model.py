"""The commands that let a model learn a site and that evaluate it."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.federation import Absent, hospitals_of
from smg.cli.options import (
    Configs,
    Iterations,
    Json,
    LabelWords,
    LeaveOut,
    Model,
    Roi,
    RoundNumber,
    Settings,
    Track,
    TrustCode,
    ending_in,
    methods_by_prefix,
    model_first,
    tracked,
    worded,
)
from smg.cli.past import mean_dsc
from smg.cli.terminal import TrainingProgress, detail, progress, say, subject_progress
from smg.errors import Misuse, SmgError
from smg.report.text import print_json, print_table, printable

if TYPE_CHECKING:
    from smg.federation.peers import Peers
    from smg.learner.config import LearnerConfig
    from smg.learner.events import Evaluation, Listener
    from smg.learner.guard import Judged
    from smg.learner.learner import Learner
    from smg.learner.records import RoundRecord
    from smg.learner.round import OnStep
    from smg.methods import Step
    from smg.prepare.cache import Prepared
    from smg.sites.site import Site
    from smg.sites.split import Split

FEW = 4  # with fewer subjects nothing that is measured says much
NEVER = "never learned"  # the part of a subject that was in no round
HELD = 3  # exit code of a round that made an earlier site worse
MINUTES = 60.0  # of a round, if the model is planned

SiteName = Annotated[
    str | None, typer.Option("--site", metavar="NAME", help="Site to learn, if the folder holds several.")
]
Called = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Name of the site in the model. [default: the folder's name]"),
]
SplitFile = Annotated[
    Path | None,
    typer.Option(
        "--split", help="Split file (JSON: train, validation and test). [default: by a hash of seed and case]"
    ),
]


def learn(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SITE]",
            help="Folder of the site, or a CSV file. Without it, --from makes a model and stops.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method of this round. [default: the model's last one; `sga+c` for a new model]",
            autocompletion=methods_by_prefix,
        ),
    ] = None,
    iterations: Iterations = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Training time of a round in minutes, to plan a new model without --config. [default: 60]", min=0.1
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WEIGHTS",
            help="A new model's first weights: a .safetensors file; another model's folder, or `nnunet:FOLDER[:FOLD]` "
            "for one of nnU-Net, with its settings.",
        ),
    ] = None,
    configs: Configs = None,
    labels: LabelWords = None,
    settings: Settings = None,
    site: SiteName = None,
    called: Called = None,
    roi: Roi = None,
    split: SplitFile = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Points of DSC that an earlier site may lose; beyond it the round is held. [default: 5]"),
    ] = None,
    guard: Annotated[
        Path | None,
        typer.Option(
            help="Folder of sites learned before, with scans kept apart that judge the round. [default: sentinels]"
        ),
    ] = None,
    unguarded: Annotated[
        bool, typer.Option("--unguarded", help="Never hold the round, whatever it did to earlier sites.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Learn a site again that was learned before.")] = False,
    other_preparation: Annotated[
        bool, typer.Option("--other-preparation", help="Allow a preparation of scans that differs from earlier rounds.")
    ] = False,
    few: Annotated[
        bool, typer.Option("--few", help="Learn a site of a single subject, on which nothing can be tested.")
    ] = False,
    leave_out: LeaveOut = False,
    trust_code: TrustCode = False,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="This hospital's folder of a federation: others answer for their sites."),
    ] = None,
    absent: Annotated[
        Absent,
        typer.Option(help="Without a hospital of the federation: `hold` waits for it, `drop` leaves its rows out."),
    ] = "hold",
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for a hospital before the round stops, resumable.", min=0)
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which a hospital of the federation answers, or counts as away.", min=1)
    ] = 120.0,
    secure: Annotated[
        bool, typer.Option("--secure-sums", help="Hide each hospital's gradients in the federation's sum, by masks.")
    ] = False,
    rate: Annotated[
        float, typer.Option("--line", help="The line's rate in Mbit/s, by which a federation's cost is given.", min=0.1)
    ] = 100.0,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Learn a site: the first one creates the model, each further one adds a round. The same command resumes it.

    A new model's settings are planned from its first site and this machine (`smg plan`), unless --config or --set gives
    the input, the network or the number of iterations. `--config paper` has the paper's settings. With --from no plan
    is made: a file's weights need the network they were made for, set by --config or --set.

    Example: `smg learn model data/RUNMC --minutes 30`
    """
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise Misuse(f"--tolerance {tolerance:g}: not a tolerance; give points of DSC, zero or more")
    from smg.sites.layouts import find_sites

    given = _given(method, iterations, configs, labels, settings)
    if data is None:
        if start is None:
            raise Misuse("no SITE: give the folder of the site to learn")
        _start(model, given, start)
        return
    model_first(model, [data], "smg learn MODEL SITE")
    if not data.exists() and model.is_dir() and not (model / "model.json").exists():
        raise Misuse(f"{data}: no such site, while {model} exists; give the model first: smg learn MODEL SITE")
    found = _site(data, site, called).with_roi(roi or [])
    held_out = {name: one.with_roi(roi or []) for name, one in find_sites(guard).items()} if guard else None
    parts = _split(found, split)
    planned_for = None if configs or start else minutes or MINUTES
    _refuse_few(found, len(found.subjects), parts, few)
    with hospitals_of(federation, model, absent, patience, timeout, secure) as peers:
        learner = _learner(model, given, other_preparation, found, parts, leave_out, again, few, planned_for, start)
        detail(f"settings: {learner.config.model_dump_json()}")
        if peers:
            _greet(peers, learner, found, rate)
        with TrainingProgress(learner.config.iterations) as on_step:
            if peers:
                peers.roster.say = on_step.heard
            from smg.learner.events import End

            listeners = _trackers(tracked(track), learner, model)
            record = learner.learn(
                found,
                split=parts,
                again=again,
                leave_out=leave_out,
                tolerance=tolerance,
                unguarded=unguarded,
                held_out=held_out,
                on_step=on_step if not listeners else _telling(listeners, on_step, learner, found.name),
                say=say,
                elsewhere=peers,
            )
            for listener in listeners:
                listener(_evaluated(record))
                listener(End(measures={}))
        if peers:
            peers.roster.say = say
            has_it = peers.hand_out()
            say(f"round {record.round} is now at {', '.join(has_it) or 'no other hospital yet'}")
    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        _print_round(record)
    if record.held and record.guard:
        held = record.round
        print(
            f"round {held} is held: {'; '.join(record.guard.reasons)}. The model has not changed. "
            f"To use the round anyway: `smg accept {model} {held}`; to leave it, do nothing",
            file=sys.stderr,
        )
        raise typer.Exit(HELD)


def evaluate(
    model: Model,
    data: Annotated[list[Path], typer.Argument(metavar="SITE...", help="Folders of sites, or CSV files.")],
    part: Annotated[
        str | None,
        typer.Option(
            help="Part of each site: `test`, `validation`, `train` or `all`. "
            "[default: `test` of a site learned, `all` of any other]"
        ),
    ] = None,
    number: RoundNumber = None,
    as_csv: Annotated[
        Path | None, typer.Option("--csv", help="CSV file to write every subject's numbers to. [default: none]")
    ] = None,
    called: Annotated[
        list[str] | None,
        typer.Option("--as", metavar="NAME", help="Names of the sites, one for each. [default: the folders' names]"),
    ] = None,
    roi: Roi = None,
    split: SplitFile = None,
    leave_out: LeaveOut = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Evaluate the model on sites, each scan on its own grid, and list the worst cases.

    Example: `smg evaluate model data/RUNMC data/HK --part all`
    """
    from smg.learner.learner import Learner

    model_first(model, data, "smg evaluate MODEL SITE...")
    if part not in (None, "train", "validation", "test", "all"):
        raise Misuse(f"--part {part}: no such part; give train, validation, test or all")
    if as_csv:
        ending_in(as_csv, ".csv")
    learner = Learner(model)
    sites = [(found.with_roi(roi or []), _split(found, split)) for found in _sites(data, called or [])]
    rows = []
    if number is not None:
        learner.check_round(number)
    config = learner.config if number is None else learner.as_prepared(number)
    for found, parts in sites:
        prepared = prepare(found, config, leave_out)
        with subject_progress() as on_subject:
            evaluated = learner.evaluate(found, part, parts, leave_out, number, on_subject)
        elsewhere = learner.learned_elsewhere(found.name, prepared, number)
        was_in = {case: f"learned at {name}" for case, name in elsewhere.items()} | learner.parts_of(found, number)
        asked = {"site": found.name, "round": learner.current if number is None else number}
        rows += [asked | {"part": was_in.get(row.case, NEVER), **row.as_json()} for row in evaluated]
    if not rows:
        raise SmgError(f"no subject in the {part or 'test'} part; --part all evaluates every subject")
    if as_json:
        print_json(rows)
    else:
        _print_evaluation(rows)
    if as_csv:  # at the end: if it fails, the numbers have been printed
        _write_csv(as_csv, rows)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _trackers(names: list[str], learner: Learner, model: Path) -> list[Listener]:
    """Return what passes a round's numbers on; files of trackers lie beside the model, in MODEL-tracking."""
    from smg.learner.processes import first_process
    from smg.learner.tracking import tracker

    if not first_process():
        return []
    folder, config = model.with_name(f"{model.name}-tracking"), learner.config
    return [tracker(name, folder, model.name, config.iterations, config.model_dump(mode="json")) for name in names]


def _next_round(learner: Learner) -> int:
    return 1 + max(learner.model.numbers, default=0)


def _telling(listeners: list[Listener], on_step: OnStep, learner: Learner, site: str) -> OnStep:
    """Return a callback that also passes steps on, as often as a run logs them."""
    from smg.learner.events import StepReport
    from smg.learner.round import logged

    number, every, last = _next_round(learner), learner.config.log_every, learner.config.iterations

    def both(iteration: int, step: Step) -> None:
        if (iteration - 1) % every == 0 or iteration == last:
            event = StepReport(round=number, site=site, **logged(iteration, step).model_dump())
            for listener in listeners:
                listener(event)
        on_step(iteration, step)

    return both


def _evaluated(record: RoundRecord) -> Evaluation:
    """Return a round's results as the event of an evaluation: its own test part, and earlier sites after it."""
    from smg.evaluation.metrics import COMPARED
    from smg.learner.events import Evaluation
    from smg.sites.labels import first_class

    name, site = first_class(record.config.tree()), record.site
    means: dict[str, dict[str, float | None]] = {}
    for metric in COMPARED:
        values = [row.classes[name].get(metric) for row in record.test]
        known = [value for value in values if value is not None]
        means[metric] = {site: sum(known) / len(known) if known else None}
    means["dsc"] |= {earlier: both.after for earlier, both in record.earlier.items()}
    return Evaluation(round=record.round, site=site, means=means)


def _learner(
    model: Path,
    given: list[dict[str, Any]],
    other: bool,
    site: Site,
    split: Split | None,
    leave_out: bool,
    again: bool,
    few: bool,
    minutes: float | None,
    start: str | None,
) -> Learner:
    """Open the model with the settings given, or create it once the site's scans have been prepared without faults."""
    from smg.cli.plan import planned
    from smg.learner.configure import configuration, laid
    from smg.learner.learner import Learner
    from smg.learner.origin import read_origin
    from smg.learner.store import Store

    origin = read_origin(start) if start else None
    if (model / "model.json").is_file():
        opened = Learner(model)
        if origin and (opened.model.origin and opened.model.origin.sha256) != origin.about.sha256:
            raise SmgError(f"{model}: --from {start} is for a new model, and one is there; give another folder")
        own = opened.config.model_dump(mode="json")
        learner = Learner(model, configuration(own, *given), other)
        learner.refuse_to_learn(site.name, again)
        _prepare(site, learner.config, split, leave_out, few)
        return learner
    if model.exists() and not (model.is_dir() and Store(model).abandoned):
        raise SmgError(f"{model}: exists and is not a model; give a new folder")
    configuration(*given)  # a mistake in the settings is reported before the scans are looked at
    plan = None
    if minutes is not None and not _says_what_to_train(given):
        plan = planned([site], minutes, leave_out, laid(*given))
        print("\n".join(plan.in_short()))
        given = [plan.tree(), *given]
    config = configuration(*([origin.settings] if origin else []), *given).with_channels(site.channels)
    if origin:
        origin.check(config.network)
    _prepare(site, config, split, leave_out, few)
    learner = Learner.create(model, config, origin)
    if plan:
        learner.store.keep_plan(plan.as_file())
    return learner


def _greet(peers: Peers, learner: Learner, site: Site, rate: float) -> None:
    """Greet the hospitals of a round, and say what it will send over a line of `rate` Mbit/s."""
    from smg.prepare.site import prepare_site
    from smg.prepare.slices import Slices

    peers.greet(learner.config)
    slices = len(Slices(prepare_site(site, learner.config.preparation, True), learner.config.preparation))
    if cost := peers.cost(learner.config, slices):
        say(cost.line(len([rows for rows in peers.rows.values() if rows.count]), rate))


def _start(model: Path, given: list[dict[str, Any]], start: str) -> None:
    """Make a model of its first weights alone: round 0, which predicts as it is."""
    from smg.learner.configure import configuration
    from smg.learner.history import described
    from smg.learner.learner import Learner
    from smg.learner.origin import read_origin
    from smg.learner.store import Store

    if model.exists() and not (model.is_dir() and Store(model).abandoned):
        raise SmgError(f"{model}: exists; give a new folder, or the site that it is to learn")
    origin = read_origin(start)
    config = configuration(origin.settings, *given)
    origin.check(config.network)
    Learner.create(model, config, origin)
    print(f"{model}: round 0, from {described(origin.about)}")
    print(f"`smg predict {model} SCAN... --out DIR` predicts with it; `smg learn {model} SITE` teaches it a site")


def _says_what_to_train(given: list[dict[str, Any]]) -> bool:
    """Return whether settings name an input, a network or an optimiser, which a plan would choose."""
    from smg.learner.configure import laid

    settings = laid(*given)
    preparation = settings.get("preparation") or {}
    if not isinstance(preparation, dict):
        return True  # a mistake, which the configuration will name
    own = set(preparation) - {"labels", "normalise", "adjacent", "empty_slices"}
    return bool(own or settings.get("network") or settings.get("optimiser"))


def _given(
    method: str | None,
    iterations: int | None,
    configs: list[str] | None,
    labels: list[str] | None,
    words: list[str] | None,
) -> list[dict[str, Any]]:
    """Return the settings that the command line gives, as layers of which a later one wins."""
    from smg.learner.configure import typed
    from smg.settings_file import read_settings
    from smg.sites.labels import Labels

    layers = [read_settings(config).layer() for config in configs or []]
    if method is not None:
        layers.append(typed({"method": method}))
    if labels:
        layers.append({"preparation": {"labels": Labels.parse(labels).model_dump()}})
    return [*layers, worded(iterations, words)]


def prepare(site: Site, config: LearnerConfig, leave_out: bool) -> list[Prepared]:
    """Prepare a site into the cache, and say what is left out and what is unusual."""
    from smg.prepare.site import prepare_site
    from smg.sites.check import unlike_others

    with progress(f"preparing {site.name}", len(site.subjects)) as advance:
        prepared = prepare_site(site, config.preparation, leave_out, progress=advance)
    whole = {subject.case for subject in site.subjects} | {fault.subject for fault in site.faults}
    if left := sorted(whole - {p.subject.case for p in prepared}):
        say(f"left out: {', '.join(left)}; run `smg sites check` for the reasons")
    values = sorted({value for one in prepared for value in one.values})
    if config.preparation.labels.classes is None and len(values) > 1:
        listed = ", ".join(f"{value:g}" for value in values[:6]) + ", ..." * (len(values) > 6)
        say(f"{site.name}: its masks have the values {listed}: all are one class, --labels NAME=VALUE keeps them apart")
    if unusual := unlike_others([(one.subject, one.shape) for one in prepared]):
        cases = ", ".join(one.subject for one in unusual[:3]) + ", ..." * (len(unusual) > 3)
        say(f"{site.name}: {len(unusual)} unusual masks ({cases}); `smg sites show` draws them first")
    return prepared


def _prepare(site: Site, config: LearnerConfig, split: Split | None, leave_out: bool, few: bool) -> None:
    """Prepare a site to be learned, with a warning if it has very few subjects."""
    from smg.sites.split import sizes

    count = len(prepare(site, config, leave_out))
    _refuse_few(site, count, split, few)
    if count < FEW:
        parts = split.items() if split else sizes(count).items()
        of = ", ".join(f"{n if isinstance(n, int) else len(n)} {part}" for part, n in parts)
        say(f"{site.name} has {_counted(count)} ({of}): what so few measure is mostly chance; 10 or more are usual")


def _refuse_few(site: Site, count: int, split: Split | None, few: bool) -> None:
    """Refuse a site with no subject to train on, or with none to test on unless `few`."""
    if not count or (split is not None and not split["train"]):
        part = "train part of the split" if count else "site"
        why = f": {site.faults[0]}" if site.faults and not count else ""
        raise SmgError(f"site {site.name}: the {part} has no subject{why}; `smg sites check` lists what is found")
    if count == 1 and split is None and not few:
        raise SmgError(f"site {site.name}: has 1 subject, so that none is left to test on; add scans, or give --few")


def _counted(count: int) -> str:
    return f"{count} subject{'s' * (count != 1)}"


def _sites(paths: list[Path], names: list[str]) -> list[Site]:
    """Return every site there, under the names given; two sites of one name are refused."""
    from smg.sites.layouts import find_sites
    from smg.sites.split import twice

    sites = [site for path in paths for site in find_sites(path).values()]
    if names and len(names) != len(sites):
        there = ", ".join(site.name for site in sites)
        raise Misuse(f"--as: {len(names)} names for {len(sites)} sites ({there}); give one name for each site")
    if names:
        sites = [_named(site, name) for site, name in zip(sites, names, strict=True)]
    for name in twice(site.name for site in sites):
        raise Misuse(f"two sites are called {name}; give --as NAME once for each site")
    return sites


def _site(path: Path, name: str | None, called: str | None) -> Site:
    from smg.sites.site import Site

    found = Site.find(path, name)
    return found if called is None else _named(found, called)


def _named(site: Site, name: str) -> Site:
    if not name.strip():
        raise Misuse("--as: the name is empty; give a name")
    return site.called(name.strip())


def _split(site: Site, path: Path | None) -> Split | None:
    from smg.sites.split import given_split, load_splits

    return given_split(site, load_splits(path), path) if path else None


def _print_round(record: RoundRecord) -> None:
    site = record.site
    count = record.subjects.train
    print(f"round {record.round}: {site}, trained on {count} subject{'s' * (count != 1)}")
    rows = [(f"{site} (test)", "-", mean_dsc([row.classes for row in record.test]), "")]
    for earlier, one in record.guard.sites.items() if record.guard else ():
        rows.append(_guard_row(earlier, one))
        if one.exemplars:
            before, after = (100 * dsc for dsc in one.exemplars)
            rows.append((f"  {earlier}'s exemplars, trained on", f"{before:.1f}", f"{after:.1f}", ""))
    print_table(("DSC in %", "before", "after", "change"), rows)
    kept = ", ".join(f"{k.subjects} of {s} ({k.bytes / 1e6:.1f} MB)" for s, k in record.kept.items())
    print(f"kept for replay: {kept}")


def _guard_row(site: str, one: Judged) -> tuple[str, str, str, str]:
    """Return what the round did to an earlier site, by subjects that no gradient has seen."""
    if one.before is None or one.after is None or one.best is None or one.error is None:
        return f"{site} (nothing kept to measure by)", "-", "-", "not measured"
    name = "sentinel" if one.evidence == "sentinels" else "held-out scan"
    change = f"{100 * (one.after - one.before):+.1f} ± {100 * one.error:.1f}"
    if one.best - one.before > 0.001:
        change += f" (best {100 * one.best:.1f})"
    label = f"{site} ({one.subjects} {name}{'s' * (one.subjects > 1)})"
    return label, f"{100 * one.before:.1f}", f"{100 * one.after:.1f}", change


def _print_evaluation(rows: list[dict[str, Any]]) -> None:
    from smg.evaluation.metrics import LISTED

    shown = [metric for metric in LISTED.values() if metric.better != "nearer zero"]  # whose mean is an accuracy
    table, worst = [], []
    order = dict.fromkeys(["test", "validation", NEVER, *sorted(row["part"] for row in rows)])
    for site in dict.fromkeys(row["site"] for row in rows):
        here = [row for row in rows if row["site"] == site]
        for part in (part for part in order if any(row["part"] == part for row in here)):
            of_part = [row for row in here if row["part"] == part]
            for name in here[0]["classes"]:
                of_class = [row["classes"][name] for row in of_part]
                missing = sum(row["asd"] is None for row in of_class)
                label = site if len(here[0]["classes"]) == 1 else f"{site} {name}"
                means = [metric.text(_average([row[metric.name] for row in of_class])) for metric in shown]
                shown_part = "train (trained on)" if part == "train" else part
                table.append((label, shown_part, str(len(of_part)), *means, str(missing) if missing else ""))
            worst.append(f"{site}, {part}: {', '.join(row['subject'] for row in of_part)}")
        lowest = sorted(here, key=lambda row: min(c["dsc"] for c in row["classes"].values()))[:3]
        worst.append(f"{site}, lowest DSC: " + ", ".join(f"{r['subject']} {mean_dsc([r['classes']])}" for r in lowest))
    print_table(("site", "part", "subjects", *(metric.head for metric in shown), "empty"), table)
    print(printable("\n".join(worst)))


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from smg.files import plain_cell, replacing

    metrics = list(next(iter(rows[0]["classes"].values()))) if rows else []
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "round", "part", "subject", "class", *metrics])
        for row in rows:
            for name, values in row["classes"].items():
                cells = [row["site"], row["round"], row["part"], row["subject"], name, *(values[m] for m in metrics)]
                writer.writerow([plain_cell(cell) for cell in cells])


def _average(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None
