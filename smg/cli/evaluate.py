"""The command that evaluates a model on sites."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import typer

from smg.cli.data_sites import SplitFile, prepare, sites_at, split_in
from smg.cli.options import Json, LeaveOut, Model, Roi, RoundNumber, TrustCode, ending_in, model_first
from smg.cli.terminal import subject_progress
from smg.errors import Misuse, SmgError
from smg.report.text import print_json, print_table, printable

NEVER = "never learned"  # the part of a subject that was in no round


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
    sites = [(found.with_roi(roi or []), split_in(found, split)) for found in sites_at(data, called or [])]
    rows = []
    for found, parts in sites:
        prepared = prepare(found, learner.config_for(found.name, number), leave_out, learner.store.vault)
        with subject_progress() as on_subject:
            evaluated = learner.evaluate(found, part, parts, leave_out, number, on_subject, prepared)
        elsewhere = learner.learned_elsewhere(found.name, prepared.subjects, number)
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


def _print_evaluation(rows: list[dict[str, Any]]) -> None:
    from smg.evaluation.metrics import LISTED, is_absent, is_missed

    shown = [metric for metric in LISTED.values() if metric.better != "nearer zero"]  # whose mean is an accuracy
    table, worst = [], []
    order = dict.fromkeys(["test", "validation", NEVER, *sorted(row["part"] for row in rows)])
    for site in dict.fromkeys(row["site"] for row in rows):
        here = [row for row in rows if row["site"] == site]
        for part in (part for part in order if any(row["part"] == part for row in here)):
            of_part = [row for row in here if row["part"] == part]
            for name in here[0]["classes"]:
                of_class = [row["classes"][name] for row in of_part]
                missing, absent = sum(map(is_missed, of_class)), sum(map(is_absent, of_class))
                label = site if len(here[0]["classes"]) == 1 else f"{site} {name}"
                means = [metric.text(_average([row[metric.name] for row in of_class])) for metric in shown]
                shown_part = "train (trained on)" if part == "train" else part
                counts = [str(count) if count else "" for count in (missing, absent)]
                table.append((label, shown_part, str(len(of_part)), *means, *counts))
            worst.append(f"{site}, {part}: {', '.join(row['subject'] for row in of_part)}")
        lowest = sorted(here, key=lambda row: min(c["dsc"] for c in row["classes"].values()))[:3]
        worst.append(f"{site}, lowest DSC: " + ", ".join(f"{r['subject']} {_mean_dsc([r['classes']])}" for r in lowest))
    heads = ("site", "part", "subjects", *(metric.head for metric in shown), "empty", "absent")
    if any(row[-1] for row in table):
        print_table(heads, table)
        print("absent: subjects that do not have the class, and of which none was predicted; their DSC counts as 100 %")
    else:
        print_table(heads[:-1], [row[:-1] for row in table])
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


def _mean_dsc(classes: list[dict[str, dict[str, float | None]]]) -> str:
    """Format the mean DSC over subjects, in per cent; of each class, with its name, if there are several."""
    names = list(dict.fromkeys(name for subject in classes for name in subject))
    if len(names) > 1:
        return ", ".join(f"{name} {_mean_dsc([{name: one[name]} for one in classes if name in one])}" for name in names)
    values = [dsc for subject in classes for c in subject.values() if (dsc := c["dsc"]) is not None]
    return f"{100 * sum(values) / len(values):.1f}" if values else "-"
