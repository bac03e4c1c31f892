"""The masks that a run predicts on test scans, after any of its rounds, beside the true masks.

A run stores nothing of a patient. So this needs the scans, and predicts again with the weights of each round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smg.errors import SmgError
from smg.evaluation.metrics import dice
from smg.learner.results import results_of
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.masks import read_subject_mask
from smg.sites.site import Site, Subject, pick
from smg.sites.volume import Volume, read_volume

if TYPE_CHECKING:
    from smg.learner.learner import Learner

Box = tuple[slice, slice]


@dataclass(frozen=True, eq=False)
class Seen:
    """A test subject: its scan, its true mask, and the mask predicted after each of some rounds, on its own grid."""

    site: str
    case: str
    scan: Volume
    truth: Array  # class indices, as stored
    predicted: dict[int, Array]  # round -> class indices, as stored

    @property
    def slices(self) -> Array:
        """Return the axial slices of the scan, anterior up."""
        return self.scan.axial()

    def axial(self, mask: Array) -> Array:
        """Return a mask in the orientation of `slices`."""
        return self.scan.orientation.axial(mask)

    @property
    def aspect(self) -> float:
        """Return the height of a pixel divided by its width."""
        _, down, across = self.scan.axial_spacing
        return down / across

    def dsc(self, number: int) -> float:
        """Return the DSC of the first class in 3-D after a round."""
        return dice(self.predicted[number] == 1, self.truth == 1)

    def inside(self) -> list[int]:
        """Return the numbers of the axial slices with foreground in the true mask."""
        return [int(n) for n in np.flatnonzero(self.axial(self.truth).any(axis=(1, 2)))]

    def box(self, margin_mm: float = 22.0) -> Box:
        """Return the rows and columns around the true mask: a square in millimetres, cut at the scan's border."""
        flat: Array = np.any(self.axial(self.truth), axis=0)
        if not flat.any():
            return slice(0, flat.shape[0]), slice(0, flat.shape[1])
        _, down, across = self.scan.axial_spacing
        where = (np.flatnonzero(np.any(flat, axis=1)), np.flatnonzero(np.any(flat, axis=0)))
        half = max((w[-1] - w[0] + 1) * mm for w, mm in zip(where, (down, across), strict=True)) / 2 + margin_mm
        return (_around(where[0], half / down, flat.shape[0]), _around(where[1], half / across, flat.shape[1]))


def _around(where: Array, half: float, size: int) -> slice:
    middle = (where[0] + where[-1] + 1) / 2
    return slice(max(0, round(middle - half)), min(size, round(middle + half)))


def contours(
    run_folder: Path,
    data: Path,
    site: str,
    round_numbers: Sequence[int],
    cases: Iterable[str] | None = None,
) -> list[Seen]:
    """Return test subjects of a site (all, or some cases) with the masks predicted after the given rounds.

    `data` is the folder of sites that the run was made from. The masks are those that the results were measured on.
    """
    from smg.bench.planned_runs import read_plan
    from smg.learner.learner import Learner
    from smg.sites.layouts import find_sites

    run = run_folder / "run.yaml"
    aliases = read_plan(str(run)).aliases if run.is_file() else {}
    wanted = list(evaluated_cases(run_folder, site) if cases is None else cases)
    found = pick(find_sites(data, aliases), site, data)
    there = {subject.case for subject in found.subjects}
    for case in wanted:
        if case not in there:
            raise SmgError(
                f"{data}: no case {case} of site {site}, on which {run_folder} was tested; give the run's own data"
            )
    learner, shown = Learner(run_folder / "model"), found.keep(set(wanted))
    predicted = {number: _predicted(learner, number, shown) for number in round_numbers}
    of_case, labels = {s.case: s for s in shown.subjects}, learner.config.preparation.labels
    return [_seen(of_case[case], labels, predicted) for case in wanted]


def evaluated_cases(run_folder: Path, site: str) -> list[str]:
    """Return the subjects of a site that a run was tested on."""
    if (results := results_of(run_folder)) is None:
        raise SmgError(f"{run_folder}: no results of a finished run; finish it with `smg run`")
    rows = [row for row in results.subjects if row.part in (None, results.part)]
    return list(dict.fromkeys(row.subject for row in rows if row.site == site))


def _predicted(learner: Learner, number: int, site: Site) -> dict[str, Array]:
    """Return case -> class indices, predicted by the network for a site after a round."""
    from smg.evaluation.whole_scan import predict_mask

    config, network = learner.as_prepared(number), learner.network_for(site.name, number)
    options = config.preparation, config.largest_component, config.mirror
    prepared = learner.prepare(site, number=number)
    return {p.subject.case: predict_mask(network, p.images, p.grid, *options) for p in prepared}


def _seen(subject: Subject, labels: Labels, predicted: dict[int, dict[str, Array]]) -> Seen:
    scan, mask = read_volume(subject.image), read_subject_mask(subject)
    masks = {number: by_case[subject.case] for number, by_case in predicted.items()}
    return Seen(subject.site, subject.case, scan, labels.index(mask.array), masks)
