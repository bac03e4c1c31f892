"""The viewer in the page: NiiVue with scans and masks in three planes, or a picture for browsers without WebGL2."""

from __future__ import annotations

import base64
import gzip
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from smg.report.gallery import Gallery, Part, Shown, data_url, outlines
from smg.report.pictures import Seen
from smg.report.style import AFTER, END
from smg.sites.formats import Array
from smg.sites.volume import Volume, write_volume

VERSION = "0.69.0"  # of the vendored NiiVue
HEIGHT = 340  # pixels of the picture


def viewer(shown: Gallery) -> dict[str, Any]:
    """Return the viewer's code, and the scan and masks of every subject of the gallery as NIfTI."""
    assets = resources.files("smg.report") / "assets"
    code = gzip.compress((assets / "niivue.umd.js").read_bytes(), 9, mtime=0)
    return {
        "version": VERSION,
        "licence": (assets / "niivue.LICENSE.txt").read_text(),
        "code": base64.b64encode(code).decode(),
        "scans": [[_scan(subject, part) for subject in part.subjects] for part in shown.parts],
    }


def _scan(shown: Shown, part: Part) -> dict[str, Any]:
    seen = next(iter(shown.seen.values()))
    masks = []
    for name, by_method in shown.seen.items():
        for label, number in (("at the end", part.end), (part.after_label, part.after)):
            data = nifti(by_method.predicted[number], by_method.scan.affine)
            masks.append({"label": f"{name}, {label}", "data": data})
    return {
        "title": f"{part.site} {shown.case}",
        "scan": nifti(grey_levels(seen.scan.array), seen.scan.affine),
        "truth": nifti(seen.truth, seen.scan.affine),
        "masks": masks,
        "picture": three_planes(seen, part.end),
    }


def grey_levels(array: Array) -> Array:
    """Return the scan in 256 grey levels, which is enough for the eye and an eighth of the size."""
    low, high = np.percentile(array, (0.5, 99.5))
    return (255 * np.clip((array.astype(np.float32) - low) / max(high - low, 1e-6), 0, 1)).astype(np.uint8)


def nifti(array: Array, affine: Array) -> str:
    """Return a volume as base64 of .nii.gz, with a new header that holds no name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "volume.nii.gz")
        write_volume(path, Volume(array.astype(np.uint8), affine))
        return base64.b64encode(path.read_bytes()).decode()


def three_planes(seen: Seen, number: int) -> str:
    """Return the axial, coronal and sagittal plane through the middle of the true mask as a data URL, with contours."""
    from PIL import Image

    truth, predicted = seen.axial(seen.truth), seen.axial(seen.predicted[number])
    grey = seen.scan.orientation.axial(grey_levels(seen.scan.array))
    middle = [int(np.median(where)) for where in np.nonzero(truth)] if truth.any() else [n // 2 for n in truth.shape]
    tall, down, across = seen.scan.axial_spacing
    cuts = [
        ((middle[0], slice(None), slice(None)), (down, across)),
        ((slice(None, None, -1), middle[1], slice(None)), (tall, across)),
        ((slice(None, None, -1), slice(None), middle[2]), (tall, down)),
    ]
    planes = [_plane(grey[cut], {AFTER: truth[cut], END: predicted[cut]}, spacing) for cut, spacing in cuts]
    whole = Image.new("RGB", (sum(p.width for p in planes) + 8 * (len(planes) - 1), HEIGHT))
    left = 0
    for plane in planes:
        whole.paste(plane, (left, (HEIGHT - plane.height) // 2))
        left += plane.width + 8
    return data_url(whole)


def _plane(grey: Array, masks: dict[str, Array], spacing: tuple[float, float]) -> Any:
    from PIL import Image, ImageDraw

    rows, columns = grey.shape
    scale = min(HEIGHT / (rows * spacing[0]), 1.2 * HEIGHT / (columns * spacing[1]))
    size = max(1, round(columns * spacing[1] * scale)), max(1, round(rows * spacing[0] * scale))
    plane = Image.fromarray(np.ascontiguousarray(grey)).resize(size, Image.Resampling.BICUBIC).convert("RGB")
    pen = ImageDraw.Draw(plane)
    for colour, mask in masks.items():
        for line in outlines(mask):
            pen.line([(x * size[0] / columns, y * size[1] / rows) for x, y in line], fill=colour, width=2)
    return plane
