"""What an attacker recovers of a slice from a hospital's answer, with each protection: gradient inversion on phantoms.

    python benchmarks/gradient_inversion.py
    python benchmarks/gradient_inversion.py --steps 400 --json

The attacker knows Θ, the network, the loss and the masks of the slices, which is more than an incoming hospital has. It
looks for images x whose gradient has the direction of the answer g (Geiping et al., 2020):

    x* = argmin  1 - cos(∇L(x), g) + w TV(x)

by Adam, from the best of several starts. What it recovers is the correlation between x* and the true slice, of the best
pairing for several slices. For scale: an image of noise, and another patient's slice, which shares the anatomy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from smg.federation.masks import SCALE, Masks
from smg.networks import build_network
from smg.networks.config import NetworkConfig
from smg.networks.loss import Outputs, dice_ce
from smg.phantom.phantom import write_phantom_sites
from smg.prepare.options import Preparation
from smg.prepare.site import prepare_site
from smg.prepare.slices import Slices
from smg.sites.site import Site

WEIGHT = 1e-2  # of the total variation
PREPARATION = Preparation(size=16)


@dataclass(frozen=True)
class Recovered:
    """One setting's result."""

    setting: str
    rows: int
    correlation: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800, help="steps of the attack")
    parser.add_argument("--starts", type=int, default=1, help="random starts of the attack")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    words = parser.parse_args()
    figures = attack_all(words.steps, words.starts)
    if words.json:
        print(json.dumps([asdict(one) for one in figures]))
        return
    print(f"{'answer':<52} {'rows':>4} {'correlation':>12}")
    for one in figures:
        print(f"{one.setting:<52} {one.rows:>4} {one.correlation:>12.2f}")


def attack_all(steps: int, starts: int) -> list[Recovered]:
    """Attack an answer under each setting."""
    images, labels, other = phantom_slices()
    network = build_network(NetworkConfig(width=16, depth=1), 0)
    figures = [
        Recovered("for scale: noise", 1, abs(_correlation(_noise(images[:1]), images[:1]))),
        Recovered("for scale: another patient's slice", 1, _correlation(other[:1], images[:1])),
    ]
    for rows in (1, 4):
        own, masks = images[:rows], labels[:rows]
        plain = gradient(network, own, masks).detach() * rows
        answers = {"plain gradient": plain}
        for multiplier in (0.1, 1.0):
            answers[f"clipped to its norm, noise {multiplier:g}"] = _noisy(network, own, masks, multiplier)
        answers["masked, as one hospital sends it"] = _masked(plain)
        if rows == 1:  # two hospitals with a row each: what is left of it in their sum
            answers["masked, the sum over two hospitals"] = gradient(network, images[:2], labels[:2]).detach() * 2
        for name, answer in answers.items():
            found = invert(network, answer, masks, own.shape, steps, starts)
            figures.append(Recovered(name, rows, _correlation(found, own)))
    return figures


def invert(network: nn.Module, answer: Tensor, labels: Tensor, shape: torch.Size, steps: int, starts: int) -> Tensor:
    """Return the images whose gradient is most like an answer."""
    best, lowest = torch.zeros(shape), float("inf")
    for start in range(starts):
        images = torch.randn(shape, generator=torch.Generator().manual_seed(start)).requires_grad_()
        optimiser = torch.optim.Adam([images], lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [steps // 2, 3 * steps // 4, 7 * steps // 8], 0.2)
        for _ in range(steps):
            optimiser.zero_grad()
            ours = gradient(network, images, labels, differentiable=True)
            apart = 1 - torch.cosine_similarity(ours, answer, dim=0)
            total = apart + WEIGHT * _variation(images)
            total.backward()
            optimiser.step()
            schedule.step()
        if total.item() < lowest:
            best, lowest = images.detach(), total.item()
    return best


def gradient(network: nn.Module, images: Tensor, labels: Tensor, differentiable: bool = False) -> Tensor:
    """Return the flat gradient of the mean loss over rows."""
    parameters = {name: p.detach().requires_grad_() for name, p in network.named_parameters()}
    logits = functional_call(network, parameters, (images,))
    loss = dice_ce(Outputs(logits, labels)).mean()
    found = torch.autograd.grad(loss, list(parameters.values()), create_graph=differentiable)
    return torch.cat([one.flatten() for one in found])


def phantom_slices() -> tuple[Tensor, Tensor, Tensor]:
    """Return four slices of a phantom hospital with their masks, and slices of another of its patients."""
    with tempfile.TemporaryDirectory() as folder:
        write_phantom_sites(Path(folder) / "sites", 0, letters=("A",), subjects=2)
        first, second = prepare_site(Site.find(Path(folder) / "sites" / "A"), PREPARATION, cache=Path(folder))[:2]
        own, other = (Slices([one], PREPARATION) for one in (first, second))
        middle = [len(own) // 2 + n for n in (-2, -1, 0, 1)]
        samples = own.gather(middle)
        return samples.images.clone(), samples.labels.long(), other.gather([len(other) // 2]).images.clone()


def _noisy(network: nn.Module, images: Tensor, labels: Tensor, multiplier: float) -> Tensor:
    """Return the sum of clipped gradients with noise: each is clipped to the median of their norms."""
    each = [gradient(network, images[n : n + 1], labels[n : n + 1]).detach() for n in range(len(images))]
    clip = torch.stack([one.norm() for one in each]).median()
    total = torch.stack([one * (clip / one.norm().clamp_min(clip)) for one in each]).sum(dim=0)
    return total + multiplier * clip * torch.randn(len(total), generator=torch.Generator().manual_seed(7))


def _masked(values: Tensor) -> Tensor:
    """Return what one of two hospitals sends in a secure sum."""
    pair = {"one": Masks(), "two": Masks()}
    keys = {name: one.public for name, one in pair.items()}
    pair["one"].agree("one", keys)
    return (pair["one"].masked(values, 0, 0).double() / SCALE).float()


def _variation(images: Tensor) -> Tensor:
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def _noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(11))


def _correlation(found: Tensor, true: Tensor) -> float:
    """Return the mean correlation of images, of the best pairing."""
    pairings = itertools.permutations(range(len(found)))
    return max(sum(_one(found[i], true[n]) for n, i in enumerate(order)) / len(true) for order in pairings)


def _one(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


if __name__ == "__main__":
    main()
