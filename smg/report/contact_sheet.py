"""A contact sheet of one scan: its slices in a grid, each with the contours of the predicted mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smg.files import naming, replacing
from smg.report.gallery import outlines
from smg.report.style import PALETTE
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.volume import Volume

TILES, COLUMNS, SIDE, GAP = 24, 6, 220, 6  # slices at most, a row, and pixels
PAPER, WORDS = (18, 21, 24), (232, 234, 237)


def write_sheet(path: Path, scan: Volume, mask: Volume, labels: Labels) -> None:
    """Write the sheet as PNG: slices from the feet to the head, a colour for each class, its name at the bottom."""
    from PIL import Image, ImageDraw

    images, classes = scan.axial(), scan.orientation.axial(labels.index(mask.array))
    chosen = shown_slices(classes)
    low, high = np.percentile(images, (1, 99.5))
    _, row_mm, column_mm = scan.axial_spacing
    rows, columns = images.shape[1:]
    scale = SIDE / max(rows * row_mm, columns * column_mm)
    width, height = max(1, round(columns * column_mm * scale)), max(1, round(rows * row_mm * scale))
    across = min(COLUMNS, len(chosen))
    down = -(-len(chosen) // across)
    sheet = Image.new("RGB", (GAP + across * (width + GAP), GAP + down * (height + GAP) + 18), PAPER)
    pen = ImageDraw.Draw(sheet)
    for place, number in enumerate(chosen):
        left, top = GAP + place % across * (width + GAP), GAP + place // across * (height + GAP)
        grey = np.clip((images[number].astype(np.float32) - low) / max(float(high - low), 1e-6), 0, 1)
        tile = Image.fromarray((255 * grey).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        sheet.paste(tile, (left, top))
        for index in range(1, 1 + len(labels.names)):
            for line in outlines(classes[number] == index):
                points = [(left + x * width / columns, top + y * height / rows) for x, y in line]
                pen.line(points, fill=colour(index), width=2)
        pen.text((left + 4, top + 2), str(number + 1), fill=WORDS)
    at = GAP
    for index, name in enumerate(labels.names, start=1):
        words = f"{name}, {np.count_nonzero(classes == index) * scan.voxel / 1000:.1f} ml"
        pen.text((at, sheet.height - 16), words, fill=colour(index))
        at += int(pen.textlength(words)) + 16
    with naming(path), replacing(path) as temporary:
        sheet.save(temporary, "PNG")


def shown_slices(classes: Array) -> list[int]:
    """Return the slices to show: all if they are few, else those with foreground and one beside, evenly thinned."""
    count = len(classes)
    if count <= TILES:
        return list(range(count))
    filled = np.flatnonzero(classes.reshape(count, -1).any(axis=1))
    first, last = (max(0, filled[0] - 1), min(count - 1, filled[-1] + 1)) if len(filled) else (0, count - 1)
    return sorted({int(n) for n in np.linspace(first, last, TILES).round()})


def colour(index: int) -> str:
    """Return the colour of a class: the palette's for a dark ground."""
    return PALETTE[(4, 0, 2, 3, 1, 5, 6, 7)[(index - 1) % len(PALETTE)]][1]
