"""Draw a picture of sites: one row a site, a middle slice of some subjects, with the contour of the mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smg.errors import SmgError
from smg.files import replacing
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_scan
from smg.sites.check import on_all_cores, unlike_others
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.masks import read_subject_mask
from smg.sites.outliers import MaskShape
from smg.sites.site import Fault, Site, Subject
from smg.sites.volume import read_volume, same_grid

CONTOURS = ("#ffb000", "#00c2ff", "#ff5ca8", "#7ee081")  # distinct to colour-blind readers, and on grey
DASHES = ("solid", "dashed", "dotted")  # of the first classes, and of more than there are colours
FRAME = "#ff4d4d"  # around masks that are unlike the others of their site
Tile = tuple[Array, Array, float]  # image, class indices, height of a pixel over its width
Draw = Callable[[Subject], list[Tile]]


def plain_tiles(labels: Labels) -> Draw:
    """Return a function that draws the scan as stored, seen axially."""

    def draw(subject: Subject) -> list[Tile]:
        image, mask = read_volume(subject.image), read_subject_mask(subject)
        if reason := same_grid(image, mask):
            raise SmgError(
                f"{subject.mask}: image and mask grids differ: {reason}; `smg sites check` lists all such scans"
            )
        classes = labels.index(mask.axial())
        middle = middle_slice(classes)
        _, down, across = image.axial_spacing
        return [(image.axial()[middle], classes[middle], down / across)]

    return draw


def augmented_tiles(preset: str, options: Preparation, count: int, seed: int) -> Draw:
    """Draw what the network sees: the prepared slice, then `count` augmentations of it, or of windows of it."""
    import torch

    from smg.prepare.augment import Augmentation, augment, margin_of
    from smg.prepare.windows import cut, draw_corner

    config = Augmentation.model_validate(preset)
    margin = margin_of(config, options.window) if options.window else 0

    def draw(subject: Subject) -> list[Tile]:
        images, grid = prepare_scan([read_volume(subject.image)], options)
        classes = grid.classes(options.labels.index(read_subject_mask(subject).array))
        middle = middle_slice(classes)
        image, labels = torch.from_numpy(images[middle]), torch.from_numpy(classes[middle])
        stack = [(image, labels)] * count
        if options.window:
            (high, wide), share = options.window, options.foreground
            sides = high + 2 * margin, wide + 2 * margin
            corners = [draw_corner(classes[middle], options.window, share, (seed, 0, 0, n)) for n in range(count)]
            corners = [(top - margin, left - margin) for top, left in corners]
            stack = [(cut(image, corner, sides), cut(labels, corner, sides)) for corner in corners]
        cuts, cut_labels = (torch.stack(part) for part in zip(*stack, strict=True))
        moved, moved_labels = augment(cuts, cut_labels, config, seed, 0, 0, margin=margin)
        drawn = zip(moved[:, 0].numpy(), moved_labels.numpy(), strict=True)
        return [(images[middle, 0], classes[middle], 1.0), *((image, label, 1.0) for image, label in drawn)]

    return draw


def middle_slice(classes: Array) -> int:
    """Return the number of the middle slice with foreground, or of the middle slice if none has any."""
    inside = np.flatnonzero(classes.any(axis=(1, 2)))
    return int(inside[len(inside) // 2]) if len(inside) else len(classes) // 2


def outlying(site: Site, labels: Labels) -> list[Fault]:
    """Return the masks of a site that are unlike its others, the farthest first; one that cannot be read is none."""

    def describe(subject: Subject) -> tuple[Subject, MaskShape | None]:
        try:
            mask = read_subject_mask(subject)
        except SmgError:
            return subject, None
        return subject, MaskShape.of(labels.index(mask.axial()), mask.axial_spacing)

    return unlike_others(list(on_all_cores(describe, site.subjects)))


def draw_sites(
    sites: Iterable[Site], out: Path, draw: Draw, subjects: int, first: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write the picture in the format of the file's suffix: PNG, PDF, SVG, or another that matplotlib writes.

    `first` lists cases of each site that are drawn before the others, in a frame.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows = []
    for site in sites:
        named = (first or {}).get(site.name, ())
        framed = [s for case in named for s in site.subjects if s.case == case][:subjects]
        others = [subject for subject in site.subjects if subject not in framed]
        spread = np.linspace(0, len(others) - 1, min(subjects - len(framed), len(others)))
        chosen = framed + [others[round(place)] for place in spread]
        tiles = [(tile, s in framed) for s, ts in zip(chosen, on_all_cores(draw, chosen), strict=True) for tile in ts]
        rows.append((site, tiles))
    columns = max(len(tiles) for _, tiles in rows)
    figure = Figure(figsize=(1.9 * columns + 0.5, 1.95 * len(rows) + 0.1), facecolor="black")
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for (site, tiles), line in zip(rows, axes, strict=True):
        for axis, (tile, is_framed) in zip(line, tiles, strict=False):
            _draw_tile(axis, *tile)
            if is_framed:
                axis.add_patch(Rectangle((0, 0), 1, 1, transform=axis.transAxes, fill=False, color=FRAME, linewidth=3))
        label = f"{site.name}\n{len(site.subjects)} subjects"
        line[0].text(-0.06, 0.5, label, color="white", rotation=90, ha="right", va="center", fontsize=9,
                     transform=line[0].transAxes, linespacing=1.4)  # fmt: skip
    with replacing(out) as temporary:
        figure.savefig(temporary, format=out.suffix.lstrip(".") or "png", dpi=130, facecolor="black")


def _draw_tile(axis: Any, image: Array, classes: Array, aspect: float) -> None:
    low, high = np.percentile(image, (1, 99.5))
    axis.imshow(image, cmap="gray", vmin=low, vmax=high, aspect=aspect, interpolation="bilinear")
    for number in range(1, int(classes.max(initial=0)) + 1):
        turn, place = divmod(number - 1, len(CONTOURS))
        if min(classes.shape) > 1:  # a contour needs two rows and columns
            dash = DASHES[turn % len(DASHES)]
            axis.contour(classes == number, levels=[0.5], colors=[CONTOURS[place]], linewidths=1.1, linestyles=dash)
