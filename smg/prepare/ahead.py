"""Read and augment the slices of the next iteration in a thread, while a GPU computes the present one.

Every draw is a function of (seed, round, iteration), so a batch is the same wherever it is made. On a CPU nothing is
gained: the thread would take its time from the passes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from smg.prepare.batches import Batch, Iteration

BATCHES = ("incoming", "replay", "second_replay", "exemplars", "pooled")  # of an iteration, by attribute


def pays(device: torch.device) -> bool:
    """Return whether batches are prepared ahead for passes on this device."""
    return device.type == "cuda"


class Ahead:
    """Iterations by number; the next one is filled in advance with the batches that the last one used."""

    def __init__(self, make: Callable[[int], Iteration], last: int) -> None:
        self._make, self._last = make, last
        self._used: list[str] = []
        self._next: tuple[int, Future[Iteration]] | None = None
        threads = torch.get_num_threads()  # a new thread has its own number, which changes rounding
        self._pool = ThreadPoolExecutor(1, "batches", torch.set_num_threads, (threads,))

    def take(self, number: int) -> Iteration:
        """Return an iteration, and begin to fill the next one."""
        waiting, self._next = self._next, None
        taken = waiting[1].result() if waiting and waiting[0] == number else self._make(number)
        if number + 1 < self._last and self._used:
            self._next = number + 1, self._pool.submit(self._filled, number + 1, tuple(self._used))
        return taken

    def note(self, iteration: Iteration) -> None:
        """Note which batches an iteration used, after its step."""
        self._used = [name for name in BATCHES if name in vars(iteration)]

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)

    def _filled(self, number: int, names: tuple[str, ...]) -> Iteration:
        made = self._make(number)
        for name in names:
            found = getattr(made, name)
            for batch in (found,) if isinstance(found, Batch) else found or ():
                batch.load()
        return made
