"""The sites that a command line names: found, renamed, split, and prepared with notes to the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smg.cli.terminal import progress, say
from smg.errors import Misuse, SmgError

if TYPE_CHECKING:
    from smg.learner.config import LearnerConfig
    from smg.prepare.prepared_site import PreparedSite
    from smg.sites.site import Site
    from smg.sites.split import Split
    from smg.vault.vault import Vault

FEW = 4  # with fewer subjects nothing that is measured says much

SplitFile = Annotated[
    Path | None,
    typer.Option(
        "--split", help="Split file (JSON: train, validation and test). [default: by a hash of seed and case]"
    ),
]


def sites_at(paths: list[Path], names: list[str]) -> list[Site]:
    """Return every site there, under the names given; two sites of one name are refused."""
    from smg.sites.layouts import find_sites
    from smg.sites.split import twice

    sites = [site for path in paths for site in find_sites(path).values()]
    if names and len(names) != len(sites):
        there = ", ".join(site.name for site in sites)
        raise Misuse(f"--as: {len(names)} names for {len(sites)} sites ({there}); give one name for each site")
    if names:
        sites = [_named(site, name) for site, name in zip(sites, names, strict=True)]
    for name in twice(site.name for site in sites):
        raise Misuse(f"two sites are called {name}; give --as NAME once for each site")
    return sites


def site_at(path: Path, name: str | None, called: str | None) -> Site:
    from smg.sites.site import Site

    found = Site.find(path, name)
    return found if called is None else _named(found, called)


def _named(site: Site, name: str) -> Site:
    if not name.strip():
        raise Misuse("--as: the name is empty; give a name")
    return site.called(name.strip())


def split_in(site: Site, path: Path | None) -> Split | None:
    from smg.sites.split import given_split, load_splits

    return given_split(site, load_splits(path), path) if path else None


def prepare(site: Site, config: LearnerConfig, leave_out: bool, vault: Vault | None = None) -> PreparedSite:
    """Prepare a site into the cache, encrypted if there is a vault, and say what is left out and what is unusual."""
    from smg.prepare.prepared_site import PreparedSite, prepare_site
    from smg.sites.check import unlike_others
    from smg.sites.volume import geometry_note

    with progress(f"preparing {site.name}", len(site.subjects)) as advance:
        prepared = prepare_site(site, config.preparation, leave_out, progress=advance, vault=vault)
    whole = {subject.case for subject in site.subjects} | {fault.subject for fault in site.faults}
    if left := sorted(whole - {p.subject.case for p in prepared}):
        say(f"left out: {', '.join(left)}; run `smg sites check` for the reasons")
    values = sorted({value for one in prepared for value in one.values})
    if config.preparation.labels.classes is None and len(values) > 1:
        listed = ", ".join(f"{value:g}" for value in values[:6]) + ", ..." * (len(values) > 6)
        say(f"{site.name}: its masks have the values {listed}: all are one class, --labels NAME=VALUE keeps them apart")
    if odd := [(one.subject, note) for one in prepared for path in one.subject.images if (note := geometry_note(path))]:
        more = f" (and {len(odd) - 1} more: `smg sites check` lists them)" if len(odd) > 1 else ""
        say(f"{site.name} {odd[0][0].case}: {odd[0][1]}{more}")
    if unusual := unlike_others([(one.subject, one.shape) for one in prepared]):
        cases = ", ".join(one.subject for one in unusual[:3]) + ", ..." * (len(unusual) > 3)
        say(f"{site.name}: {len(unusual)} unusual masks ({cases}); `smg sites show` draws them first")
    return PreparedSite(prepared, config.preparation)


def prepare_to_learn(
    site: Site, config: LearnerConfig, split: Split | None, leave_out: bool, few: bool, vault: Vault | None
) -> PreparedSite:
    """Prepare a site to be learned, with a warning if it has very few subjects."""
    from smg.sites.split import sizes

    prepared = prepare(site, config, leave_out, vault)
    count = len(prepared.subjects)
    refuse_few(site, count, split, few)
    if count < FEW:
        parts = split.items() if split else sizes(count).items()
        of = ", ".join(f"{n if isinstance(n, int) else len(n)} {part}" for part, n in parts)
        say(f"{site.name} has {_counted(count)} ({of}): what so few measure is mostly chance; 10 or more are usual")
    return prepared


def refuse_few(site: Site, count: int, split: Split | None, few: bool) -> None:
    """Refuse a site with no subject to train on, or with none to test on unless `few`."""
    if not count or (split is not None and not split["train"]):
        part = "train part of the split" if count else "site"
        why = f": {site.faults[0]}" if site.faults and not count else ""
        raise SmgError(f"site {site.name}: the {part} has no subject{why}; `smg sites check` lists what is found")
    if count == 1 and split is None and not few:
        raise SmgError(f"site {site.name}: has 1 subject, so that none is left to test on; add scans, or give --few")


def _counted(count: int) -> str:
    return f"{count} subject{'s' * (count != 1)}"
