"""The gradient oracle: g(Θ; B), the gradient at any Θ of the mean loss over a batch, answered by this process.

`Gradient` is the interface for methods, `GradientSource` the one for a training step, and `Oracle` implements both in
this process.

The network is called as a function of Θ, so a pass at shifted parameters does not change the network's own parameters.
A pass at the network's own Θ is called real, any other pass virtual. Buffers (the running statistics of batch norm)
change only in real passes. A parameter without a gradient counts as zeros.

Under `torch.distributed` each process answers for its share of the rows and a call ends with one all-reduce, so that N
processes with a batch each equal one process with N times the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.func import functional_call

from smg.allocator import keep_freed_memory
from smg.errors import SmgError
from smg.gradients.bfloat16 import has_bfloat16
from smg.gradients.common_rows import Part, couples_rows, rows_stay_apart, runs_of, share_of, shared_parts
from smg.gradients.compiled import compiled, told_of_compiler
from smg.gradients.device import drawing, to_device
from smg.gradients.flat import flatten, pieces, trainable
from smg.gradients.passes import Leaves, Pass, WrittenPass, flat_gradient
from smg.gradients.unet_pass import UNetPass, can_write_out
from smg.networks.loss import Loss, Outputs, dice_ce, name_of
from smg.prepare.batches import Batch, Row
from smg.prepare.slices import Samples
from smg.randomness import digest

Precision = Literal["float32", "bfloat16"]
Scale = Callable[[Tensor], Tensor]  # g -> g / (√v̂ + ε), of the outer optimiser
Asked: TypeAlias = tuple[Tensor, Batch] | tuple[Tensor, Batch, Loss | None]


class AskAgain(Exception):
    """Raised when the source of gradients changed before any step of the optimiser: take the iteration again."""


class Unanswered(SmgError):
    """Raised when a source of gradients is unavailable for too long: the round stops at a checkpoint and can resume."""


class Gradient(Protocol):
    """The gradients that a method can ask for. Every vector is flat, and as long as Θ.

    The same method runs on one process, on several, and over hospitals: what computes the gradients is hidden from it.
    """

    def __call__(self, theta: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        """Return g(Θ; B), the gradient at Θ of the mean loss over a batch.

        Args:
            theta: Parameters Θ; any vector, also one that is not the network's own.
            batch: Batch B of the iteration.
            loss: Function of the outputs. Default: the segmentation loss of the settings.
        """

    def several(self, asked: Sequence[Asked]) -> list[Tensor]:
        """Return the gradients of several (Θ, B) or (Θ, B, loss).

        The result is that of one call for each. Where gradients are computed at other hospitals, they are requested
        together, which saves time on the network.
        """

    def linear(
        self, theta: Tensor, batch: Batch, loss: Loss | None = None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return g(Θ; B), and a function that multiplies a vector v with the Hessian: H(Θ; B) v."""

    def preconditioned(self, gradient: Tensor) -> Tensor:
        """Return the gradient as the outer optimiser scales it: g / (√v̂ + ε)."""


@dataclass(frozen=True)
class Answer:
    """The result of one pass, kept for the step's report."""

    batch: str
    virtual: bool  # at shifted parameters
    loss: Tensor
    gradient: Tensor


class GradientSource(Gradient, Protocol):
    """The interface of a training step to its source of gradients: this process, the ranks of a job, or hospitals."""

    theta: Tensor  # Θ itself: a pass at any other vector is virtual
    answers: list[Answer]  # of this iteration, in the order of the calls
    products: list[tuple[str, Tensor]]  # with the Hessian, and of which batch

    def at(self, *place: int, scale: Scale | None = None, report: bool = True) -> None:
        """Begin the iteration at (seed, round, number), with the optimiser's scale for preconditioned inner steps.

        Without `report` no answer is kept, since those of a pass over a whole site would fill the memory.
        """


@dataclass
class Oracle:
    """Compute g(Θ; B) from a network and a loss, on the network's device."""

    network: nn.Module
    loss: Loss = dice_ce  # the segmentation loss, used where no other is asked for
    micro_batch: int | None = None  # rows that fit in memory at once; more are passed in turns, as by as many processes
    precision: Precision = "float32"  # of the passes; Θ and gradients keep theirs
    compile: bool = False  # fuse the passes' kernels by torch.compile; Hessian products are not compiled
    share: bool = False  # pass the rows of queries at one Θ once, together where that is faster; changes rounding
    place: tuple[int, ...] = (0, 0, 0)  # (seed, round, iteration): what dropout draws from
    answers: list[Answer] = field(default_factory=list)
    products: list[tuple[str, Tensor]] = field(default_factory=list)  # with the Hessian, and of which batch
    theta: Tensor = field(init=False)  # the network's own

    def __post_init__(self) -> None:
        self._scale: Scale | None = None
        self._reports, self._passes = True, 0
        self.theta = flatten(self.network)
        if self.precision != "float32" and self.theta.device.type == "cpu" and not has_bfloat16():
            raise SmgError(
                f"precision {self.precision} is for a GPU, or a CPU with AVX512-BF16 or AMX; on this CPU use float32"
            )
        if self.theta.device.type == "cpu":
            keep_freed_memory()
        self.network.train()
        self._forward = compiled(self.network) if self.compile else self.network
        self._shares = self.share and not couples_rows(self.network)
        self._is_probed = False  # whether a trial showed that rows are independent
        self._written: UNetPass | None = None
        if not self.compile and self.precision == "float32" and can_write_out(self.network):
            self._written = UNetPass(self.network, is_exact=not self.share)
        # Looked up once: iterating over the modules in every pass takes two per cent of its time on a small network.
        self._own, self._buffers = trainable(self.network), dict(self.network.named_buffers())
        self._tied = len(list(self.network.named_parameters(remove_duplicate=False))) > len(
            list(self.network.named_parameters())
        )

    def at(self, *place: int, scale: Scale | None = None, report: bool = True) -> None:
        self.place, self.answers, self.products = place, [], []
        self._scale, self._reports, self._passes = scale, report, 0

    def __call__(self, theta: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        leaves, total, value = self._leaves(theta), None, theta.new_zeros(())
        for samples, first, weight in self._turns(batch):
            taken = self._pass(leaves, samples, first, theta is not self.theta, [loss])
            share = taken.losses[0].mean() * weight
            (gradient,) = taken.gradients(share, [len(samples)])
            total, value = gradient if total is None else total.add_(gradient), value + share.detach()
        return self._agreed(torch.zeros_like(theta) if total is None else total, value, _label(batch, loss), theta)

    def several(self, asked: Sequence[Asked]) -> list[Tensor]:
        whole = [(one[0], one[1], one[2] if len(one) == 3 else None) for one in asked]
        at_one_theta: dict[int, list[int]] = {}
        for number, (theta, _, _) in enumerate(whole):
            at_one_theta.setdefault(id(theta), []).append(number)
        gradients: dict[int, tuple[Tensor, Tensor]] = {}  # and losses, of this process's rows
        for numbers in at_one_theta.values() if self._shares else ():
            together = self._goes_together([whole[number][1] for number in numbers])
            parts = shared_parts([whole[number][1:] for number in numbers], together)
            if parts and self._rows_stay_apart(whole[numbers[0]][1]):
                runs = runs_of(share_of(parts, *_rank_and_size()), self.micro_batch, together)
                found = self._shared(whole[numbers[0]][0], [whole[number][1:] for number in numbers], runs)
                gradients |= dict(zip(numbers, found, strict=True))
        return [
            self._agreed(*gradients[number], _label(batch, loss), theta)
            if number in gradients
            else self(theta, batch, loss)
            for number, (theta, batch, loss) in enumerate(whole)
        ]

    def _goes_together(self, batches: Sequence[Batch]) -> bool:
        """Return whether the rows of several queries at one Θ are passed together, with gradients of each part."""
        if self._written is None or len(batches) < 2:
            return False
        images = batches[0].load(slice(1)).images
        return self._written.fits(images) and self._written.is_small(images, sum(map(len, batches)))

    def _rows_stay_apart(self, batch: Batch) -> bool:
        """Return whether rows may be shared; a user's own network is tried on the first rows."""
        if not self._is_probed:
            images = batch.load().images.to(self.theta.device, self.theta.dtype)
            self._shares, self._is_probed = rows_stay_apart(self.network, images), True
        return self._shares

    def _shared(
        self, theta: Tensor, asked: Sequence[tuple[Batch, Loss | None]], runs: Sequence[Sequence[Part]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return each query's gradient and loss over this process's rows, with a forward pass for each run of parts."""
        leaves, sums = self._leaves(theta), [theta.new_zeros(len(theta)) for _ in asked]
        values = [theta.new_zeros(()) for _ in asked]
        for run in runs:
            losses = {id(asked[number][1]): asked[number][1] for part in run for number in part.of}
            rows, counts = tuple(row for part in run for row in part.rows), [len(part.rows) for part in run]
            samples = asked[0][0].iteration.load(self._padded(rows))
            taken = self._pass(leaves, samples, 0, theta is not self.theta, list(losses.values()))
            for left, key, each in zip(range(len(losses))[::-1], losses, taken.losses, strict=True):
                gradients = taken.gradients(each[: len(rows)].sum(), counts, again=left > 0)
                for part, of_rows, gradient in zip(run, torch.split(each[: len(rows)], counts), gradients, strict=True):
                    for number in part.of:
                        if id(asked[number][1]) == key:
                            sums[number].add_(gradient, alpha=1 / len(asked[number][0]))
                            values[number] += of_rows.detach().sum() / len(asked[number][0])
        return list(zip(sums, values, strict=True))

    def _padded(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Return a part's rows for a compiled pass; a single row is doubled, since its shape would need new kernels."""
        return rows * 2 if self.compile and len(rows) == 1 else rows

    def linear(
        self, theta: Tensor, batch: Batch, loss: Loss | None = None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        leaves, total, value = self._leaves(theta), torch.zeros_like(theta), theta.new_zeros(())
        for samples, first, weight in self._turns(batch):
            taken = self._autograd_pass(self.network, leaves, samples, first, theta is not self.theta, [loss])
            share = taken.losses[0].mean() * weight
            total, value = total + flat_gradient(share, leaves, create_graph=True), value + share.detach()

        def hessian(vector: Tensor) -> Tensor:
            mine = torch.zeros_like(vector)  # for a process that has no row of this batch
            if total.requires_grad:
                mine = flat_gradient(total, leaves, vector, retain_graph=True)
            summed = _summed(mine)
            if self._reports:
                self.products.append((_label(batch, loss), summed))
            return summed

        return self._agreed(total.detach(), value, _label(batch, loss), theta), hessian

    def preconditioned(self, gradient: Tensor) -> Tensor:
        if self._scale is None:
            raise ValueError("a preconditioned inner step needs the outer optimiser's scale")
        return self._scale(gradient)

    def _turns(self, batch: Batch) -> Iterator[tuple[Samples, int, float]]:
        """Yield this process's rows, as many at a time as fit, with the first row's index and their weight."""
        rank, size = _rank_and_size()
        mine = range(rank * len(batch) // size, (rank + 1) * len(batch) // size)
        for start in range(mine.start, mine.stop, self.micro_batch or max(len(mine), 1)):
            stop = min(start + (self.micro_batch or len(mine)), mine.stop)
            yield batch.load(slice(start, stop)), start, (stop - start) / len(batch)

    def _leaves(self, theta: Tensor) -> Leaves:
        """Return Θ cut into parameters as leaves of a graph; the network's own parameters if Θ is its own."""
        if theta is self.theta:
            return dict(self._own)
        return {name: piece.requires_grad_() for name, piece in self._pieces(theta).items()}

    def _pieces(self, theta: Tensor) -> dict[str, Tensor]:
        return pieces(self._own, theta.detach())

    def _pass(self, leaves: Leaves, samples: Samples, first: int, virtual: bool, losses: Sequence[Loss | None]) -> Pass:
        """Return a forward pass with each loss of each sample, as functions of Θ."""
        if self._written is None or not self._written.fits(samples.images):
            return self._autograd_pass(self._forward, leaves, samples, first, virtual, losses)
        images, written = samples.images.to(self.theta.dtype), self._written
        logits, tape = written.forward(leaves, images)
        outputs = Outputs(
            logits.requires_grad_(),
            samples.labels,
            lambda theta: written.forward(self._pieces(theta), images)[0],
            self._stored(samples),
        )
        return WrittenPass(leaves, self._values(outputs, losses), written, tape, logits)

    def _autograd_pass(
        self,
        forward: nn.Module,
        leaves: Leaves,
        samples: Samples,
        first: int,
        virtual: bool,
        losses: Sequence[Loss | None],
    ) -> Pass:
        """Return the same by autograd."""
        images = to_device(samples.images, self.theta.device, self.theta.dtype)
        labels = to_device(samples.labels, self.theta.device)

        def other(theta: Tensor) -> Tensor:
            with torch.no_grad():
                return self._logits(forward, self._pieces(theta), images, first, virtual=True)

        logits = self._logits(forward, leaves, images, first, virtual)
        outputs = Outputs(logits, labels, other, self._stored(samples))
        return Pass(leaves, self._values(outputs, losses))

    def _values(self, outputs: Outputs, losses: Sequence[Loss | None]) -> list[Tensor]:
        count = len(outputs.labels)
        return [self._checked((loss or self.loss)(outputs), count, loss or self.loss) for loss in losses]

    def _checked(self, values: Tensor, count: int, loss: Loss) -> Tensor:
        if values.shape != (count,):
            raise SmgError(
                f"loss {name_of(loss)}: gives a tensor of shape {list(values.shape)} for {count} samples; give one "
                "value for each"
            )
        return values

    def _stored(self, samples: Samples) -> Tensor | None:
        return None if samples.outputs is None else to_device(samples.outputs, self.theta.device, self.theta.dtype)

    def _logits(
        self, forward: nn.Module, leaves: dict[str, Tensor], images: Tensor, first: int, virtual: bool
    ) -> Tensor:
        """Return the network's outputs; all Θ of one pass use the same draws, so equal Θ give equal outputs."""
        half = torch.autocast(self.theta.device.type, torch.bfloat16, self.precision == "bfloat16")
        seed = digest("dropout", *self.place, self._passes, first) >> 1
        with drawing(seed, self.theta.device), half, told_of_compiler() if self.compile else contextlib.nullcontext():
            if self.compile and self._shares and forward is not self.network and len(images) > 1:
                torch._dynamo.mark_dynamic(images, 0)  # otherwise kernels would be built for every size of a part
            if not virtual:
                logits: Tensor = forward(images)
                return logits
            # Statistics may change in copies only.
            given = leaves | {name: buffer.clone() for name, buffer in self._buffers.items()}
            if forward is not self.network:
                given = {f"_orig_mod.{name}": tensor for name, tensor in given.items()}
            return functional_call(forward, given, (images,), tie_weights=self._tied)

    def _agreed(self, gradient: Tensor, loss: Tensor, label: str, theta: Tensor) -> Tensor:
        """Return the gradient summed over processes by one all-reduce, and keep the answer for the report."""
        virtual = theta is not self.theta
        if distributed.is_initialized():
            both = _summed(torch.cat([gradient, loss[None]]))
            gradient, loss = both[:-1], both[-1]
            if not virtual:
                self._average_buffers()
        self._passes += 1
        if self._reports:
            self.answers.append(Answer(label, virtual, loss, gradient))
        return gradient

    def _average_buffers(self) -> None:
        """Average the running statistics, which each process updated by its own rows, over the processes."""
        for buffer in self.network.buffers():
            if buffer.is_floating_point():
                buffer.copy_(_summed(buffer) / distributed.get_world_size())


def _rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


def _label(batch: Batch, loss: Loss | None) -> str:
    """Return the batch's name in a report, with the name of the loss unless that is the segmentation loss."""
    return batch.name if loss is None else f"{batch.name} ({name_of(loss)})"


def _summed(vector: Tensor) -> Tensor:
    """Return the sum over processes; the vector itself if there is only one process."""
    if distributed.is_initialized():
        vector = vector.clone()
        distributed.all_reduce(vector)
    return vector
