"""A hospital's desk: every question is answered or refused here, and logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from smg.errors import SmgError
from smg.federation.limits import Audit, Gate
from smg.federation.messages import Message
from smg.federation.transport import NotGreeted, Refused

Handler = Callable[[Message], Message]
# Questions whose answers carry no information about a scan.
FREE = frozenset({"greeting", "holding", "presence", "versions", "round", "receive", "keys"})


@dataclass
class Desk:
    """Answer questions by kind. Answers with information about scans count against the hospital's limits."""

    name: str
    gate: Gate
    audit: Audit
    handlers: dict[str, Handler] = field(default_factory=dict)

    def __call__(self, caller: str, question: bytes) -> bytes:
        """Return the answer to a question, or a refusal with its reason; the audit log gets a line for each."""
        about: dict[str, object] = {"caller": caller, "kind": "unreadable"}
        try:
            message = Message.from_bytes(question)
            about |= {"kind": message.kind, **_countable(message)}
            handler = self.handlers.get(message.kind)
            if handler is None:
                raise Refused(f"hospital {self.name}: answers no question of kind {message.kind!r}; update smg there")
            counts = message.kind not in FREE
            if counts:
                self.gate.count(_answers(message))
            answer = handler(message).to_bytes()
        except SmgError as error:
            self.audit.note(**about, answered=False, why=str(error))
            facts = {"why": str(error), "later": getattr(error, "later", False)}
            return Message("refused", facts | {"greet": isinstance(error, NotGreeted)}).to_bytes()
        except (KeyError, TypeError, ValueError, IndexError) as error:  # the question does not have smg's format
            self.audit.note(**about, answered=False, why=repr(error))
            why = f"hospital {self.name}: cannot read the question; all hospitals need the same version of smg"
            return Message("refused", {"why": why, "later": False}).to_bytes()
        if message.kind != "presence":
            self.audit.note(**about, answered=counts, bytes=len(answer))
        return answer


def _countable(message: Message) -> Mapping[str, object]:
    """Return the facts of a question for the audit log."""
    if message.kind != "gradients":
        return {}
    _, round_, iteration = message.facts["place"]
    rows = [len(rows) for _, rows, _ in message.facts["queries"]]
    return {"round": round_, "iteration": iteration, "rows": rows, "answers": _answers(message)}


def _answers(message: Message) -> int:
    """Return how many answers a question asks for: each gradient of some rows is one."""
    return sum(bool(rows) for _, rows, _ in message.facts["queries"]) if message.kind == "gradients" else 1
