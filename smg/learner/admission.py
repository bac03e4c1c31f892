"""What earlier rounds know of a site's scans: which were learned before, where, and in which part they were.

A scan is recognised by hashes of its content, and a case by its pseudonym, so no record names a patient.
"""

from __future__ import annotations

from collections.abc import Sequence

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.history import History
from smg.prepare.cache import Prepared
from smg.sites.site import Site
from smg.sites.split import Split, fold_site, split_site


def scan_hashes(scan: Prepared) -> tuple[str, str]:
    """Return hashes that re-identify a scan, as it is stored or turned, without naming the patient."""
    return scan.content[:16], scan.turned[:16]


def split_as_before(history: History, site: Site, config: LearnerConfig, upto: int | None = None) -> Split:
    """Split a site by a hash of seed and case; cases that a version has learned stay in the part they were in."""
    before = parts_before(history, site, upto)
    if config.folds and not before:
        return fold_site(site, config.seed, config.folds)
    return split_site(site, config.seed, before)


def parts_before(history: History, site: Site, upto: int | None = None) -> dict[str, str]:
    """Return the part that each case of a site was in when a version learned it; nothing of other cases."""
    before: dict[str, str] = {}
    for record in history.records_of(site.name, upto):
        part_of = record.parts.part_of()
        names = {s.case: alias(record.config.seed, site.name, s.case) for s in site.subjects}
        before |= {case: part_of[name] for case, name in names.items() if name in part_of}
    return before


def learned_elsewhere(
    history: History, site: str, prepared: Sequence[Prepared], upto: int | None = None
) -> dict[str, str]:
    """Return the cases whose scans a version has learned under another site's name, with that name."""
    known = {scan: record.site for record in history.records(upto) if record.site != site for scan in record.scans}
    found = {p.subject.case: [known[one] for one in scan_hashes(p) if one in known] for p in prepared}
    return {case: names[0] for case, names in found.items() if names}


def without_known_scans(history: History, site: str, prepared: Sequence[Prepared], leave_out: bool) -> list[Prepared]:
    """Return the scans that no other site has; a scan learned there would be tested on as if it were new.

    Without `leave_out` such a scan is an error.
    """
    elsewhere, new = learned_elsewhere(history, site, prepared), []
    for scan in prepared:
        where = elsewhere.get(scan.subject.case)
        if where is None:
            new.append(scan)
        elif not leave_out:
            raise SmgError(
                f"{scan.subject.image}: the same scan was learned at site {where}; --leave-out goes on without it, "
                f"--as {where} if this is that site"
            )
    return new


def trained_on(history: History, site: Site) -> set[str]:
    """Return the cases of a learned site that a round trained on."""
    cases: set[str] = set()
    for record in history.records_of(site.name):
        names = set(record.parts.train)
        cases |= {s.case for s in site.subjects if alias(record.config.seed, site.name, s.case) in names}
    return cases
