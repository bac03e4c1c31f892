"""Summarise the rows of a run: matrices, the measures BM, BT, FM and FT, missing values, and costs of the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smg.evaluation.measures import FORMULAS, Matrix, measures, plasticity
from smg.evaluation.metrics import COMPARED
from smg.evaluation.subjects import mean_of
from smg.json_records import Settings
from smg.learner.closing import versions_of_packages
from smg.learner.config import LearnerConfig
from smg.learner.events import Begin
from smg.learner.results import Costs, MatrixRecord, Measures, ResultRow, Results, StreamRecord
from smg.learner.versions import Versions

OF_SENTINELS = {  # formulas of costs that stand in results.json alone, not in a table
    "sentinel_subjects": "subjects of all learned sites that are kept as sentinels after round T",
    "sentinel_bytes": "bytes of their slices and masks",
}


def summarise(begin: Begin, config: LearnerConfig, rows: Sequence[ResultRow]) -> Results:
    """Return the results of a run; matrices and measures are of the first class where there are several."""
    names, stream, part = config.preparation.labels.names, begin.stream, begin.part
    return Results(
        name=begin.name,
        method=begin.method,
        stream=stream,
        seed=begin.seed,
        part=part,
        matrix=means_of_sites(stream, rows, names[0]),
        measures={metric: _measures(stream, part, rows, metric, names[0]) for metric in COMPARED},
        formulas=FORMULAS | OF_SENTINELS,
        classes={name: {metric: _measures(stream, part, rows, metric, name) for metric in COMPARED} for name in names},
        missing={metric: _missing(rows, metric, names[0]) for metric in COMPARED},
        subjects=tuple(rows),
        config=Settings.model_validate(config.model_dump(mode="json")),
        versions=versions_of_packages(),
    )


def means_of_sites(stream: StreamRecord, rows: Sequence[ResultRow], name: str) -> dict[str, MatrixRecord]:
    """Return for each metric the mean of a class at every site after every round; None where there is no value."""
    found = {metric: _matrix(stream, rows, metric, name) for metric in COMPARED}
    return {
        metric: {learned: {site: _number(value) for site, value in row.items()} for learned, row in matrix.items()}
        for metric, matrix in found.items()
    }


def costs_of(stream: StreamRecord, versions: Versions, rows: Sequence[ResultRow]) -> Costs:
    """Return the costs of the rounds; plasticity needs a network for each site, which only `per-site` has."""
    config, history = versions.config, versions.history
    records, order = history.records(), list(stream.order)
    last, own = len(order), config.recipe().method.one_network_a_site
    name, end = config.preparation.labels.names[0], records[last - 1]
    alone = {}
    for metric in COMPARED:
        matrix = _matrix(stream, rows, metric, name)
        alone[metric] = plasticity(matrix, order, {site: matrix[site][site] for site in order if own})
    sentinels = [history.sentinels(record.round) for record in records[:last]]
    weights = sum(p.numel() for p in versions.network(end.round).parameters())
    return Costs(
        plasticity={metric: _number(value) for metric, value in alone.items()},
        replay_subjects=sum(one.subjects for one in end.kept.values()),
        replay_bytes=sum(one.bytes for one in end.kept.values()),
        state_bytes=history.state(end.round).bytes,
        parameters=weights * (last if own else 1),
        seconds={record.site: round(record.seconds, 3) for record in records},
        sentinel_subjects=sum(one.subjects for one in sentinels),
        sentinel_bytes=sum(one.bytes for one in sentinels),
    )


def _measures(stream: StreamRecord, part: str, rows: Sequence[ResultRow], metric: str, name: str) -> Measures:
    """Return BM, BT, FM and FT; FT is a difference of two rounds, over the subjects that both have."""
    both = [row for row in rows if row.part in (None, part)]
    found, paired = (
        measures(_matrix(stream, some, metric, name), list(stream.order), stream.unseen) for some in (rows, both)
    )
    return {key: _number(value) for key, value in (found | {"FT": paired["FT"]}).items()}


def _matrix(stream: StreamRecord, rows: Sequence[ResultRow], metric: str, name: str) -> Matrix:
    """Return the mean of a metric at every site after every round, NaN where there is no value."""
    matrix: Matrix = {}
    for row_round in stream.sites:
        for site in stream.sites:
            here = [row.classes[name][metric] for row in rows if row.round == row_round and row.site == site]
            mean, _ = mean_of(float("nan") if value is None else value for value in here)
            matrix.setdefault(row_round, {})[site] = mean
    return matrix


def _missing(rows: Sequence[ResultRow], metric: str, name: str) -> dict[str, dict[str, int]]:
    """Return the number of subjects without a value of a metric, where there are any."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.classes[name][metric] is None:
            of_round = counts.setdefault(row.round, {})
            of_round[row.site] = of_round.get(row.site, 0) + 1
    return counts


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
