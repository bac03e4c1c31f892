"""Measure what the amplitudes of a style memory tell of a patient: images rebuilt from them, and membership.

    python -m experiments.spectra --data DIR

*Rebuilding*: phases are not stored, so they are guessed, for every method from the amplitudes alone:

- `retrieval`: phase retrieval, hybrid input-output and then error reduction, with positivity, from random phases; of
  several starts the one that violates positivity least;
- `borrowed`: the phases of the slices with the nearest amplitudes at other hospitals, refined alike, and averaged;
- `regression`: the image predicted from the amplitudes by kernel ridge regression, learned at other hospitals;
- `insider`: the same, learned from other patients of the hospital itself.

Each is compared with the slice that the amplitudes are of, and with slices of other patients of the same site, by
correlation and SSIM. `mean image` is what is known without any amplitudes, `true phases` the most that could come out.

*Membership*: whether a scan is among those stored, scored by its slices' distance to the nearest stored spectrum, for
the scan itself and for a copy with noise, shading and a shift (as if the patient was scanned again, and better than
that). AUC over subjects; for exemplars the same by the correlation with the nearest stored slice.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from experiments.mistakes import in_one_line
from smg.prepare.augment import Augmentation, augment
from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import prepare_site
from smg.prepare.styles import amplitudes
from smg.sites.layouts import find_sites

CUTOFF, NEAREST, STARTS, STEPS = 4, 20, 20, 300
Scores = dict[str, dict[str, float]]
AGAIN = Augmentation.model_validate(
    {
        "shift": {"strength": 0.03, "probability": 1},
        "rotation": {"strength": 3, "probability": 1},
        "bias": {"strength": 0.3, "probability": 1},
        "noise": {"strength": 0.1, "probability": 1},
    }
)


@dataclass(frozen=True)
class Scans:
    """A site's slices in the network's window, and the subject of each."""

    images: Tensor  # [slices, N, N]
    subjects: list[str]
    target: list[int]  # slices that are rebuilt: three with foreground of each subject

    @property
    def spectra(self) -> Tensor:
        return amplitudes(self.images, CUTOFF)


def read(subjects: list[Prepared]) -> Scans:
    """Return the slices of all subjects, with three targets each, evenly spread over the foreground."""
    images: list[Tensor] = []
    names: list[str] = []
    targets: list[int] = []
    for one in subjects:
        inside = [index for index, foreground in enumerate(one.foreground) if foreground]
        targets += [len(names) + inside[int(share * len(inside))] for share in (0.25, 0.5, 0.75)]
        images.append(one.images[:, 0])
        names += [one.subject.case] * len(one.images)
    return Scans(torch.cat(images), names, targets)


# --- rebuilding -------------------------------------------------------------------------------------------------------


def low_pass(spectrum: Tensor) -> Tensor:
    """Return a spectrum [..., N, N/2 + 1] without its high frequencies."""
    low = torch.zeros_like(spectrum)
    for rows in (slice(None, CUTOFF + 1), slice(-CUTOFF, None)):
        low[..., rows, : CUTOFF + 1] = spectrum[..., rows, : CUTOFF + 1]
    return low


def retrieved(spectrum: Tensor, phases: Tensor, black: float) -> tuple[Tensor, Tensor]:
    """Return images [starts, N, N] with the low amplitudes of a spectrum, and how far each goes below black.

    Hybrid input-output with β = 0.9, the last sixth error reduction.
    """
    wanted, size = low_pass(spectrum).abs(), phases.shape[-2]
    image = torch.fft.irfft2(torch.polar(wanted.expand_as(phases), phases), s=(size, size), norm="forward")
    for step in range(STEPS):
        angles = torch.fft.rfft2(image, norm="forward").angle()
        fitting = torch.fft.irfft2(torch.polar(wanted.expand_as(angles), angles), s=(size, size), norm="forward")
        outside = fitting.clamp_min(black) if step >= STEPS * 5 // 6 else image - 0.9 * (fitting - black)
        image = torch.where(fitting >= black, fitting, outside)
    return fitting, (black - fitting).clamp_min(0).square().mean((-2, -1))


def kernel_ridge(known: Tensor, images: Tensor, asked: Tensor) -> Tensor:
    """Return images predicted from amplitudes, by ridge regression with a Gaussian kernel on their logarithms."""
    centre, spread = known.log().mean(0), known.log().std(0)
    a, b = ((one.log() - centre) / spread for one in (known, asked))
    width = torch.cdist(a, a).median()
    kernel, across = (torch.exp(-torch.cdist(one, a).square() / (2 * width**2)) for one in (a, b))
    mean = images.mean(0)
    weights = torch.linalg.solve(kernel + 0.1 * torch.eye(len(a)), (images - mean).flatten(1))
    return mean + (across @ weights).unflatten(1, images.shape[1:])


def rebuilt(site: Scans, others: Scans, rng: torch.Generator) -> Scores:
    """Return how like the true slice, and like other patients' slices, each kind of guess is, mean over targets."""
    spectra, known = (one.spectra.flatten(1) for one in (site, others))
    black = float(others.images.amin((-2, -1)).median())
    guesses: dict[str, list[Tensor]] = {}
    from_others = kernel_ridge(known, others.images, spectra[site.target])
    for place, index in enumerate(site.target):
        image = site.images[index]
        spectrum = torch.fft.rfft2(image, norm="forward")
        apart = torch.cdist(spectra[index : index + 1].log(), known.log())[0]
        near = others.images[apart.argsort()[:NEAREST]]
        random = (2 * torch.rand(STARTS, *spectrum.shape, generator=rng) - 1) * torch.pi
        blind, violation = retrieved(spectrum, random, black)
        borrowed, _ = retrieved(spectrum, torch.fft.rfft2(near).angle(), black)
        elsewhere = [n for n, name in enumerate(site.subjects) if name != site.subjects[index]]
        inside = kernel_ridge(spectra[elsewhere], site.images[elsewhere], spectra[index : index + 1])[0]
        size = image.shape[-1]
        found = {
            "mean image": others.images.mean(0),
            "retrieval": blind[violation.argmin()],
            "borrowed": borrowed.mean(0),
            "regression": from_others[place],
            "insider mean": site.images[elsewhere].mean(0),
            "insider": inside,
            "true phases": torch.fft.irfft2(low_pass(spectrum), s=(size, size), norm="forward"),
        }
        for name, guess in found.items():
            guesses.setdefault(name, []).append(guess)
    return {name: compared(site, made) for name, made in guesses.items()}


def compared(site: Scans, guesses: list[Tensor]) -> dict[str, float]:
    """Return correlation and SSIM with the true slice and with other patients', and how often the true one is nearest.

    Chance is one in as many as there are targets.
    """
    truth = [site.images[index] for index in site.target]
    owner = [site.subjects[index] for index in site.target]
    r = np.array([[correlation(guess, image) for image in truth] for guess in guesses])
    s = np.array([[ssim(guess, image) for image in truth] for guess in guesses])
    other = np.array([[a != b for b in owner] for a in owner])
    return {
        "correlation": float(np.diag(r).mean()),
        "correlation with others": float(r[other].mean()),
        "ssim": float(np.diag(s).mean()),
        "ssim with others": float(s[other].mean()),
        "nearest": float((r.argmax(1) == np.arange(len(r))).mean()),
        "chance": 1 / len(r),
    }


def correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1])


def ssim(a: Tensor, b: Tensor) -> float:
    """Return the structural similarity of two images scaled to the same mean and deviation (Wang et al., 2004)."""
    x, y = (((one - one.mean()) / one.std().clamp_min(1e-6)).double().numpy() for one in (a, b))
    reach = y.max() - y.min()
    c1, c2 = (0.01 * reach) ** 2, (0.03 * reach) ** 2

    def local(values: np.ndarray) -> np.ndarray:
        return np.asarray(gaussian_filter(values, 1.5))

    mx, my = local(x), local(y)
    vx, vy, both = local(x * x) - mx**2, local(y * y) - my**2, local(x * y) - mx * my
    return float((((2 * mx * my + c1) * (2 * both + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean())


# --- membership -------------------------------------------------------------------------------------------------------


def membership(site: Scans, seed: int) -> dict[str, float]:
    """Return the AUC of telling stored from other subjects: half of them by spectra, and two by their slices."""
    names = sorted(set(site.subjects))
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    again = augment(site.images[:, None], torch.zeros(site.images.shape, dtype=torch.uint8), AGAIN, seed, 0, 0)[0][:, 0]
    found = {}
    for what, stored in (("spectra", order[: len(order) // 2]), ("exemplars", order[:2])):
        kept = torch.tensor([name in stored for name in site.subjects])
        for how, images in (("the scan itself", site.images), ("scanned again", again)):
            nearest = (_spectral if what == "spectra" else _pictorial)(site.images[kept], images)
            scores = {n: float(nearest[torch.tensor([s == n for s in site.subjects])].mean()) for n in names}
            found[f"{what}, {how}"] = auc(
                [scores[n] for n in names if n in stored], [scores[n] for n in names if n not in stored]
            )
    return found


def _spectral(stored: Tensor, asked: Tensor) -> Tensor:
    """Return how near each slice is to the nearest stored spectrum; amplitudes are compared as logarithms."""
    known, ours = (amplitudes(one, CUTOFF).flatten(1).clamp_min(1e-6).log() for one in (stored, asked))
    return -torch.cdist(ours, known).amin(1)


def _pictorial(stored: Tensor, asked: Tensor) -> Tensor:
    """Return the correlation of each slice with the nearest stored one."""
    known, ours = (one.flatten(1) - one.flatten(1).mean(1, keepdim=True) for one in (stored, asked))
    known, ours = (one / one.norm(dim=1, keepdim=True).clamp_min(1e-6) for one in (known, ours))
    return (ours @ known.T).amax(1)


def auc(members: list[float], others: list[float]) -> float:
    """Return the probability that a member scores higher than another; half where they score the same."""
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    return float(np.mean(pairs))


# --- the whole --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder of sites")
    parser.add_argument(
        "--subjects", type=int, default=6, help="subjects of a site whose slices are rebuilt; default 6"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    preparation = Preparation(size=64, spacing=1.875, field=120)
    prepared = {name: prepare_site(site, preparation) for name, site in find_sites(options.data).items()}
    sites = {name: read(subjects) for name, subjects in prepared.items()}
    rng = torch.Generator().manual_seed(0)
    images: dict[str, Scores] = {}
    members: dict[str, dict[str, float]] = {}
    for name, site in sites.items():
        rest = [one for other, one in sites.items() if other != name]
        others = Scans(torch.cat([one.images for one in rest]), [], [])
        few = Scans(site.images, site.subjects, site.target[: 3 * options.subjects])
        draws = [membership(site, seed) for seed in range(10)]
        images[name] = rebuilt(few, others, rng)
        members[name] = {what: float(np.mean([one[what] for one in draws])) for what in draws[0]}
        print(f"{name}: {len(site.images)} slices of {len(set(site.subjects))} subjects", flush=True)
    _print_rebuilt(list(images.values()))
    _print_members(members)
    if options.json:
        options.json.write_text(json.dumps({"rebuilt": images, "membership": members}, indent=1) + "\n")


def _print_rebuilt(images: list[Scores]) -> None:
    """Print means over sites."""
    columns = list(next(iter(images[0].values())))
    print(f"\n{'rebuilt, mean over sites':28}" + "".join(f"{column:>25}" for column in columns))
    for kind in images[0]:
        cells = [float(np.mean([of[kind][column] for of in images])) for column in columns]
        print(f"{kind:28}" + "".join(f"{cell:25.2f}" for cell in cells))


def _print_members(members: dict[str, dict[str, float]]) -> None:
    print(f"\n{'membership, AUC':30}" + "".join(f"{site:>10}" for site in members))
    for what in next(iter(members.values())):
        print(f"{what:30}" + "".join(f"{of[what]:10.2f}" for of in members.values()))


if __name__ == "__main__":
    with in_one_line():
        main()
