"""Read the facts of the scans that a plan needs: pixels, fields of view, and the place and form of the foreground."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from smg.errors import SmgError
from smg.planning.classes import Classes, Pieces, Sides, in_pieces, measure_classes, on_two_sides
from smg.prepare.grid import Grid
from smg.sites.check import Examined, doubled, examine, on_all_cores
from smg.sites.formats import Array
from smg.sites.labels import Labels
from smg.sites.site import Fault, Site, Subject
from smg.sites.volume import OBLONG

OUTLYING = 3.0  # times the 99.5th percentile: a maximum beyond it would press all tissue into a few grey values

CasesOf = Callable[[Site], Collection[str]]  # the cases that a plan may look at, of a site without its faulty subjects


@dataclass(frozen=True)
class SubjectFacts:
    """One subject, in mm."""

    pixel: float  # the larger of the distances between rows and between columns
    view: float  # the narrower side of a slice
    needed: float  # the smallest central field that holds all foreground
    organ: float  # the longer side, in plane, of the box around all foreground
    slices: int
    outlying: bool  # whether a few voxels of a channel are far brighter than the rest
    ratio: float = 1.0  # of the distances between rows and between columns, the larger over the smaller
    classes: Classes = field(default_factory=dict)
    site: str = ""


@dataclass(frozen=True)
class Facts:
    """The subjects of all sites together, in mm."""

    sites: tuple[str, ...]
    channels: tuple[str, ...]
    labels: Labels
    subjects: tuple[SubjectFacts, ...]
    is_part: bool = False  # whether subjects that will be tested on were left out

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

    @property
    def in_pieces(self) -> Pieces | None:
        """The class that is most in pieces, if any is."""
        return in_pieces([s.classes for s in self.subjects], self.labels.names)

    @property
    def on_two_sides(self) -> Sides | None:
        """Two classes of which one is always to the left of the other, if there are such."""
        return on_two_sides([s.classes for s in self.subjects], self.labels.names)

    def warnings(self) -> list[str]:
        """Return a line for each site whose slices were not taken as axial ones."""
        lines = []
        for name in self.sites:
            own = [s for s in self.subjects if s.site == name]
            if own and (ratio := float(np.median([s.ratio for s in own]))) > OBLONG:
                long = float(np.median([s.pixel for s in own]))
                lines.append(
                    f"site {name}: pixels of axial slices are {long:.2g} x {long / ratio:.2g} mm, so the scans were "
                    "probably taken in another plane, and this plan will fit them badly; export them as axial series, "
                    "or set preparation.size and preparation.spacing by hand"
                )
        return lines


@dataclass(frozen=True)
class _Seen:
    """A subject that could be read."""

    subject: Subject
    content: str
    turned: str
    facts: SubjectFacts


def look_at(
    sites: Sequence[Site],
    labels: Labels,
    leave_out: bool = False,
    progress: Callable[[str], None] | None = None,
    cases_of: CasesOf | None = None,
) -> Facts:
    """Read every subject of the sites and return what a plan needs to know.

    With `cases_of` only the cases that it returns count; the other subjects are read for faults alone.
    """
    _check_channels(sites)
    faults: list[Fault] = [fault for site in sites for fault in site.faults]
    _refuse(faults, leave_out)  # before any scan is read
    seen: list[list[_Seen]] = [[] for _ in sites]

    def look(item: tuple[int, Subject]) -> tuple[int, _Seen | list[Fault]]:
        place, subject = item
        return place, _look(subject, labels, sites[place].label_values)

    for place, one in on_all_cores(look, _numbered(sites)):
        if isinstance(one, _Seen):
            seen[place].append(one)
        else:
            faults += one
        if progress:
            progress("scans")
    _refuse(faults, leave_out)
    found = [one for site, own in zip(sites, seen, strict=True) for one in _counting(site, own, cases_of)]
    if not found:
        raise SmgError(f"site {sites[0].name}: no subject that can be read; `smg sites check` says why")
    return Facts(tuple(site.name for site in sites), sites[0].channels, labels, tuple(found), cases_of is not None)


def _check_channels(sites: Sequence[Site]) -> None:
    channels = sites[0].channels
    for site in sites[1:]:
        if site.channels != channels:
            raise SmgError(
                f"site {site.name}: has the channels {', '.join(site.channels)}, and {sites[0].name} "
                f"{', '.join(channels)}; one plan is for sites with the same ones"
            )


def _refuse(faults: Sequence[Fault], leave_out: bool) -> None:
    if faults and not leave_out:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise SmgError(f"{faults[0]}{more}; `smg sites check` lists all, --leave-out goes on without those subjects")


def _numbered(sites: Sequence[Site]) -> Iterator[tuple[int, Subject]]:
    """Yield every subject with its site's place: two sites may have one name."""
    for place, site in enumerate(sites):
        for subject in site.subjects:
            yield place, subject


def _counting(site: Site, seen: Sequence[_Seen], cases_of: CasesOf | None) -> list[SubjectFacts]:
    """Return the facts of the subjects that a plan may look at.

    `cases_of` gets the site as a round will have it: without faulty subjects, and without second copies of a scan.
    """
    if cases_of is None:
        return [one.facts for one in seen]
    copies = {fault.subject for fault in doubled((one.subject, one.content, one.turned) for one in seen)}
    cases = cases_of(site.keep({one.subject.case for one in seen} - copies))
    return [one.facts for one in seen if one.subject.case in cases]


def _look(subject: Subject, labels: Labels, label_values: frozenset[int] | None) -> _Seen | list[Fault]:
    seen = examine(subject, labels, label_values=label_values)
    if seen.faults or seen.classes is None or not seen.images:
        return seen.faults
    return _Seen(subject, seen.content, seen.turned, _facts_of(seen, seen.classes, labels))


def _facts_of(seen: Examined, classes: Array, labels: Labels) -> SubjectFacts:
    """Return the facts of a subject without faults."""
    shape = seen.images[0].array.shape
    grid = Grid((shape[0], shape[1], shape[2]), seen.images[0].affine, 1)
    slices, rows, columns = grid.axial_shape
    axial = grid.orientation.axial(classes)
    shown = (axial != 0).any(axis=0)
    sides = [mm * np.ptp(np.flatnonzero(shown.any(axis=axis))) for axis, mm in zip((1, 0), grid.pixel, strict=True)]
    return SubjectFacts(
        pixel=max(grid.pixel),
        view=min(rows * grid.pixel[0], columns * grid.pixel[1]),
        needed=grid.field_of(classes),
        organ=float(max(sides)),
        slices=slices,
        outlying=any(_is_outlying(image.array) for image in seen.images),
        ratio=max(grid.pixel) / min(grid.pixel),
        classes=measure_classes(axial, labels.names, grid.pixel[1]),
        site=seen.subject.site,
    )


def _is_outlying(array: Array) -> bool:
    """Return whether a few voxels of an image are far brighter than the rest."""
    low, high = np.percentile(array, (0.5, 99.5))
    return bool(float(array.max()) - low > OUTLYING * max(high - low, 1e-6))
