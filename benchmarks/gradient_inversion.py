"""What an attacker learns of a hospital's slices from one of its answers, with each protection, on phantoms.

    python benchmarks/gradient_inversion.py
    python benchmarks/gradient_inversion.py --sizes 16 32 64 --rows 1 3 5 --steps 4800 --starts 4 --json

Answers are those of `smg.federation.hospital` with its own limits, noise and masks. The attacker knows Θ, the network,
the loss, the number of rows and the masks of the slices, which is more than an incoming hospital has. Two attacks:

Inversion (Geiping et al., 2020) looks for images x whose gradient has the direction of the answer g,

    x* = argmin  1 - cos(∇L(x), g) + w TV(x)

by signed gradients under Adam with a falling rate, from several random starts, of which the one with the least 1 - cos
counts. `image` is the correlation of x* with the true slices, of the best pairing. For scale: noise has about 0,
another patient's slice of the same place about 0.75. An attacker who begins with such a slice gains by as much as the
row `plain, from another patient` is above that.

Recognition asks less: which of 30 candidate slices with their masks, the true ones among them, are in the answer?
Candidates are ranked by the cosine of their own gradient with g. `found` is the share of true slices among the first
ones, as many as the answer has rows, and `chance` what guessing finds; a mean over 100 answers where noise is drawn.

Every setting favours the attacker: no augmentation, first weights, and the network of those tried from which inversion
recovers most (width 16, depth 1).
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from smg.federation.hospital import Hospital, terms_of
from smg.federation.limits import Limits
from smg.federation.messages import Ask, Query
from smg.federation.privacy import Noise
from smg.federation.secure_sums import SCALE, Masks
from smg.federation.transport import Refused
from smg.gradients.oracle import Oracle
from smg.networks import build_network
from smg.networks.loss import Outputs, dice_ce
from smg.networks.network_config import NetworkConfig
from smg.phantom.phantom import write_phantom_sites
from smg.prepare.augment import Augmentation
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_site
from smg.prepare.slices import Slices
from smg.sites.site import Site

WEIGHT = 1e-2  # of the total variation
NETWORK = NetworkConfig(width=16, depth=1)
NOISE = (0.1, 0.5, 1.0, 4.0)  # multipliers
PATIENTS, PEERS = 6, 3
OFFSETS = (0, 2, -2, 1, -1)  # of slices from a patient's middle one
LEAST = 3  # rows, in the setting of that name
ANSWERS = 100  # drawn, where noise or masks differ between answers


@dataclass(frozen=True)
class Recovered:
    """One setting's result; None where there was no answer to attack."""

    setting: str
    size: int
    rows: int
    matched: float | None  # 1 - cos of the attack's best gradient
    image: float | None  # correlation of its images with the true ones
    found: float | None  # share of the true slices that are recognised
    chance: float | None  # the same by guessing


@dataclass(frozen=True)
class Scene:
    """Phantom slices of one size: patients' middle slices, the first patient's being those of the attacked hospital."""

    slices: list[Slices]  # of each patient
    network: nn.Module

    def rows(self, patient: int, count: int) -> list[int]:
        """Return the indices of slices around a patient's middle one."""
        return [len(self.slices[patient]) // 2 + offset for offset in OFFSETS[:count]]

    def images(self, patient: int, count: int) -> tuple[Tensor, Tensor]:
        """Return these slices and their masks."""
        samples = self.slices[patient].gather(self.rows(patient, count))
        return samples.images.clone(), samples.labels.long()

    def answer(self, patient: int, count: int, limits: Limits | None = None, masks: Masks | None = None) -> Tensor:
        """Return the answer of a hospital whose slices are one patient's, as the incoming hospital gets it."""
        limits = limits or Limits()
        noise = Noise(limits.clip, limits.noise, limits.delta) if limits.clip and limits.noise else None
        terms = terms_of(NETWORK, self.slices[0].options, Augmentation(), "dice+ce", 0, "float32")
        oracle = Oracle(self.network)
        hospital = Hospital("A", self.slices[patient], oracle, terms, limits=limits, noise=noise, masks=masks)
        rows = tuple((index, place) for place, index in enumerate(self.rows(patient, count)))
        ask = Ask((0, 1, 0), False, (oracle.theta.clone(),), (Query(0, rows),), None if masks is None else 0)
        sums = hospital.gradients(ask.message()).tensors["gradient.0"]
        return sums if masks is None else sums[:-1]


@dataclass(frozen=True)
class Setting:
    """A protection: what an incoming hospital gets, drawn again at each call."""

    name: str
    answer: Callable[[], Tensor]
    hospitals: int = 1  # whose rows are in the answer
    is_random: bool = False
    from_other: bool = False  # inversion starts from another patient's slice, which is near already


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16], help="pixels a side")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 3, 5], help="slices of an answer, up to 5")
    parser.add_argument("--steps", type=int, default=1500, help="steps of the inversion from each start; 0 for none")
    parser.add_argument("--starts", type=int, default=1, help="random starts")
    parser.add_argument("--only", default="", help="settings whose name begins so, such as plain")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, last")
    words = parser.parse_args()
    print(f"{'answer':<46} {'pixels':>6} {'rows':>4} {'1 - cos':>8} {'image':>6} {'found':>6} {'chance':>6}")
    figures = []
    for size in words.sizes:
        scene = scene_of(size)
        for rows in words.rows:
            for one in attack_all(scene, size, rows, words.steps, words.starts, words.only):
                figures.append(one)
                shares = " ".join("     -" if v is None else f"{100 * v:>4.0f} %" for v in (one.found, one.chance))
                numbers = f"{_number(one.matched, 8)} {_number(one.image, 6)}"
                print(f"{one.setting:<46} {size:>6} {rows:>4} {numbers} {shares}", flush=True)
    if words.json:
        print(json.dumps([asdict(one) for one in figures]))


def attack_all(scene: Scene, size: int, rows: int, steps: int, starts: int = 1, only: str = "") -> Iterator[Recovered]:
    """Attack an answer of so many rows under each setting; steps: of the inversion, 0 for recognition alone."""
    true, labels = scene.images(0, rows)
    other = scene.images(1, rows)[0]
    yield Recovered("for scale: noise", size, rows, None, correlation(_noise(true, 11), true), None, None)
    yield Recovered("for scale: another patient", size, rows, None, correlation(other, true), None, None)
    candidates = candidate_gradients(scene)
    for setting in settings(scene, rows):
        if not setting.name.startswith(only):
            continue
        try:
            drawn = [setting.answer() for _ in range(ANSWERS if setting.is_random else 1)]
        except Refused:
            yield Recovered(f"{setting.name}: refused", size, rows, None, None, None, None)
            continue
        matched = image = None
        if steps:
            begun = [other] if setting.from_other else [_noise(true, seed) for seed in range(starts)]
            found, matched = invert(scene.network, drawn[0], labels, begun, steps, 0.02 if setting.from_other else 0.1)
            image = correlation(found, true)
        first = rows * setting.hospitals
        share = sum(recognised(candidates, one, rows, first) for one in drawn) / len(drawn)
        yield Recovered(setting.name, size, rows, matched, image, share, first / len(candidates))


def settings(scene: Scene, rows: int) -> list[Setting]:
    """Return the protections, with the answers of the real hospital under each."""
    clip = float(scene.answer(0, 1).norm())
    made = [
        Setting("plain", lambda: scene.answer(0, rows)),
        Setting("plain, from another patient", lambda: scene.answer(0, rows), from_other=True),
        Setting(f"least_rows {LEAST}", lambda: scene.answer(0, rows, Limits(least_rows=LEAST))),
    ]
    for multiplier in NOISE:
        limits = Limits(clip=clip, noise=multiplier)
        one, round_ = (Noise(clip, multiplier).epsilon(count) for count in (1, 200))
        name = f"noise {multiplier:g} (ε {one:.2g}, of 200 answers {round_:.2g})"
        made.append(Setting(name, lambda limits=limits: scene.answer(0, rows, limits), is_random=True))  # type: ignore[misc]
    return [
        *made,
        Setting(f"secure sum of {PEERS}: one message", lambda: _message(scene, rows), is_random=True),
        Setting(
            f"secure sum of {PEERS}: the sum",
            lambda: torch.stack([scene.answer(n, rows) for n in range(PEERS)]).sum(dim=0),
            hospitals=PEERS,
        ),
    ]


def _message(scene: Scene, rows: int) -> Tensor:
    """Return the first hospital's message of a secure sum, under masks with fresh keys."""
    masks = {str(n): Masks() for n in range(PEERS)}
    masks["0"].agree("0", {name: one.public for name, one in masks.items()})
    return (scene.answer(0, rows, masks=masks["0"]).double() / SCALE).float()


def invert(
    network: nn.Module, answer: Tensor, labels: Tensor, starts: Sequence[Tensor], steps: int, rate: float
) -> tuple[Tensor, float]:
    """Return the images whose gradient is most like an answer, and 1 - cos of the two."""
    best, lowest = starts[0], float("inf")
    for start in starts:
        images = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([images], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            apart = 1 - torch.cosine_similarity(gradient(network, images, labels, True), answer, dim=0)
            (apart + WEIGHT * _variation(images)).backward()
            assert images.grad is not None
            images.grad.sign_()
            optimiser.step()
            schedule.step()
        if apart.item() < lowest:
            best, lowest = images.detach(), apart.item()
    return best, lowest


def candidate_gradients(scene: Scene) -> list[Tensor]:
    """Return the gradient of each candidate slice, those of the attacked hospital first."""
    found = []
    for patient in range(PATIENTS):
        images, labels = scene.images(patient, len(OFFSETS))
        found += [gradient(scene.network, images[n : n + 1], labels[n : n + 1]).detach() for n in range(len(images))]
    return found


def recognised(candidates: Sequence[Tensor], answer: Tensor, rows: int, first: int) -> float:
    """Return the share of the true slices, `rows` of them, among the first candidates by likeness to an answer."""
    likeness = torch.stack([torch.cosine_similarity(one, answer, dim=0) for one in candidates])
    return float((likeness.argsort(descending=True)[:first] < rows).sum()) / rows


def gradient(network: nn.Module, images: Tensor, labels: Tensor, differentiable: bool = False) -> Tensor:
    """Return the flat gradient of the mean loss over rows."""
    parameters = {name: p.detach().requires_grad_() for name, p in network.named_parameters()}
    logits = functional_call(network, parameters, (images,))
    loss = dice_ce(Outputs(logits, labels)).mean()
    found = torch.autograd.grad(loss, list(parameters.values()), create_graph=differentiable)
    return torch.cat([one.flatten() for one in found])


def scene_of(size: int) -> Scene:
    """Return phantom patients of one hospital as slices of a size, and a network of first weights."""
    options = Preparation(size=size)
    with tempfile.TemporaryDirectory() as folder:
        write_phantom_sites(Path(folder) / "sites", 0, letters=("A",), subjects=PATIENTS)
        prepared = prepare_site(Site.find(Path(folder) / "sites" / "A"), options, cache=Path(folder))
        return Scene([Slices([one], options) for one in prepared], build_network(NETWORK, 0))


def correlation(found: Tensor, true: Tensor) -> float:
    """Return the mean correlation of images, of the best pairing."""
    pairings = itertools.permutations(range(len(found)))
    each = [[_one(a, b) for b in true] for a in found]
    return max(sum(each[i][n] for n, i in enumerate(order)) / len(true) for order in pairings)


def _one(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def _variation(images: Tensor) -> Tensor:
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def _noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def _number(value: float | None, places: int) -> str:
    return f"{'-' if value is None else format(value, '.2f'):>{places}}"


if __name__ == "__main__":
    main()
