"""Find the rows that several queries at one Θ have in common, so that each row is passed once.

If no row's output depends on another row, the gradient of a batch is the mean of its rows' gradients. SGA asks for
g(Θ; D) and g(Θ; C_tr), and half of the rows of C_tr are rows of D. So D ∩ C_tr and the rest of either batch are passed
once each: 7.5 rows on average instead of 10. LwF asks for two losses of the same rows: one forward pass serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smg.networks.loss import Loss
from smg.prepare.batches import Batch, Row

FORWARD = 1 / 3  # of a pass's cost; the rest is backward
GROUP = 0.5  # cost, in rows, of one more part in a pass that gives gradients of each part


@dataclass(frozen=True)
class Part:
    """Rows that belong to the same queries."""

    rows: tuple[Row, ...]
    of: tuple[int, ...]  # the questions


def shared_parts(asked: Sequence[tuple[Batch, Loss | None]], together: bool = False) -> list[Part] | None:
    """Return the shared parts of queries at one Θ; None if they would cost more than one pass for each query.

    The cost of a pass is its number of rows plus about one row of overhead, as measured on small networks. Parts are
    passed in turns, or `together`: then queries gain even without a row in common.
    """
    owners: dict[Row, list[int]] = {}
    for number, (batch, _) in enumerate(asked):
        if len(set(batch.rows)) < len(batch) or batch.iteration is not asked[0][0].iteration:
            return None  # a row occurs twice in one batch
        for row in batch.rows:
            owners.setdefault(row, []).append(number)
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row, numbers in owners.items():
        groups.setdefault(tuple(numbers), []).append(row)
    separate = sum(len(batch) for batch, _ in asked) + len(asked)
    cost = 0.0
    for of, rows in groups.items():
        losses = len({id(asked[number][1]) for number in of})
        cost += (len(rows) + (GROUP if together else 1)) * (FORWARD + (1 - FORWARD) * losses)
    cost += 1 - GROUP if together else 0
    return [Part(tuple(rows), of) for of, rows in groups.items()] if cost < separate else None


def runs_of(parts: Sequence[Part], most: int | None, together: bool) -> list[list[Part]]:
    """Return the parts of each pass: one part, or all of them together, with `most` rows in a pass at most."""
    runs: list[list[Part]] = []
    room = 0
    for part in parts:
        start = 0
        while start < len(part.rows):
            if not runs or room == 0 or (start == 0 and not together):
                runs.append([])
                room = most or sum(len(each.rows) for each in parts)
            rows = part.rows[start : start + room]
            runs[-1].append(Part(rows, part.of))
            start, room = start + len(rows), room - len(rows)
    return runs


def share_of(parts: Sequence[Part], rank: int, size: int) -> list[Part]:
    """Return the parts of one process; the numbers of rows of two processes differ by one at most."""
    total, mine, passed = sum(len(part.rows) for part in parts), [], 0
    first, last = rank * total // size, (rank + 1) * total // size
    for part in parts:
        rows = part.rows[max(first - passed, 0) : max(last - passed, 0)]
        passed += len(part.rows)
        mine += [Part(rows, part.of)] if rows else []
    return mine


def couples_rows(network: nn.Module) -> bool:
    """Return whether rows of one batch may depend on each other or on a common random draw, by the network's modules.

    Batch norm and dropout couple rows. So may a buffer in a network in training mode, since rows may update it.
    """
    drawn = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU)
    return any(isinstance(module, drawn) for module in network.modules() if getattr(module, "p", 1) != 0) or any(
        buffer.is_floating_point() for buffer in network.buffers()
    )


def rows_stay_apart(network: nn.Module, images: Tensor) -> bool:
    """Return whether a row's output is the same alone and in a batch, for a user's own network."""
    pair = torch.stack([images[0], images[-1].flip(-1)])
    with torch.no_grad():
        alone, beside = network(pair[:1]), network(pair)[:1]
    tolerance = 1e4 * torch.finfo(alone.dtype).eps
    return torch.allclose(alone, beside, rtol=tolerance, atol=tolerance * float(alone.abs().max()))
