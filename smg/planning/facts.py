"""Read the facts of the scans that a plan needs: pixels, fields of view, and the place of the foreground."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smg.errors import SmgError
from smg.prepare.grid import Grid
from smg.sites.check import examine, on_all_cores
from smg.sites.labels import Labels
from smg.sites.site import Fault, Site, Subject

OUTLYING = 3.0  # times the 99.5th percentile: a maximum beyond it would press all tissue into a few grey values


@dataclass(frozen=True)
class SubjectFacts:
    """One subject, in mm."""

    pixel: float  # the larger of the distances between rows and between columns
    view: float  # the narrower side of a slice
    needed: float  # the smallest central field that holds all foreground
    organ: float  # the longer side, in plane, of the box around all foreground
    slices: int
    outlying: bool  # whether a few voxels are far brighter than the rest


@dataclass(frozen=True)
class Facts:
    """The subjects of all sites together, in mm."""

    sites: tuple[str, ...]
    channels: tuple[str, ...]
    labels: Labels
    subjects: tuple[SubjectFacts, ...]

    @property
    def pixel(self) -> float:
        """The usual pixel: the median."""
        return float(np.median([s.pixel for s in self.subjects]))

    @property
    def view(self) -> float:
        """The narrowest field of view."""
        return min(s.view for s in self.subjects)

    @property
    def needed(self) -> float:
        """The central field that holds every subject's foreground."""
        return max(s.needed for s in self.subjects)

    @property
    def organ(self) -> float:
        """The largest foreground."""
        return max(s.organ for s in self.subjects)

    @property
    def slices(self) -> int:
        return sum(s.slices for s in self.subjects)

    @property
    def outlying(self) -> int:
        """Subjects with a few voxels far brighter than the rest."""
        return sum(s.outlying for s in self.subjects)


def look_at(
    sites: Sequence[Site], labels: Labels, leave_out: bool = False, progress: Callable[[str], None] | None = None
) -> Facts:
    """Read every subject of the sites and return what a plan needs to know."""
    channels = sites[0].channels
    for site in sites[1:]:
        if site.channels != channels:
            raise SmgError(
                f"site {site.name}: has the channels {', '.join(site.channels)}, and {sites[0].name} "
                f"{', '.join(channels)}; one plan is for sites with the same ones"
            )
    found: list[SubjectFacts] = []
    faults: list[Fault] = [fault for site in sites for fault in site.faults]
    _refuse(faults, leave_out)  # before any scan is read

    def look(subject: Subject) -> SubjectFacts | list[Fault]:
        return _look(subject, labels)

    for one in on_all_cores(look, [subject for site in sites for subject in site.subjects]):
        if isinstance(one, SubjectFacts):
            found.append(one)
        else:
            faults += one
        if progress:
            progress("scans")
    _refuse(faults, leave_out)
    if not found:
        raise SmgError(f"site {sites[0].name}: no subject that can be read; `smg sites check` says why")
    return Facts(tuple(site.name for site in sites), channels, labels, tuple(found))


def _refuse(faults: Sequence[Fault], leave_out: bool) -> None:
    if faults and not leave_out:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise SmgError(f"{faults[0]}{more}; `smg sites check` lists all, --leave-out goes on without those subjects")


def _look(subject: Subject, labels: Labels) -> SubjectFacts | list[Fault]:
    seen = examine(subject, labels)
    if seen.faults or seen.image is None or seen.classes is None:
        return seen.faults
    shape = seen.image.array.shape
    grid = Grid((shape[0], shape[1], shape[2]), seen.image.affine, 1)
    _, rows, columns = grid.axial_shape
    shown = (grid.orientation.axial(seen.classes) != 0).any(axis=0)
    sides = [mm * np.ptp(np.flatnonzero(shown.any(axis=axis))) for axis, mm in zip((1, 0), grid.pixel, strict=True)]
    array = seen.image.array
    low, high = np.percentile(array, (0.5, 99.5))
    return SubjectFacts(
        pixel=max(grid.pixel),
        view=min(rows * grid.pixel[0], columns * grid.pixel[1]),
        needed=grid.field_of(seen.classes),
        organ=float(max(sides)),
        slices=shape[0],
        outlying=bool(float(array.max()) - low > OUTLYING * max(high - low, 1e-6)),
    )
