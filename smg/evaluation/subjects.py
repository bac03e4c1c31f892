"""Evaluate the subjects of a part: predict each, map the mask to the scan's own grid, and measure it in 3-D."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from torch import nn

from smg.errors import SmgError
from smg.evaluation.metrics import Metrics, dice, measure
from smg.evaluation.whole_scan import NotFinite, class_scores, keep_largest, predict_mask
from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.sites.masks import read_subject_mask
from smg.sites.site import Subject
from smg.sites.volume import Volume

OnSubject = Callable[[Subject, int, int], None]  # (subject, index, total), before a subject is evaluated


@dataclass(frozen=True)
class Evaluated:
    """Metrics of one subject, for each class."""

    case: str
    classes: dict[str, Metrics]

    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Return the metrics of each class by name; one that does not exist is None, since JSON has no NaN."""
        return {name: {k: _finite(v) for k, v in asdict(m).items()} for name, m in self.classes.items()}

    def as_json(self) -> dict[str, object]:
        """Return the subject's row for JSON."""
        return {"subject": self.case, "classes": self.metrics()}


def evaluate_subjects(
    network: nn.Module,
    subjects: Sequence[Prepared],
    options: Preparation,
    largest: bool = True,
    mirror: bool = False,
    on_subject: OnSubject | None = None,
) -> list[Evaluated]:
    """Return the metrics of each subject against the mask in its own file, at the mask's resolution.

    `on_subject` is called with (subject, index, total) before each subject.
    """
    rows = []
    for number, prepared in enumerate(subjects, start=1):
        if on_subject:
            on_subject(prepared.subject, number, len(subjects))
        truth = read_subject_mask(prepared.subject)
        try:
            predicted = predict_mask(network, prepared.images, prepared.grid, options, largest, mirror)
        except NotFinite as error:
            raise SmgError(f"{prepared.subject.image}: {error}") from None
        rows.append(Evaluated(prepared.subject.case, by_class(predicted, truth, options)))
    return rows


def by_class(predicted: np.ndarray, truth: Volume, options: Preparation) -> dict[str, Metrics]:
    """Return the metrics of each class of a predicted mask of class indices."""
    labels = options.labels.index(truth.array)
    i, j, k = truth.spacing
    names = options.labels.names
    return {name: measure(predicted == n, labels == n, (k, j, i), truth.steps) for n, name in enumerate(names, start=1)}


@dataclass(frozen=True)
class PreparedScore:
    """A subject's DSC on the prepared grid, averaged over classes: of the whole, and of each slice with foreground."""

    dsc: float
    slices: tuple[float, ...]


def prepared_dice(network: nn.Module, subject: Prepared, options: Preparation, largest_component: bool = True) -> float:
    """Return a subject's DSC on the prepared grid, averaged over classes.

    Training curves use it, and exemplars, which have no file of their own.
    """
    return prepared_score(network, subject, options, largest_component).dsc


def prepared_score(
    network: nn.Module, subject: Prepared, options: Preparation, largest_component: bool = True
) -> PreparedScore:
    """Return a subject's DSC on the prepared grid, of the whole and slice by slice."""
    predicted = class_scores(network, subject.images, options).argmax(axis=1).astype(np.uint8)
    if largest_component:
        predicted = keep_largest(predicted)
    truth = subject.labels.numpy()
    numbers = range(1, 1 + len(options.labels.names))

    def mean(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.mean([dice(one == n, other == n) for n in numbers]))

    slices = tuple(mean(*both) for both in zip(predicted, truth, strict=True) if both[1].any())
    return PreparedScore(mean(predicted, truth), slices)


def mean_of(values: Iterable[float]) -> tuple[float, int]:
    """Return the mean of the values that are not NaN, and their number."""
    there = [value for value in values if not math.isnan(value)]
    return (sum(there) / len(there) if there else float("nan")), len(there)


def _finite(value: float) -> float | None:
    """Return a value, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None
