"""`smg sites`: make phantom sites, check sites, draw them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.options import LabelWords, Roi, ending_in, with_limit, with_loudness
from smg.cli.terminal import progress
from smg.errors import SmgError
from smg.report.text import one_line, print_json, print_line, print_table

if TYPE_CHECKING:
    from smg.sites.labels import Labels

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Make, check and draw sites.")

Data = Annotated[Path, typer.Argument(metavar="DIR", help="A folder of sites, one site's folder, or a CSV file.")]


@app.command(epilog="Example: `smg sites synth phantoms --small`")
@with_loudness
def synth(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the six sites into.")],
    small: Annotated[
        bool, typer.Option("--small", help="Write 6 subjects per site instead of 30, 30, 19, 13, 12 and 12.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the phantoms; another seed gives other patients.", min=0)] = 0,
    channels: Annotated[
        int, typer.Option(help="Channels per subject: 1 for T2, 2 for T2 and ADC in nnU-Net's layout.", min=1, max=2)
    ] = 1,
    zones: Annotated[
        bool, typer.Option("--zones", help="Masks of two classes at every site: 1 peripheral zone, 2 central gland.")
    ] = False,
) -> None:
    """Write six phantom sites of prostate MRI, A to F, which differ as real sites do. No patient is in them."""
    make_phantoms(out, small, seed, channels=channels, zones=zones)
    print_line(f"Six sites written to {out}. Next: smg sites check {out}")


@app.command(epilog="Example: `smg sites check data/prostate`")
@with_loudness
@with_limit
def check(
    data: Data,
    labels: LabelWords = None,
    roi: Roi = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check every subject of every site and list what is found and what is wrong. Exit code 1 if anything is."""
    if not run_check(data, labels or [], as_json, roi or []):
        raise typer.Exit(1)


@app.command(epilog="Example: `smg sites show data/prostate --out sites.png`")
@with_loudness
@with_limit
def show(
    data: Data,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .pdf or .svg.")] = Path("sites.png"),
    subjects: Annotated[
        int, typer.Option(help="Tiles per site: subjects, or with --augment one subject and its augmentations.", min=1)
    ] = 6,
    augment: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help="Draw the network's input, augmented: `mild` or `strong`. [default: none]"),
    ] = None,
    size: Annotated[
        int, typer.Option(help="With --augment: rows and columns of the network's input, in pixels.", min=16)
    ] = 192,
    spacing: Annotated[
        float | None,
        typer.Option(help="With --augment: distance between pixels in mm. [default: slices are resized to --size]"),
    ] = None,
    view: Annotated[
        float | None,
        typer.Option("--field", help="With --spacing: width of the slice's centre in mm. [default: the whole slice]"),
    ] = None,
    labels: LabelWords = None,
    roi: Roi = None,
    seed: Annotated[int, typer.Option(help="With --augment: seed of the augmentation.", min=0)] = 0,
) -> None:
    """Draw one row per site: subjects with the mask's contour on the middle slice, unusual masks first and framed."""
    from smg.prepare.prepare_options import Preparation
    from smg.report.site_picture import augmented_tiles, draw_sites, outlying, plain_tiles
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites

    ending_in(out, ".png", ".pdf", ".svg")
    parsed = Labels.parse(labels or [])
    sites = [site.with_roi(roi or []) for site in find_sites(data).values() if site.subjects]
    if not sites:
        raise SmgError(f"{data}: no subject has both an image and a mask; run `smg sites check {data}`")
    if augment:
        options = Preparation(size=size, spacing=spacing, field=view, labels=parsed)
        draw_sites(sites, out, augmented_tiles(augment, options, subjects - 1, seed), 1)
    else:
        unlike = {site.name: outlying(site, parsed) for site in sites}
        draw_sites(sites, out, plain_tiles(parsed), subjects, {n: [o.subject for o in os] for n, os in unlike.items()})
        for one in (one for ones in unlike.values() for one in ones[:subjects]):
            print_line(f"{one.site} {one.subject}, in a frame: {one.reason}")
    print_line(f"Drawn: {out}")


def make_phantoms(
    out: Path,
    small: bool,
    seed: int,
    letters: Iterable[str] | None = None,
    subjects: int | None = None,
    channels: int = 1,
    zones: bool = False,
) -> None:
    """Draw phantom sites, with progress."""
    from smg.phantom.phantom import PROTOCOLS, SIX, SMALL, write_phantom_sites

    letters = tuple(letters or SIX)
    limit = subjects or (SMALL if small else 10**9)
    total = sum(min(limit, PROTOCOLS[letter].subjects) for letter in letters)
    with progress("drawing phantoms", total) as advance:
        write_phantom_sites(
            out, seed, progress=advance, letters=letters, subjects=limit, channels=channels, zones=zones
        )


def run_check(data: Path, label_words: list[str], as_json: bool, roi: Sequence[str] = ()) -> bool:
    """Check the sites, print the result, and return whether there is no fault."""
    from smg.sites.check import check_sites
    from smg.sites.labels import Labels
    from smg.sites.layouts import find_sites

    labels = Labels.parse(label_words)
    sites = {name: site.with_roi(roi) for name, site in find_sites(data).items()}
    with progress("checking", sum(len(site.subjects) for site in sites.values())) as advance:
        result = check_sites(sites.values(), labels, progress=advance)
    if as_json:
        print_json(result.as_json())
        return not result.faults
    several = any(len(facts.channels) > 1 for facts in result.sites.values())
    columns = ("subjects", "slices", "foreground", "size", "spacing in mm", "intensity", "mask values", "faults")
    rows = [
        (
            name,
            *([", ".join(facts.channels)] if several else []),
            str(facts.subjects),
            str(facts.slices),
            str(facts.foreground_slices),
            _span(facts.size, digits=6),
            _span(facts.spacing),
            _span([[v] for v in facts.intensity], between=".."),
            ", ".join(sorted(facts.mask_values, key=float)[:6]) + ", ..." * (len(facts.mask_values) > 6),
            str(sum(fault.site == name for fault in result.faults)),
        )
        for name, facts in result.sites.items()
    ]
    print_table(("site", *(["channels"] if several else []), *columns), rows)
    for name, facts in result.sites.items():
        if facts.structures:
            listed = ", ".join(f"{found} ({count} of {facts.subjects})" for found, count in facts.structures.items())
            print_line(f"{name}: structures in its masks: {listed}")
        if labels.classes is None and len(facts.mask_values) > 1:
            counts = ", ".join(f"{v} ({facts.mask_values[v]} of {facts.subjects})" for v in facts.mask_values)
            print_line(
                f"{name}: values in its masks: {counts}; all are one class, --labels NAME=VALUE keeps them apart"
            )
        for class_name, count in _rare_classes(labels, facts.mask_values, facts.subjects):
            print_line(f"{name}: class {class_name} is in {count or 'none'} of its {facts.subjects} masks")
    for fault in result.faults + result.outliers + result.notes:
        print(one_line(f"{fault.site} {fault.subject}: {fault}"))
    subjects = sum(facts.subjects for facts in result.sites.values())
    faults = len(result.faults)
    unusual = f", {len(result.outliers)} unusual masks (`smg sites show` draws them)" if result.outliers else ""
    print_line(f"{len(rows)} sites, {subjects} subjects, {faults or 'no'} fault{'s' * (faults != 1)}{unusual}")
    return not result.faults


def _rare_classes(labels: Labels, found: Mapping[str, int], subjects: int) -> Iterator[tuple[str, int]]:
    """Yield the classes that some masks lack, with the number of masks that have them; a class of several values may
    have more masks than its most frequent value, so it is named only if none has it."""
    for name, values in (labels.classes or {}).items():
        counts = [count for value, count in found.items() if float(value) in values]
        if not counts or (len(values) == 1 and counts[0] < subjects):
            yield name, max(counts, default=0)


def _span(span: list[list[float]], between: str = "-", digits: int = 3) -> str:
    """Format a span as `192²`, or `0.73-0.83² x 2.2-3` where a number varies; ² where columns and rows are equal."""
    if not span:
        return "-"
    pairs = zip(*span, strict=True)
    words = [between.join(f"{v:.{digits}g}" for v in dict.fromkeys((low, high))) for low, high in pairs]
    if len(words) > 1 and words[0] == words[1]:
        words[:2] = [f"{words[0]}²"]
    return " x ".join(words)
