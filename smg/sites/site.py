"""Sites, their subjects and their faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from smg.errors import SmgError

Aliases = Mapping[str, Sequence[str]]  # a site's name -> other names of its folder, in any case of letters


def canonical(name: str, aliases: Aliases | None = None) -> str:
    """Return the site's name that `name` is an alias of; a name without an entry is returned as it is.

    With `{"RUNMC": ["ISBI", "SiteA"]}`, the names `ISBI`, `sitea` and `runmc` all give `RUNMC`.
    """
    known = {alias.upper(): site for site, others in (aliases or {}).items() for alias in (site, *others)}
    return known.get(name.upper(), name)


@dataclass(frozen=True)
class Subject:
    """One patient's images and mask. Case numbers repeat across sites, so an identity is site and case."""

    site: str
    case: str
    images: tuple[Path, ...]  # one co-registered scan a channel, in the order of the site's channels
    mask: Path
    roi: tuple[str, ...] = ()  # structures of a mask that is a SEG or RTSTRUCT, in the order of their values from 1

    @property
    def image(self) -> Path:
        """Return the scan of the first channel."""
        return self.images[0]

    @property
    def identity(self) -> str:
        """Return `SITE/CASE`."""
        return f"{self.site}/{self.case}"


@dataclass(frozen=True)
class Fault:
    """A fault of a subject: the file, and the reason in one sentence."""

    site: str
    subject: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True)
class Site:
    """The subjects of one hospital, in the order of their cases.

        site = smg.Site.find("data/RUNMC")

    Args:
        name: Name of the site.
        subjects: One entry for each patient: the images and the mask.
        faults: Faults that the layout of the files shows, such as an image without a mask.
        label_values: Values of the masks, where the data set's own description lists them.
        channels: Names of the channels, in the order of a subject's images.
    """

    name: str
    subjects: tuple[Subject, ...]
    faults: tuple[Fault, ...] = ()
    label_values: frozenset[int] | None = field(default=None, repr=False)
    channels: tuple[str, ...] = ("image",)

    @classmethod
    def find(cls, path: str | Path, name: str | None = None, aliases: Aliases | None = None) -> Site:
        """Return the site at a path.

        Args:
            path: Folder or CSV file.
            name: Name of the site to return, where the path holds several.
            aliases: Other names of each site: `{"RUNMC": ["ISBI"]}` makes a folder `ISBI` site `RUNMC`.
        """
        from smg.sites.layouts import find_sites

        sites = find_sites(Path(path), aliases)
        if name is not None:
            return pick(sites, name, Path(path), aliases)
        if len(sites) > 1:
            raise SmgError(f"{path}: holds {len(sites)} sites ({', '.join(sites)}); name one of them (--site)")
        return next(iter(sites.values()))

    def called(self, name: str) -> Site:
        """Return the site under another name; needed if the folders of two hospitals have the same name."""
        return replace(
            self,
            name=name,
            subjects=tuple(replace(subject, site=name) for subject in self.subjects),
            faults=tuple(replace(fault, site=name) for fault in self.faults),
        )

    def with_roi(self, names: Sequence[str]) -> Site:
        """Return the site with only these structures in its masks; for masks that are DICOM SEG or RTSTRUCT files."""
        return replace(self, subjects=tuple(replace(subject, roi=tuple(names)) for subject in self.subjects))

    def keep(self, cases: set[str]) -> Site:
        """Return the site with only these cases, and no faults."""
        return replace(self, subjects=tuple(s for s in self.subjects if s.case in cases), faults=())


def pick(sites: dict[str, Site], name: str, where: Path, aliases: Aliases | None = None) -> Site:
    """Return the site of that name or alias; `where` is the path that the error names."""
    wanted = canonical(name, aliases)
    if wanted not in sites:
        raise SmgError(f"{where}: no site {name!r} there; name one of {', '.join(sites)}")
    return sites[wanted]
