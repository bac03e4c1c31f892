"""The page's sections without figures: the answer of each stream, the table of measures, and the history of models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from smg.evaluation.metrics import COMPARED, METRICS, decimal
from smg.learner.site_effects import Effect, effects_of, standings
from smg.report.answer import Verdict, verdict
from smg.report.collect import Material, Model, Record
from smg.report.costs import COLUMNS, cost_tables
from smg.report.focus import Focus
from smg.report.matrices import HeatCell, final_row, limits_of, matrix_of
from smg.report.runs import Run
from smg.report.table import Cell, StreamTable, cells, class_tables, paper_tables
from smg.report.text import duration
from smg.sites.labels import first_class

# Columns of costs that stand beside the measures, as many as there are measures, with headings that leave room.
_HEADS = {"plasticity DSC %": "plasticity", "subjects kept": "subjects", "MB kept": "MB", "seconds a round": "s"}
BESIDE = [n for n, column in enumerate(COLUMNS) if column.head in _HEADS]
BESIDE_HEADS = [_HEADS[COLUMNS[n].head] for n in BESIDE]


@dataclass(frozen=True)
class PageCell:
    """One cell of a table, as the page prints it."""

    mean: str
    spread: str = ""
    best: bool = False


@dataclass(frozen=True)
class MeasureRow:
    """One method in the table of measures."""

    name: str
    is_reference: bool
    seeds: str
    cells: list[PageCell]
    beside: list[str]  # means of BESIDE; empty where no run of the stream stores its costs


@dataclass(frozen=True)
class FinalRow:
    """One method's accuracy on every site at the end of the stream."""

    name: str
    is_reference: bool
    cells: list[HeatCell]


@dataclass(frozen=True)
class StreamAnswer:
    """The answer for one stream: the verdict in words and its two tables."""

    title: str
    verdict: Verdict
    learned: list[str]
    held_out: list[str]  # the held-out site, if there is one
    final: list[FinalRow]
    has_equal_seeds: bool


@dataclass(frozen=True)
class MeasureTable:
    """The measures of every method on one stream, of one class."""

    title: str
    measures: list[MeasureRow]
    seeds: list[int]
    has_equal_seeds: bool
    has_best: bool
    reference_note: str


@dataclass(frozen=True)
class StreamCosts:
    """The table of costs of one stream."""

    title: str
    rows: dict[str, list[PageCell]]  # by method


@dataclass(frozen=True)
class ModelRound:
    """One round of a model: how it was made, its own test part, and what it did to every site."""

    record: Record
    state: str  # current, held or rolled back; empty for an earlier round of the version in use
    time: str
    test: list[PageCell]  # one for each compared metric
    effects: list[EffectRow]


@dataclass(frozen=True)
class EffectRow:
    """What a round did to one site, DSC in per cent, as the page prints it."""

    site: str
    before: str
    after: str
    change: str
    slices: str
    best: str
    evidence: str
    exemplars: str
    lost: bool


@dataclass(frozen=True)
class ModelHistory:
    """The rounds of one model."""

    name: str
    sentence: str
    rounds: list[ModelRound]  # all of them, in the order in which they were learned


def stream_answers(material: Material, focus: Focus) -> list[StreamAnswer]:
    """Return the answer for each stream."""
    answers = []
    for table in paper_tables(material.runs):
        runs = [run for run in material.runs if run.stream == table.stream]
        answers.append(
            StreamAnswer(
                title=", ".join(filter(None, [runs[0].stream_title, table.of])),
                verdict=_verdict(table, runs, focus),
                learned=runs[0].order,
                held_out=runs[0].sites[len(runs[0].order) :],
                final=_final(table, runs),
                has_equal_seeds=table.has_equal_seeds,
            )
        )
    return answers


def measure_tables(material: Material) -> list[MeasureTable]:
    """Return the table of measures of each stream and each class."""
    made = []
    costs = {table.stream: table.rows for table in cost_tables(material.runs)}
    for table in class_tables(material.runs):
        made.append(
            MeasureTable(
                title=", ".join(filter(None, [material.title(table.stream), table.of])),
                measures=[
                    MeasureRow(name, name in table.references, _joined(table.seeds[name]),
                               [page_cell(cell, digits) for cell, digits in cells(row)],
                               [page_cell(costs[table.stream][name][n], COLUMNS[n].digits).mean for n in BESIDE]
                               if table.stream in costs else [])
                    for name, row in table.rows.items()
                ],
                seeds=sorted({seed for seeds in table.seeds.values() for seed in seeds}),
                has_equal_seeds=table.has_equal_seeds,
                has_best=any(cell.best for row in table.rows.values() for cell in row.values()),
                reference_note=table.reference_note,
            )
        )  # fmt: skip
    return made


def page_cell(cell: Cell, digits: int) -> PageCell:
    """Return a cell as the page prints it: a dash where there is no value, and how many seeds have one, if not all."""
    if cell.mean is None:
        return PageCell("–")
    spread = [] if cell.spread is None else [f"± {cell.spread:.{digits}f}"]
    spread += [f"({cell.seeds} of {cell.seeds + cell.missing})"] if cell.missing else []
    return PageCell(decimal(cell.mean, digits).replace("-", "−"), " ".join(spread), cell.best)


def stream_costs(material: Material) -> list[StreamCosts]:
    """Return what each method costs and gives beside the measures, for the streams whose runs store it."""
    return [
        StreamCosts(
            material.title(table.stream),
            {
                name: [page_cell(cell, column.digits) for cell, column in zip(row, COLUMNS, strict=True)]
                for name, row in table.rows.items()
            },
        )
        for table in cost_tables(material.runs)
    ]


def _final(table: StreamTable, runs: Sequence[Run]) -> list[FinalRow]:
    """Return the DSC of each method on every site at the end of the stream, coloured on one scale."""
    order, sites, digits = runs[0].order, runs[0].sites, METRICS["dsc"].digits
    made = {name: matrix_of([run for run in runs if run.name == name], "dsc") for name in table.rows}
    low, high = limits_of([values[len(order) - 1] for values in made.values()])
    return [
        FinalRow(name, name in table.references, final_row(values, sites, len(order), low, high, digits))
        for name, values in made.items()
    ]


def _verdict(table: StreamTable, runs: Sequence[Run], focus: Focus) -> Verdict:
    """Return the verdict by the seeds that the method and its baseline have."""
    pair = [name for name in (focus.method, focus.baseline) if name in table.rows]
    seeds = [set(table.seeds[str(name)]) for name in pair]
    if not seeds or all(one == seeds[0] for one in seeds):
        return verdict(table, runs, focus)
    common = sorted(set.intersection(*seeds))
    if not common:
        reason = f"{focus.method} and {focus.baseline} have no seed in common, so they cannot be compared yet."
        return Verdict(reason, reason, reason)
    shared = [run for run in runs if run.seed in common]
    made = verdict(paper_tables(shared)[0], shared, focus)
    return replace(made, summary=f"By seed {_joined(common)}, which both have: {made.summary}")


def _joined(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


# --- models -----------------------------------------------------------------------------------------------------------


def model_histories(material: Material) -> list[ModelHistory]:
    """Return, for each model, what each round reached on its own test part and did to every other site."""
    histories = []
    for name, model in material.named_models:
        known = {record.round: record for record in (*model.rounds, *model.aside)}
        rounds = [_model_round(known[number], known, model) for number in sorted(known)]
        histories.append(ModelHistory(name, _what_it_knows(model.rounds), rounds))
    return histories


def _model_round(record: Record, known: dict[int, Record], model: Model) -> ModelRound:
    state = "" if record in model.rounds else "held" if record.round in model.held else "rolled back"
    if model.rounds and record is model.rounds[-1]:
        state = "current"
    before, parent = [], record.parent
    while parent in known:
        before.append(known[parent].site)
        parent = known[parent].parent
    rows = [_effect_row(one) for one in effects_of(record, before[::-1])]
    return ModelRound(record, state, duration(record.seconds), [_test_mean(record, m) for m in COMPARED], rows)


def _effect_row(one: Effect) -> EffectRow:
    return EffectRow(
        site=one.site,
        before=_percent(one.before),
        after=_percent(one.after),
        change="" if one.change is None else _change(one.change, one.error),
        slices="" if one.slices is None else _change(0.0 - one.slices.fall, one.slices.error),
        best="" if one.best is None else _percent(one.best),
        evidence=one.grounds,
        exemplars=" → ".join(map(_percent, one.exemplars)) if one.exemplars else "",
        lost=one.lost,
    )


def _change(change: float, error: float | None) -> str:
    """Return a change of DSC in points, with its standard error."""
    points = f"{100 * change:+.1f}".replace("-", "−")
    return points if error is None else f"{points} ± {100 * error:.1f}"


def _percent(dsc: float | None) -> str:
    return "–" if dsc is None else f"{100 * dsc:.1f}"


def _test_mean(record: Record, metric: str) -> PageCell:
    """Return the mean of a metric over the test part of a round's own site."""
    name = first_class(record.config.tree())
    stored = [row.classes[name].get(metric) for row in record.test]
    values = [value for value in stored if value is not None]
    return PageCell(METRICS[metric].text(statistics.fmean(values) if values else None, missing="–"))


def _what_it_knows(records: Sequence[Record]) -> str:
    """Return sentences on which of its sites a model knows, has lost, and cannot measure."""
    if not records:
        return "The model has learned no site yet."
    found = standings(records)
    known = [one.site for one in found if one.state == "known"]
    sentences = [f"The model has learned {len(found)} site{'s' * (len(found) > 1)}."]
    if known:
        sentences.append(f"By the last measurement it knows {', '.join(known)}.")
    for one in (one for one in found if one.state != "known"):
        text = str(one)
        sentences.append(text[0].upper() + text[1:] + ".")
    return " ".join(sentences)
