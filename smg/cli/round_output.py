"""Pass a round's numbers on: to trackers while it trains, and to the terminal at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from smg.cli.effect_tables import print_effects
from smg.report.text import duration, print_line

if TYPE_CHECKING:
    from smg.learner.events import Evaluation, Listener
    from smg.learner.learner import Learner
    from smg.learner.records import RoundRecord
    from smg.learner.round import OnStep
    from smg.learner.site_effects import Effect
    from smg.methods import Step


def trackers(names: list[str], learner: Learner, model: Path) -> list[Listener]:
    """Return what passes a round's numbers on; files of trackers lie beside the model, in MODEL-tracking."""
    from smg.learner.processes import first_process
    from smg.learner.tracking import tracker

    if not first_process():
        return []
    folder, config = model.with_name(f"{model.name}-tracking"), learner.config
    return [tracker(name, folder, model.name, config.iterations, config.model_dump(mode="json")) for name in names]


def _next_round(learner: Learner) -> int:
    return 1 + max(learner.model.numbers, default=0)


def passing_on(listeners: list[Listener], on_step: OnStep, learner: Learner, site: str) -> OnStep:
    """Return a callback that also passes steps on, as often as a run logs them."""
    from smg.learner.events import StepReport
    from smg.learner.round import logged

    number, every, last = _next_round(learner), learner.config.log_every, learner.config.iterations

    def both(iteration: int, step: Step) -> None:
        if (iteration - 1) % every == 0 or iteration == last:
            event = StepReport(round=number, site=site, **logged(iteration, step).model_dump())
            for listener in listeners:
                listener(event)
        on_step(iteration, step)

    return both


def as_event(record: RoundRecord) -> Evaluation:
    """Return a round's results as the event of an evaluation: its own test part, and earlier sites by the guard."""
    from smg.evaluation.metrics import COMPARED
    from smg.learner.events import Evaluation
    from smg.sites.labels import first_class

    name, site = first_class(record.config.tree()), record.site
    means: dict[str, dict[str, float | None]] = {}
    for metric in COMPARED:
        values = [row.classes[name].get(metric) for row in record.test]
        known = [value for value in values if value is not None]
        means[metric] = {site: sum(known) / len(known) if known else None}
    means["dsc"] |= {earlier: one.after for earlier, one in record.guard.sites.items()} if record.guard else {}
    return Evaluation(round=record.round, site=site, means=means)


def print_round(record: RoundRecord, effects: Sequence[Effect]) -> None:
    """Print what a round did to its own site and to the sites learned before it, and what it keeps."""
    trained, steps = record.subjects.train, record.config.iterations
    about = f"{record.config.method}, {steps} iterations, {duration(record.seconds)}"
    print_line(f"round {record.round}: {record.site}, trained on {trained} subject{'s' * (trained != 1)} ({about})")
    print_effects(effects)
    holders = (record.federation or {}).get("holders")
    elsewhere = list(holders) if isinstance(holders, dict) else []
    here = {s: k for s, k in record.kept.items() if s not in elsewhere}
    kept = ", ".join(f"{k.subjects} of {s} ({k.bytes / 1e6:.1f} MB)" for s, k in here.items())
    others = f"; at other hospitals: {', '.join(elsewhere)}" if elsewhere else ""
    print_line(f"kept for replay: {kept}{others}")
