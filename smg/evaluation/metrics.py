"""The table of metrics: what is measured of a predicted mask, on the scan's own grid.

To add a metric, add one field to `Metrics`. Its entry holds the unit, the direction, the formula and the function;
evaluation, matrices, tables, TensorBoard, commands and the page read the entry.

Published codes disagree on the direction and unit of surface distances. Here a surface is the voxels of a mask that
have a face-neighbour outside it. Distances run from each voxel of one surface to the nearest voxel of the other, in
millimetres. The symmetric distance is the mean over the voxels of both surfaces (as in MONAI and MedPy), and HD95 is
the larger of the two directed 95th percentiles (as in MONAI). Two empty masks have a DSC of 1. Where a mask is empty
it has no surface, and every metric of surfaces is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

from smg.sites.formats import Array

TOLERANCE = 2.0  # mm, of the surface Dice


@dataclass(frozen=True)
class MaskPair:
    """A predicted and a true mask, with the distances between their surfaces in mm (empty where a mask is)."""

    predicted: Array
    truth: Array
    to_truth: Array  # from each voxel of the predicted surface to the true one
    to_prediction: Array  # from each voxel of the true surface to the predicted one
    voxel_ml: float

    @property
    def distances(self) -> int:
        """The number of distances in both directions."""
        return len(self.to_truth) + len(self.to_prediction)


@dataclass(frozen=True)
class Metric:
    """One entry of the table of metrics. Values are stored as fractions or mm, and shown times `scale` in `unit`."""

    label: str
    unit: str
    scale: float
    digits: int  # after the decimal point, where the value is shown in its unit
    better: Literal["higher", "lower", "nearer zero"]
    formula: str
    function: Callable[[MaskPair], float]
    of_surfaces: bool = True  # NaN where a mask is empty
    is_compared: bool = False  # has an accuracy matrix, and BM, BT, FM, FT
    is_listed: bool = True  # has a column in the tables of subjects
    name: str = ""  # the field of `Metrics`, and the key in results.json

    @property
    def head(self) -> str:
        """Return the heading of a column: label and unit."""
        return f"{self.label} {self.unit}"

    def text(self, value: float | None, missing: str = "-") -> str:
        """Return a stored value in the metric's unit; `missing` where there is none."""
        return missing if value is None else decimal(self.scale * value, self.digits)


def decimal(value: float, digits: int) -> str:
    """Return a number to so many digits; zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def dice(a: Array, b: Array) -> float:
    """Return 2 |A ∩ B| / (|A| + |B|), which is 1 for two empty masks."""
    total = np.count_nonzero(a) + np.count_nonzero(b)
    return float(2 * np.count_nonzero(a & b) / total) if total else 1.0


def _asd(pair: MaskPair) -> float:
    return float((pair.to_truth.sum() + pair.to_prediction.sum()) / pair.distances)


def _hd95(pair: MaskPair) -> float:
    return float(max(np.percentile(pair.to_truth, 95), np.percentile(pair.to_prediction, 95)))


def _surface_dice(pair: MaskPair) -> float:
    return float(((pair.to_truth <= TOLERANCE).sum() + (pair.to_prediction <= TOLERANCE).sum()) / pair.distances)


def _volume_difference(pair: MaskPair) -> float:
    return float(np.count_nonzero(pair.predicted) - np.count_nonzero(pair.truth)) * pair.voxel_ml


def _entry(*row: Any, **options: Any) -> Any:
    return field(metadata={"metric": Metric(*row, **options)})


@dataclass(frozen=True)
class Metrics:
    """The metrics of one predicted mask. Each field is one entry of the table `METRICS`."""

    dsc: float = _entry(
        "DSC", "%", 100.0, 1, "higher", "2 |A ∩ B| / (|A| + |B|), over voxels in 3-D",
        lambda pair: dice(pair.predicted, pair.truth), of_surfaces=False, is_compared=True,
    )  # fmt: skip
    asd: float = _entry(
        "ASD", "mm", 1.0, 2, "lower", "mean distance over the voxels of both surfaces", _asd, is_compared=True
    )
    asd_to_truth: float = _entry(
        "ASD to truth", "mm", 1.0, 2, "lower", "mean distance from the predicted surface to the true one",
        lambda pair: float(pair.to_truth.mean()), is_listed=False,
    )  # fmt: skip
    asd_to_prediction: float = _entry(
        "ASD to prediction", "mm", 1.0, 2, "lower", "mean distance from the true surface to the predicted one",
        lambda pair: float(pair.to_prediction.mean()), is_listed=False,
    )  # fmt: skip
    hd95: float = _entry(
        "HD95", "mm", 1.0, 1, "lower", "the larger of the two directed 95th percentiles of the distance", _hd95
    )
    surface_dice: float = _entry(
        "surface Dice", "%", 100.0, 1, "higher", "share of both surfaces within 2 mm of the other", _surface_dice
    )
    volume_difference: float = _entry(
        "volume", "ml", 1.0, 1, "nearer zero", "predicted minus true volume", _volume_difference, of_surfaces=False
    )


METRICS = {one.name: replace(one.metadata["metric"], name=one.name) for one in fields(Metrics)}
COMPARED = {name: metric for name, metric in METRICS.items() if metric.is_compared}
LISTED = {name: metric for name, metric in METRICS.items() if metric.is_listed}


def measure(predicted: Array, truth: Array, spacing: tuple[float, float, float], steps: Array | None = None) -> Metrics:
    """Return all metrics of a predicted mask; `spacing` is in mm along the axes of the arrays.

    steps: where the axes are not at right angles, the step along each of them in mm, as rows.
    """
    predicted, truth = predicted.astype(bool), truth.astype(bool)
    to_truth, to_prediction = surface_distances(predicted, truth, spacing, steps)
    voxel_ml = (float(np.prod(spacing)) if steps is None else float(abs(np.linalg.det(steps)))) / 1000
    pair = MaskPair(predicted, truth, to_truth, to_prediction, voxel_ml)
    exists = bool(len(to_truth) and len(to_prediction))
    return Metrics(**{
        name: metric.function(pair) if exists or not metric.of_surfaces else float("nan")
        for name, metric in METRICS.items()
    })  # fmt: skip


def is_missed(measured: Mapping[str, float | None]) -> bool:
    """Return whether no surface can be measured though there should be one; both masks may be empty, and rightly so."""
    return measured["asd"] is None and measured["dsc"] != 1.0


def is_absent(measured: Mapping[str, float | None]) -> bool:
    """Return whether both masks are empty: a class that a subject does not have, and of which nothing was predicted."""
    return measured["asd"] is None and measured["dsc"] == 1.0


def surface_distances(
    a: Array, b: Array, spacing: tuple[float, float, float], steps: Array | None = None
) -> tuple[Array, Array]:
    """Return the distances from each voxel of a's surface to the nearest of b's, and the other way.

    Both are empty where either mask is.
    """
    if not a.any() or not b.any():
        return np.empty(0), np.empty(0)
    (box,) = ndimage.find_objects((a | b).astype(np.uint8))  # both surfaces lie in this box
    surface_a, surface_b = _surface(a[box]), _surface(b[box])
    if steps is not None:  # a distance transform needs axes at right angles
        points_a, points_b = (np.argwhere(surface) @ steps for surface in (surface_a, surface_b))
        return cKDTree(points_b).query(points_a)[0], cKDTree(points_a).query(points_b)[0]
    to_b = ndimage.distance_transform_edt(~surface_b, sampling=spacing)[surface_a]
    to_a = ndimage.distance_transform_edt(~surface_a, sampling=spacing)[surface_b]
    return to_b, to_a


def _surface(mask: Array) -> Array:
    """Return the voxels of a mask with a face neighbour outside it."""
    return mask & ~ndimage.binary_erosion(mask)
