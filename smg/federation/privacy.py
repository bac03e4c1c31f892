"""Clip a hospital's answers and add Gaussian noise, with the privacy loss by Opacus's accountant.

Each slice's gradient is clipped to norm C before the sum, however many of the rows are of that slice, and N(0, (σC)² I)
is added to the sum. So one slice can move an answer by C at most, and an answer is (ε, δ)-private in the sense of
DP-SGD. The accountant is Opacus's (Rényi). It counts every slice as part of every answer (sampling rate 1). A
hospital's exemplars are few and are drawn often, so no amplification by sampling is claimed. The unit that is protected
is a slice. A patient with s slices among the exemplars is protected s times less. Features and DSC are answered without
noise.

The loss in an answer is one more number about the rows, so with noise it is sent as zero.
"""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.gradients.oracle import Oracle
from smg.networks.loss import Loss
from smg.prepare.batches import Batch


@dataclass
class Noise:
    """Clip each slice's gradient to `clip`, and add noise of `multiplier` times that to the sum."""

    clip: float
    multiplier: float
    delta: float = 1e-5
    answers: int = 0  # since the start; the audit log has the number over restarts
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.clip <= 0 or self.multiplier <= 0:
            raise SmgError("noise: clip and multiplier must be above zero; leave both out for none")
        self.generator = torch.Generator()
        self.generator.manual_seed(secrets.randbits(63))  # without a known seed, since known noise could be subtracted

    def summed(self, oracle: Oracle, theta: Tensor, batch: Batch, loss: Loss | None = None) -> tuple[Tensor, Tensor]:
        """Return the noisy sum of the slices' clipped gradients, and no loss."""
        of_slice: dict[tuple[int, int], Tensor] = {}
        for row in batch.rows:
            gradient = oracle(theta, Batch(batch.name, (row,), batch.iteration), loss)
            of_slice[row[:2]] = of_slice[row[:2]] + gradient if row[:2] in of_slice else gradient
        total = torch.zeros_like(theta)
        for gradient in of_slice.values():
            total += gradient * (self.clip / gradient.norm().clamp_min(self.clip))
        drawn = torch.randn(len(theta), generator=self.generator, dtype=theta.dtype).to(theta.device)
        self.answers += 1
        return total + self.multiplier * self.clip * drawn, theta.new_zeros(())

    def epsilon(self, answers: int | None = None) -> float:
        """Return ε at the given δ after a number of answers, by Opacus's accountant."""
        try:
            from opacus.accountants import RDPAccountant
        except ImportError:
            raise SmgError(
                "noise: the accountant needs Opacus; pip install 'smg-learning[federation]' installs it"
            ) from None
        accountant = RDPAccountant()
        accountant.history = [(self.multiplier, 1.0, self.answers if answers is None else answers)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that another order may give a tighter bound: this one holds, too
            return float(accountant.get_epsilon(delta=self.delta))
