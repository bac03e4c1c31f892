"""The gradient oracle: g(Θ; B), the gradient at any Θ of the mean loss over a batch, answered by this process.

The network is never disturbed. It is called as a function of Θ, so a pass at shifted parameters leaves its own where
they are; and buffers (the running statistics of batch norm) move only in a real pass, which is one at the network's own
Θ, never in a virtual one. A parameter that got no gradient counts as zeros.

Under `torch.distributed` each process answers for its share of the rows and a call ends with one all-reduce, so that N
processes with a batch each equal one process with N times the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.func import functional_call

from smg.allocator import keep_freed_memory
from smg.errors import SmgError
from smg.gradients.compiled import compiled, told_of_compiler
from smg.gradients.flat import flatten, pieces, trainable
from smg.networks.loss import segmentation_loss
from smg.prepare.batches import Batch
from smg.prepare.slices import Samples
from smg.randomness import digest

Loss = Callable[[Tensor, Tensor], Tensor]  # logits, labels -> one loss a sample
Precision = Literal["float32", "bfloat16"]


class Gradient(Protocol):
    """All that a method knows of who answers."""

    def __call__(self, theta: Tensor, batch: Batch) -> Tensor:
        """g(Θ; B)."""

    def linear(self, theta: Tensor, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """g(Θ; B), and v -> H(Θ; B) v, the product with the Hessian."""

    def preconditioned(self, gradient: Tensor) -> Tensor:
        """The gradient as the outer optimiser scales it: g / (√v̂ + ε)."""


@dataclass(frozen=True)
class Answer:
    """What one pass told: kept for the step's report."""

    batch: str
    virtual: bool  # at shifted parameters
    loss: Tensor
    gradient: Tensor


@dataclass
class Oracle:
    """g(Θ; B) from a network and a loss, on the network's device."""

    network: nn.Module
    loss: Loss = segmentation_loss
    micro_batch: int | None = None  # rows that fit in memory at once; more are done in turns, as by as many processes
    precision: Precision = "float32"  # of the passes, on a GPU; Θ and gradients stay as they are
    compile: bool = False  # the passes' kernels fused by torch.compile; Hessian products stay as they are
    scale: Callable[[Tensor], Tensor] | None = None  # the optimiser's, for preconditioned inner steps
    place: tuple[int, ...] = (0, 0, 0)  # (seed, round, iteration): what dropout draws from
    answers: list[Answer] = field(default_factory=list)
    products: list[tuple[str, Tensor]] = field(default_factory=list)  # with the Hessian, and of which batch
    theta: Tensor = field(init=False)  # the network's own

    def __post_init__(self) -> None:
        self.theta = flatten(self.network)
        if self.precision != "float32" and self.theta.device.type == "cpu":
            raise SmgError(f"precision {self.precision} is for a GPU; on a CPU use float32")  # some CPUs would crash
        if self.theta.device.type == "cpu":
            keep_freed_memory()
        self.network.train()
        self._forward = compiled(self.network) if self.compile else self.network
        # Looked up once: to go through the modules again in every pass would cost it two per cent on a small network.
        self._own, self._buffers = trainable(self.network), dict(self.network.named_buffers())
        self._tied = len(list(self.network.named_parameters(remove_duplicate=False))) > len(
            list(self.network.named_parameters())
        )

    def at(self, *place: int) -> None:
        """Begin an iteration."""
        self.place, self.answers, self.products = place, [], []

    def __call__(self, theta: Tensor, batch: Batch) -> Tensor:
        leaves, total, loss = self._leaves(theta), None, theta.new_zeros(())
        for samples, first, weight in self._turns(batch):
            share = self._loss(self._forward, leaves, samples, first, virtual=theta is not self.theta) * weight
            gradient = _gradient(share, leaves)
            total, loss = gradient if total is None else total.add_(gradient), loss + share.detach()
        return self._agreed(torch.zeros_like(theta) if total is None else total, loss, batch, theta)

    def linear(self, theta: Tensor, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        leaves, total, loss = self._leaves(theta), torch.zeros_like(theta), theta.new_zeros(())
        for samples, first, weight in self._turns(batch):
            share = self._loss(self.network, leaves, samples, first, virtual=theta is not self.theta) * weight
            total, loss = total + _gradient(share, leaves, create_graph=True), loss + share.detach()

        def hessian(vector: Tensor) -> Tensor:
            mine = torch.zeros_like(vector)  # of a process that has no row of this batch
            if total.requires_grad:
                mine = _gradient(total, leaves, vector, retain_graph=True)
            self.products.append((batch.name, _summed(mine)))
            return self.products[-1][1]

        return self._agreed(total.detach(), loss, batch, theta), hessian

    def preconditioned(self, gradient: Tensor) -> Tensor:
        if self.scale is None:
            raise ValueError("a preconditioned inner step needs the outer optimiser's scale")
        return self.scale(gradient)

    def _turns(self, batch: Batch) -> Iterator[tuple[Samples, int, float]]:
        """This process's rows, as many at a time as fit: the first one's number, the weight in the mean over all."""
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        mine = range(rank * len(batch) // size, (rank + 1) * len(batch) // size)
        for start in range(mine.start, mine.stop, self.micro_batch or max(len(mine), 1)):
            stop = min(start + (self.micro_batch or len(mine)), mine.stop)
            yield batch.load(slice(start, stop)), start, (stop - start) / len(batch)

    def _leaves(self, theta: Tensor) -> dict[str, Tensor]:
        """Θ cut into parameters, as the leaves of a graph: the network's own where Θ is its own."""
        if theta is self.theta:
            return dict(self._own)
        return {name: piece.requires_grad_() for name, piece in pieces(self._own, theta.detach()).items()}

    def _loss(
        self, forward: nn.Module, leaves: dict[str, Tensor], samples: Samples, first: int, virtual: bool
    ) -> Tensor:
        """The mean loss over the samples, as a function of Θ."""
        images = samples.images.to(self.theta.device, self.theta.dtype, non_blocking=True)
        labels = samples.labels.to(self.theta.device, non_blocking=True)
        half = torch.autocast(self.theta.device.type, torch.bfloat16, self.precision == "bfloat16")
        with self._drawing(first), half, told_of_compiler() if self.compile else contextlib.nullcontext():
            if virtual:  # statistics may move in copies only
                given = leaves | {name: buffer.clone() for name, buffer in self._buffers.items()}
                if forward is not self.network:
                    given = {f"_orig_mod.{name}": tensor for name, tensor in given.items()}
                logits = functional_call(forward, given, (images,), tie_weights=self._tied)
            else:
                logits = forward(images)
        return self.loss(logits, labels).mean()

    def _agreed(self, gradient: Tensor, loss: Tensor, batch: Batch, theta: Tensor) -> Tensor:
        """Sum over processes, in one all-reduce, and keep what the report needs."""
        virtual = theta is not self.theta
        if distributed.is_initialized():
            both = _summed(torch.cat([gradient, loss[None]]))
            gradient, loss = both[:-1], both[-1]
            if not virtual:
                self._average_buffers()
        self.answers.append(Answer(batch.name, virtual, loss, gradient))
        return gradient

    def _average_buffers(self) -> None:
        """Running statistics that each process moved by its own rows become one again."""
        for buffer in self.network.buffers():
            if buffer.is_floating_point():
                buffer.copy_(_summed(buffer) / distributed.get_world_size())

    @contextlib.contextmanager
    def _drawing(self, first: int) -> Iterator[None]:
        """Dropout and the like draw from torch's global generator: seed it by place, pass and row, and put it back."""
        devices = [self.theta.device] if self.theta.device.type == "cuda" else []
        seed = digest("dropout", *self.place, len(self.answers), first) >> 1
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would note its caller for a GPU that is not
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield


def _gradient(
    of: Tensor,
    leaves: dict[str, Tensor],
    along: Tensor | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Tensor:
    """Autograd's gradient by the leaves, as one flat vector.

    By one leaf for each parameter, and not by Θ through its pieces: their views and the split would add nodes to every
    graph, a millisecond a pass.
    """
    parameters = tuple(leaves.values())
    parts = torch.autograd.grad(of, parameters, along, retain_graph, create_graph, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def _summed(vector: Tensor) -> Tensor:
    """The sum over processes; the vector itself where there is one."""
    if distributed.is_initialized():
        vector = vector.clone()
        distributed.all_reduce(vector)
    return vector
