"""The page at a node's root: the model's history, the queue and the last failures, in the style of the report."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from importlib import resources
from typing import Any

from smg import __version__
from smg.errors import SmgError
from smg.evaluation.metrics import METRICS
from smg.learner.history import History, Round
from smg.report.page import asset
from smg.serve.inbox import Inbox
from smg.serve.model import ServedModel
from smg.serve.node_options import ServeOptions
from smg.serve.work import Work
from smg.sites.labels import first_class


@dataclass(frozen=True)
class RoundRow:
    """One round in the table of the model's history."""

    number: int
    site: str
    when: str
    method: str
    subjects: str
    dsc: str
    state: str


def status_page(model: ServedModel, work: Work, options: ServeOptions, inbox: Inbox | None) -> str:
    """Return the page as HTML."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FunctionLoader(lambda name: (resources.files("smg.serve") / "assets" / name).read_text("utf-8")),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: dict[str, Any] = {
        "style": asset("page.css"),
        "version": __version__,
        "model": model.name,
        "round": model.opened.round,
        "standing": work.standing(),
        "bound": options.limits.queue,
        "options": options,
        "corrected": inbox.count if inbox else None,
        "rounds": _rounds(model),
    }
    return environment.get_template("status.html").render(page)


def _rounds(model: ServedModel) -> list[RoundRow] | str:
    """Return the rounds, newest first, or why they cannot be read."""
    try:
        past = History(model.folder)
        return [_row(one, past) for one in reversed(past.rounds())]
    except SmgError as error:
        return str(error)


def _row(one: Round, past: History) -> RoundRow:
    number, site = one.entry.round, one.entry.site
    at = (line.when[:16] for line in past.journal() if line.round == number and line.event in ("learned", "held"))
    when = next(at, "–").replace("T", " ")
    words = [("current", number == past.current), ("damaged", bool(one.fault))]
    if one.record is None:
        return RoundRow(number, site, when, "–", "–", "–", ", ".join(word for word, so in words if so))
    words.insert(0, ("held", past.held(number) and number != past.current))
    name = first_class(one.record.config.tree())
    scores = [dsc for row in one.record.test if (dsc := row.classes[name]["dsc"]) is not None]
    return RoundRow(
        number,
        site,
        when,
        one.record.config.method,
        str(one.record.subjects.train),
        METRICS["dsc"].text(statistics.fmean(scores) if scores else None, missing="–"),
        ", ".join(word for word, so in words if so),
    )
