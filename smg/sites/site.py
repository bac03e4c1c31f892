"""A site and its subjects, and what can be wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from smg.errors import SmgError

# The folders of the multi-site prostate data set go by several names; one site, one name.
ALIASES = {
    "RUNMC": ("ISBI", "SITEA"),
    "BMC": ("ISBI_1.5", "SITEB"),
    "HCRUDB": ("I2CVB", "SITEC"),
    "UCL": ("SITED",),
    "BIDMC": ("SITEE",),
    "HK": ("SITEF",),
}
_KNOWN = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


def canonical(name: str) -> str:
    """Return a site's name: `ISBI`, `SiteA` and `runmc` are all `RUNMC`; any other name is itself."""
    return _KNOWN.get(name.upper(), name)


@dataclass(frozen=True)
class Subject:
    """One patient's images and mask. Case numbers repeat across sites, so an identity is site and case."""

    site: str
    case: str
    images: tuple[Path, ...]  # one co-registered scan a channel, in the order of the site's channels
    mask: Path

    @property
    def image(self) -> Path:
        """Return the scan of the first channel."""
        return self.images[0]

    @property
    def identity(self) -> str:
        return f"{self.site}/{self.case}"


@dataclass(frozen=True)
class Fault:
    """A fault of a subject: one sentence, and the file it is about."""

    site: str
    subject: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True)
class Site:
    """One hospital's subjects, in the order of their cases."""

    name: str
    subjects: tuple[Subject, ...]
    faults: tuple[Fault, ...] = ()  # seen in the layout alone: an image without a mask, or the reverse
    label_values: frozenset[int] | None = field(default=None, repr=False)  # as the data set's description lists them
    channels: tuple[str, ...] = ("image",)  # their names, in the order of a subject's images

    @classmethod
    def find(cls, path: str | Path, name: str | None = None) -> Site:
        """Return the site at `path` (a folder or a CSV file); `name` picks one where there are several."""
        from smg.sites.layouts import find_sites

        sites = find_sites(Path(path))
        if name is not None:
            return pick(sites, name, Path(path))
        if len(sites) > 1:
            raise SmgError(f"{path}: holds {len(sites)} sites ({', '.join(sites)}); name one of them (--site)")
        return next(iter(sites.values()))

    def called(self, name: str) -> Site:
        """Return the site under another name: the folders of two hospitals may have the same name."""
        name = canonical(name)
        return replace(
            self,
            name=name,
            subjects=tuple(replace(subject, site=name) for subject in self.subjects),
            faults=tuple(replace(fault, site=name) for fault in self.faults),
        )

    def keep(self, cases: set[str]) -> Site:
        """Return the site with only these cases, and no faults."""
        return replace(self, subjects=tuple(s for s in self.subjects if s.case in cases), faults=())


def pick(sites: dict[str, Site], name: str, where: Path) -> Site:
    """Return the site of that name or alias; `where` is named in the error."""
    if canonical(name) not in sites:
        raise SmgError(f"{where}: no site {name!r} there; it holds {', '.join(sites)}")
    return sites[canonical(name)]
