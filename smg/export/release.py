"""One version of a model with everything that is said of it outside: facts and weights, and nothing of any patient.

What an export says is taken from here, field by field. Records hold more (aliases, features, hashes of scans), and none
of that has a field here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.familiarity import Familiar
from smg.learner.learner import Learner
from smg.learner.records import AnyOrigin, PackageVersions, RoundRecord, SubjectRow
from smg.learner.results import results_of
from smg.learner.site_effects import effects_of, standings
from smg.networks import MainOutput

Dsc = dict[str, float]  # by class, 0 to 1


@dataclass(frozen=True)
class Learned:
    """A site that a version has learned."""

    site: str
    round: int
    trained: int  # subjects
    tested: int
    then: Dsc  # on its test part, right after it was learned
    now: float | None = None  # with this version, on the test part: known for the model of a run
    judged: float | None = None  # with this version, on subjects never trained on, on the prepared grid
    evidence: str = ""  # the guard's: `1 sentinel`
    lost: bool = False  # whether a round since then has lost it


@dataclass(frozen=True)
class Release:
    """A round's network, how it is used, what it has learned and how well."""

    name: str
    number: int
    config: LearnerConfig  # preparation and masks as this round has them
    settings: dict[str, Any]  # of the round's training
    versions: PackageVersions  # of what made it; empty for round 0
    sha256: str  # of weights.safetensors
    learned: list[Learned]
    unseen: dict[str, float]  # sites never learned by this version, where a run has measured them
    familiar: Familiar
    origin: AnyOrigin | None
    network: nn.Module
    one_network_a_site: bool

    @property
    def inner(self) -> nn.Module:
        """The network as its own library knows it."""
        return self.network.network if isinstance(self.network, MainOutput) else self.network

    def weights(self) -> dict[str, Tensor]:
        """Return the state under the names of the network's own library; shared tensors stay shared."""
        return {name: tensor.detach() for name, tensor in self.inner.state_dict().items()}


def release(folder: Path, number: int | None = None) -> Release:
    """Read a version of a model, the current one if no round is named."""
    learner = Learner(folder)
    known = learner.model.numbers
    number = learner.current if number is None else number
    if number not in (0, *known):
        raise SmgError(f"{folder}: no round {number}; it has {', '.join(map(str, known)) or 'none yet'}")
    origin = learner.model.origin
    if not number and not origin:
        raise SmgError(f"{folder}: has learned nothing yet; `smg learn {folder} SITE` teaches it a site")
    line = learner.history.records(number)
    settings = (line[-1] if number else learner.store.read_start()).config.tree()
    config = learner.as_prepared(number)
    matrix = _matrix(folder, line)
    return Release(
        name=folder.resolve().name,
        number=number,
        config=config,
        settings=settings,
        versions=line[-1].versions if number else {},
        sha256=learner.store.files_of(number)["weights.safetensors"],
        learned=_learned(line, matrix),
        unseen={site: dsc for site, dsc in matrix.items() if site not in [one.site for one in line]},
        familiar=Familiar.read([(one.site, one.familiar) for one in line]),
        origin=origin,
        network=learner.network(number).cpu().eval(),
        one_network_a_site=config.recipe().method.one_network_a_site,
    )


def _learned(line: list[RoundRecord], matrix: dict[str, float]) -> list[Learned]:
    last = {record.site: record for record in line}  # a site that was learned again stands where it did so
    now = {one.site: one for one in effects_of(line[-1], [one.site for one in line[:-1]])} if line else {}
    lost = {one.site for one in standings(line) if one.state == "lost"}
    return [
        Learned(
            site=site,
            round=record.round,
            trained=record.subjects.train,
            tested=len(record.test),
            then=_by_class(record.test),
            now=matrix.get(site),
            judged=now[site].after if site != line[-1].site else None,
            evidence=now[site].grounds,
            lost=site in lost,
        )
        for site, record in last.items()
    ]


def _by_class(rows: Sequence[SubjectRow]) -> Dsc:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, metrics in row.classes.items():
            values.setdefault(name, []).append(metrics["dsc"] or 0.0)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _matrix(folder: Path, line: list[RoundRecord]) -> dict[str, float]:
    """Return each site's DSC after the last of these rounds, where the model is that of a run (`smg run`)."""
    try:
        results = results_of(folder.resolve().parent)
    except SmgError:  # not the results of a run
        return {}
    if results is None or not line or results.part != "test":
        return {}
    if [(one.round, one.site) for one in line] != list(enumerate(results.stream.sites[: len(line)], start=1)):
        return {}  # the model has gone its own way since
    return {site: dsc for site, dsc in results.matrix["dsc"][line[-1].site].items() if dsc is not None}
