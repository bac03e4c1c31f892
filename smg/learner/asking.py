"""Ask a version of a model: evaluate it on the parts of a site, or make its predictor."""

from __future__ import annotations

from smg.errors import SmgError
from smg.evaluation.subjects import Evaluated, OnSubject, evaluate_subjects
from smg.learner.admission import split_as_before, without_known_scans
from smg.learner.familiarity import Familiar
from smg.learner.history import History
from smg.learner.predictor import Predictor
from smg.learner.records import FamiliarRecord
from smg.learner.versions import Versions
from smg.prepare.prepared_site import PreparedSite
from smg.sites.site import Site
from smg.sites.split import Split


def evaluate_site(
    versions: Versions,
    site: Site,
    part: str | None,
    split: Split | None,
    leave_out: bool,
    number: int | None,
    on_subject: OnSubject | None,
    ready: PreparedSite | None = None,
) -> list[Evaluated]:
    """Return the metrics of each subject of a site's part; the arguments are those of `Learner.evaluate`."""
    history, asked = versions.history, part
    if number is None:
        versions.round_to_ask()
    if part is None:
        learned = site.name in [entry.site for entry in history.line(number)]
        part = "test" if learned or split is not None else "all"
    answering = versions.round_for(site.name, number)
    config = versions.as_prepared(answering)
    prepared = versions.prepare(site, config, leave_out, ready=ready)
    if split is None and asked != "all":
        # The parts of scans that were learned at another site belong to that site.
        prepared = without_known_scans(history, site.name, prepared, leave_out)
    if part != "all":
        if split is None:
            split = split_as_before(history, site.keep({p.subject.case for p in prepared}), versions.config, number)
        prepared = [p for p in prepared if p.subject.case in split[part]]
    network = versions.network(answering)
    return evaluate_subjects(network, prepared, config.preparation, config.largest_component, config.mirror, on_subject)


def predictor_of(versions: Versions, number: int) -> Predictor:
    """Return the predictor of a round, which compares scans with the sites learned up to it."""
    history = versions.history
    familiar = Familiar.read([(entry.site, _familiar(history, entry.round)) for entry in history.line(number)])
    return Predictor(versions.network(number), versions.as_prepared(number), familiar)


def _familiar(history: History, number: int) -> FamiliarRecord | None:
    """Return a round's site statistics; None if the round is damaged: prediction works without them."""
    try:
        return history.record(number).familiar
    except SmgError:
        return None
