"""The engineer's commands: one model kept going while hospitals come and go."""

from __future__ import annotations

import csv
import glob
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.terminal import print_json, print_table
from smg.errors import SmgError

if TYPE_CHECKING:
    from smg.learner.learner import Learner
    from smg.methods import Step
    from smg.sites.site import Site
    from smg.sites.split import Split

HELD = 3  # exit code of a round that harmed an earlier site

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SiteName = Annotated[str | None, typer.Option("--site", help="Which site, where the folder holds several.")]
SplitFile = Annotated[
    Path | None,
    typer.Option("--split", help="A split file; subjects are ranked by a hash of seed and case if not given."),
]
LeaveOut = Annotated[bool, typer.Option("--leave-out", help="Go on without subjects that have faults.")]

replay = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="What is kept of each site.")


def learn(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder, or a CSV file.")],
    method: Annotated[str | None, typer.Option(help="The method of this round; `sga+c` for a new model.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of this round.", min=1)] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with any settings.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as `network.width=8`.")
    ] = None,
    site: SiteName = None,
    split: SplitFile = None,
    tolerance: Annotated[
        float, typer.Option(help="Points of DSC that an earlier site's exemplars may fall before the round is held.")
    ] = 5.0,
    again: Annotated[bool, typer.Option("--again", help="Learn a site that was learned before.")] = False,
    other_preparation: Annotated[
        bool, typer.Option("--other-preparation", help="Prepare scans otherwise than the model's earlier rounds.")
    ] = False,
    leave_out: LeaveOut = False,
    as_json: Json = False,
) -> None:
    """Learn a site: the first makes the model, each further one adds a round. Killed, it goes on when run again.

    Example: `smg learn model data/RUNMC --set preparation.size=192`
    """
    learner = _learner(model, method, iterations, config, settings or [], other_preparation)
    found = _site(data, site)
    record = learner.learn(
        found,
        split=_split(found, split),
        again=again,
        leave_out=leave_out,
        tolerance=tolerance / 100,
        told=_Teller(learner.config.iterations),
        say=lambda line: print(line, file=sys.stderr),
    )
    if as_json:
        print_json(record)
    else:
        _print_round(record)
    if record["held"]:
        number = record["round"]
        print(
            f"round {number} is held: an earlier site fell by more than {tolerance:g} points. The model is as it was. "
            f"`smg accept {model} {number}` takes the round; to drop it, do nothing",
            file=sys.stderr,
        )
        raise typer.Exit(HELD)


def evaluate(
    model: Model,
    data: Annotated[list[Path], typer.Argument(metavar="SITE...", help="Sites' folders, or CSV files.")],
    part: Annotated[str, typer.Option(help="`test`, `validation`, `train` or `all` of a site.")] = "test",
    as_csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write every subject's numbers to this file.")
    ] = None,
    split: SplitFile = None,
    leave_out: LeaveOut = False,
    as_json: Json = False,
) -> None:
    """Measure the model on sites, each scan on its own grid, and name the worst cases.

    Example: `smg evaluate model data/RUNMC data/HK --part all`
    """
    from smg.learner.learner import Learner

    if part not in ("train", "validation", "test", "all"):
        raise SmgError(f"--part {part}: it is train, validation, test or all")
    learner = Learner(model)
    rows = []
    for path in data:
        for found in _sites(path):
            evaluated = learner.evaluate(found, part, _split(found, split), leave_out)
            rows += [{"site": found.name, **row.as_json()} for row in evaluated]
    if as_csv:
        _write_csv(as_csv, rows)
    if as_json:
        print_json(rows)
    else:
        _print_evaluation(rows)


def predict(
    model: Model,
    scans: Annotated[list[str], typer.Argument(metavar="SCAN...", help="Scans, folders of scans, or patterns.")],
    out: Annotated[Path, typer.Option(help="The folder for the masks.")],
) -> None:
    """Write a mask for each scan, on the scan's own grid and in its format. A bad file is listed at the end: exit 1.

    Example: `smg predict model scans/*.nii.gz --out masks`
    """
    from smg.learner.learner import Learner
    from smg.sites.layouts import case_of
    from smg.sites.volume import mask_suffix, read_volume, write_volume

    learner = Learner(model)
    if not learner.current:
        raise SmgError(f"{model}: has learned nothing yet; `smg learn {model} SITE` first")
    paths, failed = _scans(scans), []
    for number, path in enumerate(paths, start=1):
        try:
            scan = read_volume(path)
            mask = learner.predict(scan)
            target = out / f"{case_of(path)}{mask_suffix(path)}"
            if target.resolve() == path.resolve():
                raise SmgError(f"{path}: the mask would overwrite the scan; give another folder")
            write_volume(target, mask)
        except SmgError as error:
            failed.append(str(error))
            continue
        i, j, k = scan.spacing
        volume = float((mask.array > 0).sum()) * i * j * k / 1000
        print(f"{number}/{len(paths)}  {target}  {volume:.1f} ml", flush=True)
    for line in failed:
        print(f"smg: {line}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def history(model: Model, as_json: Json = False) -> None:
    """List every round of the model, what it did, and which is current.

    Example: `smg history model`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    records = [learner.store.read_round(entry["round"]) for entry in learner.model["rounds"]]
    journal = learner.store.journal()
    if as_json:
        keys = ("round", "parent", "site", "subjects", "kept", "earlier", "held", "versions")
        rounds = [{key: record[key] for key in keys} for record in records]
        print_json({"current": learner.current, "rounds": rounds, "journal": journal})
        return
    print_table(
        ("round", "site", "from", "when (UTC)", "method", "iterations", "trained on", "test DSC", "kept", ""),
        [_history_row(record, journal, learner.current) for record in records],
    )
    for event in journal:
        if event["event"] in ("rolled back", "accepted", "dropped exemplars"):
            details = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("when", "event"))
            print(f"{event['when'][:16]}  {event['event']}: {details}")


def rollback(
    model: Model, number: Annotated[int, typer.Argument(metavar="ROUND", help="The round to go back to.", min=0)]
) -> None:
    """Make an earlier round current. Nothing is deleted: the later rounds stay, and can be gone back to.

    Example: `smg rollback model 2`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.rollback(number)
    print(f"round {number} is current; the model knows {', '.join(learner.sites) or 'no site yet'}")


def accept(
    model: Model, number: Annotated[int, typer.Argument(metavar="ROUND", help="The held round.", min=1)]
) -> None:
    """Make a held round current.

    Example: `smg accept model 3`
    """
    from smg.learner.learner import Learner

    learner = Learner(model)
    learner.accept(number)
    print(f"round {number} is current; the model knows {', '.join(learner.sites)}")


@replay.command("show", epilog="Example: `smg replay show model`")
def replay_show(model: Model, as_json: Json = False) -> None:
    """Tell how many subjects and bytes of each site are kept."""
    from smg.learner.learner import Learner

    kept = Learner(model).kept()
    if as_json:
        print_json(kept)
    else:
        print_table(
            ("site", "subjects", "MB"), [(s, str(k["subjects"]), f"{k['bytes'] / 1e6:.1f}") for s, k in kept.items()]
        )


@replay.command("drop", epilog="Example: `smg replay drop model RUNMC`")
def replay_drop(model: Model, site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")]) -> None:
    """Remove a site's exemplars for good, and note it in the history."""
    from smg.learner.learner import Learner
    from smg.sites.site import canonical

    count = Learner(model).drop(canonical(site))
    print(f"{count} exemplars of {canonical(site)} removed")


# --- on the way -------------------------------------------------------------------------------------------------------


def _learner(
    model: Path, method: str | None, iterations: int | None, file: Path | None, words: list[str], other: bool
) -> Learner:
    """The model there, with any change asked for, or a new one."""
    from smg.learner.configure import configuration, from_words, read_yaml
    from smg.learner.learner import Learner

    given: list[dict[str, Any]] = [read_yaml(file)] if file else []
    given += [{key: value} for key, value in (("method", method), ("iterations", iterations)) if value is not None]
    given.append(from_words(words))
    if (model / "model.json").is_file():
        own = Learner(model).model["config"]
        return Learner(model, configuration(own, *given), other)
    if model.exists() and (not model.is_dir() or any(p.name != "lock" for p in model.iterdir())):
        raise SmgError(f"{model}: exists and holds no model; give a new folder")
    return Learner.create(model, configuration(*given))


def _sites(path: Path) -> list[Site]:
    from smg.sites.layouts import find_sites

    return list(find_sites(path).values())


def _site(path: Path, name: str | None) -> Site:
    from smg.sites.site import Site

    return Site.find(path, name)


def _split(site: Site, path: Path | None) -> Split | None:
    from smg.sites.split import given_split, load_splits

    return given_split(site, load_splits(path), path) if path else None


def _scans(words: list[str]) -> list[Path]:
    """Files, DICOM folders, folders of either, and patterns."""
    from smg.sites.volume import is_scan

    found: list[Path] = []
    for word in words:
        paths = [Path(p) for p in sorted(glob.glob(word))] or [Path(word)]
        for path in paths:
            if path.is_dir() and not is_scan(path):
                found += [p for p in sorted(path.iterdir()) if not p.name.startswith(".") and is_scan(p)]
            else:
                found.append(path)
    if not found:
        raise SmgError(f"{' '.join(words)}: no scan there")
    return found


class _Teller:
    """Iteration, loss, alignment and time left: a line that renews itself on a terminal, one every 10 s in a pipe."""

    def __init__(self, iterations: int) -> None:
        self.iterations, self.terminal = iterations, sys.stderr.isatty()
        self.begun, self.first, self.last = time.monotonic(), None, 0.0

    def __call__(self, iteration: int, step: Step) -> None:
        now = time.monotonic()
        self.first = self.first or iteration - 1  # type: ignore[assignment]
        done = iteration == self.iterations
        if now - self.last < (0.2 if self.terminal else 10) and not done:
            return
        self.last = now
        left = (now - self.begun) / max(iteration - (self.first or 0), 1) * (self.iterations - iteration)
        loss = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items() if name in ("incoming", "replay"))
        cosines = "  ".join(f"{name.replace('_', ' ')} {value:+.2f}" for name, value in step.cosines.items())
        line = f"iteration {iteration}/{self.iterations}  loss: {loss}  {cosines}  {left:.0f} s left"
        end = "\n" if done or not self.terminal else ""
        print(f"\r\033[K{line}" if self.terminal else line, end=end, file=sys.stderr, flush=True)


def _history_row(record: dict[str, Any], journal: list[dict[str, Any]], current: int) -> tuple[str, ...]:
    number, config = record["round"], record["config"]
    dates = [e["when"][:16] for e in journal if e.get("round") == number and e["event"] in ("learned", "held")]
    return (
        str(number),
        record["site"],
        str(record["parent"] or "-"),
        dates[0] if dates else "-",
        config["method"],
        str(config["iterations"]),
        str(record["subjects"]["train"]),
        _mean([row["classes"] for row in record["test"]]),
        str(record["kept"].get(record["site"], {}).get("subjects", 0)),
        "current" if number == current else "held" if record["held"] else "",
    )


def _print_round(record: dict[str, Any]) -> None:
    site = record["site"]
    print(f"round {record['round']}: {site}, trained on {record['subjects']['train']} subjects")
    rows = [(f"{site} (test)", "-", _mean([row["classes"] for row in record["test"]]), "")]
    for earlier, dsc in record["earlier"].items():
        before, after = 100 * dsc["before"], 100 * dsc["after"]
        rows.append((f"{earlier} (exemplars)", f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"))
    print_table(("DSC in %", "before", "after", "change"), rows)
    kept = ", ".join(f"{k['subjects']} of {s} ({k['bytes'] / 1e6:.1f} MB)" for s, k in record["kept"].items())
    print(f"kept for replay: {kept}")


def _print_evaluation(rows: list[dict[str, Any]]) -> None:
    table, worst = [], []
    for site in dict.fromkeys(row["site"] for row in rows):
        here = [row for row in rows if row["site"] == site]
        for name in here[0]["classes"]:
            of_class = [row["classes"][name] for row in here]
            missing = sum(row["asd"] is None for row in of_class)
            label = site if len(here[0]["classes"]) == 1 else f"{site} {name}"
            dsc, asd, hd95, near = (_average([r[m] for r in of_class]) for m in ("dsc", "asd", "hd95", "surface_dice"))
            numbers = (_cell(dsc, 100), _cell(asd), _cell(hd95), _cell(near, 100), str(missing) if missing else "")
            table.append((label, str(len(here)), *numbers))
        lowest = sorted(here, key=lambda row: min(c["dsc"] for c in row["classes"].values()))[:3]
        worst.append(f"{site}, lowest DSC: " + ", ".join(f"{r['subject']} {_mean([r['classes']])}" for r in lowest))
    print_table(("site", "subjects", "DSC %", "ASD mm", "HD95 mm", "within 2 mm %", "empty"), table)
    print("\n".join(worst))


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    from smg.files import replacing

    metrics = list(next(iter(rows[0]["classes"].values()))) if rows else []
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "subject", "class", *metrics])
        for row in rows:
            for name, values in row["classes"].items():
                writer.writerow([row["site"], row["subject"], name, *(values[m] for m in metrics)])


def _mean(classes: list[dict[str, dict[str, float]]]) -> str:
    """The mean DSC over subjects and classes, in per cent."""
    values = [c["dsc"] for subject in classes for c in subject.values()]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"


def _average(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def _cell(value: float | None, scale: float = 1) -> str:
    return "-" if value is None else f"{scale * value:.1f}" if scale > 1 else f"{value:.2f}"
