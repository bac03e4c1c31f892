"""Look up a site's scans in earlier rounds: which were learned, at which site, and in which part.

A scan is recognised by hashes of its content, and a case by its pseudonym, so no record names a patient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.history import History
from smg.learner.pseudonyms import Pseudonyms, pseudonyms_of
from smg.learner.records import RoundRecord
from smg.prepare.cache import Prepared
from smg.sites.site import Site
from smg.sites.split import Split, fold_site, split_site


def split_as_before(history: History, site: Site, config: LearnerConfig, upto: int | None = None) -> Split:
    """Return a site split by a hash of seed and case; cases learned before stay in their part."""
    before = parts_before(history, site, upto)
    if config.folds and not before:
        return fold_site(site, config.seed, config.folds)
    return split_site(site, config.seed, before)


def parts_before(history: History, site: Site, upto: int | None = None) -> dict[str, str]:
    """Return the part of each case that a version learned from a site; other cases are left out.

    It is the part of the latest round that had the case, and "train" if any round trained on it.
    """
    before: dict[str, str] = {}
    for record in history.records_of(site.name, upto):
        part_of, by_key = record.parts.part_of(), _key_of(record)
        names = {s.case: by_key.subject(record.config.seed, site.name, s.case) for s in site.subjects}
        parts = {case: part_of[name] for case, name in names.items() if name in part_of}
        before |= {case: part for case, part in parts.items() if before.get(case) != "train"}
    return before


def parts_if_known(history: History, site: Site, upto: int | None = None) -> dict[str, str]:
    """Return the same as `parts_before`, with "not known" for every case if the secret of its pseudonyms is missing."""
    if not all(pseudonyms_of(record.pseudonyms) for record in history.records_of(site.name, upto)):
        return {subject.case: "not known" for subject in site.subjects}
    return parts_before(history, site, upto)


def learned_elsewhere(
    history: History, site: str, prepared: Sequence[Prepared], upto: int | None = None
) -> dict[str, str]:
    """Return the cases whose scans a version learned at another site, with the name of that site."""
    known = _known_scans([record for record in history.records(upto) if record.site != site])
    found = {p.subject.case: _site_of(p, known) for p in prepared}
    return {case: name for case, name in found.items() if name}


def without_known_scans(history: History, site: str, prepared: Sequence[Prepared], leave_out: bool) -> list[Prepared]:
    """Return the scans that no other site has.

    A scan that was learned at another site would be tested as if it were new. With `leave_out` such a scan is left
    out; without it, such a scan is an error.
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


def surely_untrained(history: History, site: Site, prepared: Sequence[Prepared]) -> list[Prepared]:
    """Return the scans that no round trained on; a known scan under a name unknown to its round may have been."""
    known, part_of = _known_scans(history.records()), parts_before(history, site)
    untrained = [p for p in prepared if part_of.get(p.subject.case) != "train"]
    return [p for p in untrained if p.subject.case in part_of or _site_of(p, known) is None]


def check_trained(history: History, site: Site, split: Split, say: Callable[[str], None] | None) -> None:
    """Raise an error if a given split would validate or test with a case that a round trained on.

    Rounds whose pseudonyms cannot be resolved here are not compared; a note says so.
    """
    tested = {case for part, cases in split.items() if part != "train" for case in cases}
    for record in history.records_of(site.name):
        by_key = pseudonyms_of(record.pseudonyms)
        if by_key is None:
            if say:
                say(f"{_unknown(record)}; let SMG_SECRET name a copy of it")
            continue
        trained = set(record.parts.train)
        found = [case for case in sorted(tested) if by_key.subject(record.config.seed, site.name, case) in trained]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise SmgError(
                f"site {site.name}: round {record.round} trained on case {found[0]}{more}, and the given split has it "
                "in another part; put it in the training part"
            )


KnownScans = dict[Pseudonyms, dict[str, str]]  # key identity -> {hash of a scan: site}


def _known_scans(records: Sequence[RoundRecord]) -> KnownScans:
    """Return the scans of the rounds whose key is available here; scans of other hospitals cannot be recognised."""
    known: KnownScans = {}
    for record in records:
        if (by_key := pseudonyms_of(record.pseudonyms)) is not None and record.scans:
            known.setdefault(by_key, {}).update(dict.fromkeys(record.scans, record.site))
    return known


def _site_of(scan: Prepared, known: KnownScans) -> str | None:
    """Return the site at which a scan was learned, or None."""
    found = (sites[one] for by_key, sites in known.items() for one in by_key.scans(scan) if one in sites)
    return next(found, None)


def _key_of(record: RoundRecord) -> Pseudonyms:
    by_key = pseudonyms_of(record.pseudonyms)
    if by_key is None:
        raise SmgError(f"{_unknown(record)}; let SMG_SECRET name a copy of it, or evaluate with --part all")
    return by_key


def _unknown(record: RoundRecord) -> str:
    """Return the problem of a round whose pseudonyms cannot be resolved here."""
    return (
        f"round {record.round}, site {record.site}: the secret of its pseudonyms is not here, so it is "
        "not known who was trained on"
    )
