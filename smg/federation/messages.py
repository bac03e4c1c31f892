"""Messages between hospitals: typed questions and answers, as bytes of safetensors. Nothing is pickled.

A message is a kind, a few facts as JSON, and tensors by name. The facts hold numbers, hashes and pseudonyms, and
never a path, a patient's name or a pixel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from smg.errors import SmgError

DTYPES = {  # names of safetensors
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """One message between hospitals."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the message as bytes, in the format of safetensors.

        The library's own writer copies every tensor three times, which is most of an exchange's cost on this side.
        """
        about: dict[str, Any] = {
            "__metadata__": {"kind": self.kind, "facts": json.dumps(self.facts, sort_keys=True)},
        }
        parts: list[Any] = []
        offset = 0
        widest_first = sorted(self.tensors, key=lambda name: -self.tensors[name].element_size())  # so all are aligned
        for name in widest_first:
            tensor = self.tensors[name].detach().cpu().contiguous()
            end = offset + tensor.numel() * tensor.element_size()
            about[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
            parts.append(tensor.view(-1).view(torch.uint8).numpy().data)
            offset = end
        header = json.dumps(about).encode()
        header += b" " * (-len(header) % 8)
        return b"".join([len(header).to_bytes(8, "little"), header, *parts])

    def digest(self) -> bytes:
        """Return a hash of the content; the bytes may differ, since safetensors keeps no order of metadata."""
        whole = hashlib.sha256(json.dumps([self.kind, self.facts], sort_keys=True).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].detach().cpu().contiguous()
            whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
        return whole.digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the message in the bytes."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            length = int.from_bytes(data[:8], "little")
            about = json.loads(data[8 : 8 + length])["__metadata__"]
            return cls(about["kind"], json.loads(about["facts"]), load(data))
        except (ValueError, KeyError, SafetensorError):
            raise SmgError("a message that is not smg's arrived; all hospitals need the same version of smg") from None


@dataclass(frozen=True)
class Query:
    """A query for one gradient: the index of a Θ in the message, the hospital's rows, and the loss."""

    theta: int
    rows: tuple[tuple[int, int], ...]  # (slice, place in the iteration)
    loss: str = ""  # the segmentation loss, or another that a hospital knows by name


@dataclass(frozen=True)
class Ask:
    """A question for gradients to one hospital, in one round trip."""

    place: tuple[int, int, int]  # seed, round, iteration: every draw and augmentation is a function of it
    augmented: bool
    thetas: tuple[Tensor, ...]
    queries: tuple[Query, ...]
    exchange: int | None = None  # number of a secure sum's masks

    def message(self) -> Message:
        """Return it as a message."""
        queries = [[one.theta, [list(row) for row in one.rows], one.loss] for one in self.queries]
        facts = {"place": list(self.place), "augmented": self.augmented, "queries": queries, "exchange": self.exchange}
        return Message("gradients", facts, {f"theta.{n}": theta for n, theta in enumerate(self.thetas)})

    @classmethod
    def of(cls, message: Message) -> Ask:
        """Return the question in a message."""
        seed, round_, iteration = (int(number) for number in message.facts["place"])
        queries = tuple(
            Query(int(theta), tuple((int(index), int(place)) for index, place in rows), str(loss))
            for theta, rows, loss in message.facts["queries"]
        )
        thetas, exchange = numbered("theta", message), message.facts.get("exchange")
        return cls((seed, round_, iteration), bool(message.facts["augmented"]), thetas, queries, exchange)


@dataclass(frozen=True)
class Sums:
    """A hospital's answer: the gradient and the loss of each query, summed over its rows.

    Under masks (smg.federation.secure_sums) the loss is the gradient's last entry, and `losses` is empty.
    """

    gradients: tuple[Tensor, ...]
    losses: tuple[Tensor, ...]

    def message(self) -> Message:
        """Return it as a message."""
        losses = torch.stack(list(self.losses)) if self.losses else torch.zeros(0)
        return Message(
            "sums", {}, {"losses": losses} | {f"gradient.{n}": gradient for n, gradient in enumerate(self.gradients)}
        )

    @classmethod
    def of(cls, message: Message) -> Sums:
        """Return the sums in a message."""
        return cls(numbered("gradient", message), tuple(message.tensors["losses"].unbind()))


@dataclass(frozen=True)
class Terms:
    """The terms that hospitals must have in common to add their gradients, each as a word or a hash."""

    smg: str
    torch: str
    network: str
    preparation: str
    augmentation: str
    loss: str
    seed: int
    precision: str

    def differences(self, other: Terms) -> list[str]:
        """Return the names of the terms that differ."""
        return [name for name, value in vars(self).items() if value != getattr(other, name)]


@dataclass(frozen=True)
class Holding:
    """A hospital's reply to a greeting: the number of its slices and their hash, never their content."""

    site: str
    rows: int  # slices that may be drawn; 0 where it holds no exemplars
    exemplars: str  # hash of the stored exemplars
    terms: Terms
    least_rows: int = 1
    public_key: str = ""  # for secure sums

    def message(self) -> Message:
        """Return it as a message."""
        return Message("holding", vars(self) | {"terms": vars(self.terms)})

    @classmethod
    def of(cls, message: Message) -> Holding:
        """Return the holding in a message."""
        try:
            return cls(**{**message.facts, "terms": Terms(**message.facts["terms"])})
        except (TypeError, KeyError):
            raise SmgError("a hospital greets as no smg of this version does; update smg there or here") from None


def numbered(name: str, message: Message) -> tuple[Tensor, ...]:
    """Return the tensors `name.0`, `name.1`, ... of a message."""
    count = sum(key.startswith(f"{name}.") for key in message.tensors)
    return tuple(message.tensors[f"{name}.{n}"] for n in range(count))


def size_of(thetas: Sequence[Tensor]) -> int:
    """Return the bytes of some vectors."""
    return sum(theta.numel() * theta.element_size() for theta in thetas)
