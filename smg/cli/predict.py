"""`smg predict`: write masks for scans, and mark the scans that are unlike every site learned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smg.cli.options import Codes, Json, Model, RoundNumber, TrustCode, model_first, parse_codes
from smg.cli.terminal import say
from smg.errors import Misuse, SmgError
from smg.report.text import one_line, print_json, print_line, print_table

if TYPE_CHECKING:
    from smg.learner.familiarity import Familiar
    from smg.learner.predictor import Prediction


def predict(
    model: Model,
    scans: Annotated[
        list[str], typer.Argument(metavar="SCAN...", help="Scans, folders of scans, or patterns such as `*.nii.gz`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the masks into.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace masks, maps and contact sheets that exist already.")
    ] = False,
    forms: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="`nifti`; for DICOM series also `seg` and `rtstruct`. Several may be given. [default: the scan's own]",
        ),
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="UID", help="Series of a DICOM folder that holds several.")
    ] = None,
    codes: Codes = None,
    qc: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for a contact sheet of each scan, contours over slices, as PNG."),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write each class's probability as NIfTI, beside the mask.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="`float32`, or `bfloat16`: faster on processors that have it, masks differ a little.")
    ] = "float32",
    trust_code: TrustCode = False,
    number: RoundNumber = None,
    as_json: Json = False,
) -> None:
    """Write a mask for each scan, on its own grid and in its format, and its distance to each site learned.

    A bad file does not stop the others: it is listed at the end, and the exit code is 1. A scan unlike every site is
    marked. Masks that lie beside their scans, as in a site's folder, are left out.

    Example: `smg predict model scans/*.nii.gz --out masks`
    """
    from smg.dicom.series import UID
    from smg.learner.learner import Learner
    from smg.learner.outputs import SUFFIXES, MaskWriter, check_target
    from smg.sites.scans import apart_from_masks, chosen_series, find_scans, group_channels, mask_files
    from smg.sites.volume import geometry_note, read_volume

    model_first(model, scans, "smg predict MODEL SCAN...")
    for option, given in (("--out", out), ("--qc", qc)):
        if given and given.exists() and not given.is_dir():
            raise Misuse(f"{option} {given}: is a file; give a folder")
    for form in forms or []:
        if form not in SUFFIXES:
            raise Misuse(f"--as {form}: no such format; give {', '.join(SUFFIXES)}")
    if series is not None and not UID.fullmatch(series):
        raise Misuse(f"--series {series}: no UID; `smg predict` without it lists those of a folder")
    learner = Learner(model)
    predictor, writer = learner.predictor(number), MaskWriter.of(learner, parse_codes(codes or []), number)
    predictor.use(precision)
    predictor.keeps_probabilities = probabilities
    named, faults = find_scans(scans)
    paths, masks = apart_from_masks(named)
    if masks and not paths and not faults:
        raise SmgError(f"{masks[0]}: this and every other file named is the mask of a scan beside it; name the scans")
    if masks:
        say(f"left out {len(masks)} of {len(named)} files, which are masks beside their scans: {masks[0].name}, ...")
    n = predictor.config.preparation.n_channels
    groups, incomplete = group_channels(paths, n)
    paths, files_of = [group[0] for group in groups], {group[0]: group for group in groups}
    faults += incomplete
    places = {
        form: mask_files(paths, out, overwrite, n, SUFFIXES[form] if form else None)
        for form in dict.fromkeys(forms or [""])  # the scan's own format, if none is given
    }
    maps = {
        suffix: mask_files(paths, out, overwrite, n, suffix, "map of probabilities")
        for suffix in (writer.probability_suffixes if probabilities else ())
    }
    sheets = mask_files(paths, qc, overwrite, n, ".png", "contact sheet") if qc else []
    targets: dict[Path, dict[str, Path]] = {}
    beside: dict[Path, dict[str, Path]] = {}  # maps of probabilities and the contact sheet
    answers: dict[Path, dict[str, Any] | SmgError] = {}
    for place, path in enumerate(paths):
        try:
            check_target(path, places)
            if series is not None:
                files_of[path] = tuple(chosen_series(file, series) for file in files_of[path])
            beside[path] = {form: _or_raise(files[place]) for form, files in {**maps, "sheet": sheets}.items() if files}
            targets[path] = {form: _or_raise(files[place]) for form, files in places.items()}
        except SmgError as error:
            answers[path] = error
    path_of = {files_of[path][0]: path for path in targets}

    def write(read: Path, made: Prediction) -> None:
        path = path_of[read]
        writer.write(read, made, targets[path])
        writer.write_probabilities(made, beside[path])
        if qc:
            from smg.report.contact_sheet import write_sheet

            write_sheet(beside[path]["sheet"], read_volume(read), made.mask, writer.labels)

    for number, (read, made) in enumerate(predictor.predict_all([files_of[p] for p in targets], write), start=1):
        path = path_of[read]
        if isinstance(made, SmgError):
            answers[path] = made
            continue
        masks = list(targets[path].values())
        note = "; ".join(filter(None, map(geometry_note, files_of[path])))
        if note:
            say(f"{path}: {note}")
        answers[path] = (
            _row(path, masks[0], made)
            | {"note": note or None}
            | ({"masks": [str(mask) for mask in masks]} if forms else {})
        )
        volume = f"{made.millilitres:.1f} ml{', empty' * (not made.millilitres)}"
        say(f"{number}/{len(targets)}  {', '.join(map(str, masks))}  {volume}")
    _print_answers({path: answers[path] for path in paths}, faults, predictor.familiar, as_json)


def _or_raise(place: Path | SmgError) -> Path:
    if isinstance(place, SmgError):
        raise place
    return place


def _row(path: Path, target: Path, made: Prediction) -> dict[str, Any]:
    familiar = {"distances": made.distances, "nearest": made.nearest, "unlike": made.unlike}
    volume = round(made.millilitres, 3)
    volumes = {name: round(of, 3) for name, of in made.volumes.items()}
    return {
        "scan": str(path),
        "mask": str(target),
        "volume_ml": volume,
        "volumes_ml": volumes,
        **familiar,
        "error": None,
    }


def _print_answers(
    answers: dict[Path, dict[str, Any] | SmgError], faults: list[SmgError], familiar: Familiar, as_json: bool
) -> None:
    """Print the results, and what failed at the end; exit with 1 if anything did."""
    rows = [answer for answer in answers.values() if isinstance(answer, dict)]
    failed = {str(path): answer for path, answer in answers.items() if isinstance(answer, SmgError)}
    if as_json:
        nothing = dict.fromkeys(("mask", "volume_ml", "volumes_ml", "distances", "nearest", "unlike", "note"))
        every = [a if isinstance(a, dict) else {"scan": str(p), **nothing, "error": str(a)} for p, a in answers.items()]
        print_json([row | {"threshold": familiar.threshold} for row in every])
    elif rows:
        _print_rows(rows, familiar)
    for error in [*failed.values(), *faults]:
        print(f"smg: {one_line(error)}", file=sys.stderr)
    if failed or faults:
        raise typer.Exit(1)


def _print_rows(rows: list[dict[str, Any]], familiar: Familiar) -> None:
    names = [Path(row["scan"]).name for row in rows]
    labels = names if len(set(names)) == len(names) else [row["scan"] for row in rows]
    classes = list(rows[0]["volumes_ml"]) if len(rows[0]["volumes_ml"]) > 1 else []
    columns = (
        "scan",
        "ml",
        *(f"{name} ml" for name in classes),
        *(f"to {site}" for site in familiar.means),
        "nearest",
        "",
    )
    print_table(columns, [(label, *_cells(row)) for label, row in zip(labels, rows, strict=True)])
    print_line("\n".join(_notes(familiar)))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    apart = ("-" if d is None else f"{d:.2f}" for d in row["distances"].values())
    marks = ["empty"] * (not row["volume_ml"]) + ["unlike"] * bool(row["unlike"])
    volumes = [f"{of:.1f}" for of in row["volumes_ml"].values()] if len(row["volumes_ml"]) > 1 else []
    return (f"{row['volume_ml']:.1f}", *volumes, *apart, row["nearest"] or "-", ", ".join(marks))


def _notes(familiar: Familiar) -> list[str]:
    """Return what the numbers mean, and why some are missing."""
    missing = [site for site, mean in familiar.means.items() if mean is None]
    if len(missing) == len(familiar.means) or familiar.spread is None:
        return ["distances are not known: the current round has none (an older smg learned it, or it had a single "
                "subject); the next round will have them"]  # fmt: skip
    notes = ["distances are in units of the typical difference between subjects of one site: a new subject of a site "
             "learned is at about 1"]  # fmt: skip
    if familiar.threshold is None:
        notes.append("no scan is marked as unlike: that needs two validation subjects")
    else:
        notes.append(f"unlike: more than {familiar.threshold:.2f} from every site, farther than validation subjects "
                     f"({familiar.validated}) were from their own; check its mask first")  # fmt: skip
    if missing:
        notes.append(f"no distance to {', '.join(missing)}: none of its subjects were kept in the current round")
    return notes
