"""What augmentation costs: a batch through `augment` against forward + backward of the network, and against libraries.

    python benchmarks/augment_cost.py            # kornia and batchgeneratorsv2 join in where they are installed
    python benchmarks/augment_cost.py --json     # the figures, last, as one line

Ratios are of medians of processor time, taken in turns in one run, so that a busy machine does not blur them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import count

import torch

from smg.prepare.augment import PRESETS, Augmentation, augment

Step = Callable[[], object]


def network_step(images: torch.Tensor, labels: torch.Tensor, width: int) -> Step:
    """Run forward and backward of a 2-D U-Net with Dice and cross-entropy."""
    from monai.losses import DiceCELoss
    from monai.networks.nets import BasicUNet

    features = tuple(width * k for k in (1, 2, 4, 8, 16, 1))
    network = BasicUNet(2, images.shape[1], 2, features=features, norm="instance")
    loss = DiceCELoss(softmax=True, to_onehot_y=True)

    def step() -> None:
        network.zero_grad()
        loss(network(images), labels[:, None]).backward()

    return step


def augment_step(images: torch.Tensor, labels: torch.Tensor, preset: str) -> Step:
    config, iterations = Augmentation.preset(preset), count()
    return lambda: augment(images, labels, config, 0, 0, next(iterations))


# The effects of `strong` from libraries, with its strengths and probabilities, as near as each one has them.

STRONG = {name: (values.get("strength", 0), values["probability"]) for name, values in PRESETS["strong"].items()}


def between(name: str) -> tuple[float, float]:
    return 1 / (1 + STRONG[name][0]), 1 + STRONG[name][0]


def monai_step(images: torch.Tensor, labels: torch.Tensor) -> Step:
    """Apply MONAI's dictionary transforms, a sample at a time: all eleven effects."""
    from monai import transforms as t

    both, image, side = ["image", "label"], ["image"], images.shape[-1]
    modes = {"mode": ("bilinear", "nearest"), "padding_mode": "border"}
    shift, turn, grow = side * STRONG["shift"][0], STRONG["rotation"][0] * 3.1416 / 180, STRONG["scale"][0]
    pipeline = t.Compose(
        [
            t.RandFlipd(both, prob=0.5, spatial_axis=1),
            t.RandAffined(
                both, prob=0.5, rotate_range=turn, translate_range=(shift, shift), scale_range=(grow, grow), **modes
            ),
            t.Rand2DElasticd(both, spacing=(side / 4, side / 4), magnitude_range=(0, side * 0.05), prob=0.3, **modes),
            t.RandBiasFieldd(image, prob=STRONG["bias"][1]),
            t.RandAdjustContrastd(image, prob=STRONG["gamma"][1], gamma=between("gamma"), retain_stats=True),
            t.RandScaleIntensityFixedMeand(image, prob=STRONG["contrast"][1], factors=0.5, preserve_range=True),
            t.RandGaussianSmoothd(image, (0.01, 1), (0.01, 1), prob=STRONG["blur"][1]),
            t.RandSimulateLowResolutiond(
                image, prob=STRONG["resolution"][1], zoom_range=(0.5, 1), upsample_mode="bilinear"
            ),
            t.RandGaussianNoised(image, prob=STRONG["noise"][1], std=STRONG["noise"][0]),
        ]
    )
    pairs = [{"image": one, "label": other[None]} for one, other in zip(images, labels, strict=True)]
    return lambda: [pipeline(dict(pair)) for pair in pairs]


def kornia_step(images: torch.Tensor, labels: torch.Tensor) -> Step:
    """Apply kornia to whole batches, effect by effect: all but lowered resolution; gamma needs intensities in 0..1."""
    import kornia.augmentation as k

    turn, chance = STRONG["rotation"]
    side = STRONG["shift"][0]
    pipeline = k.AugmentationSequential(
        k.RandomHorizontalFlip(p=STRONG["flip"][1]),
        k.RandomAffine(turn, translate=(side, side), scale=between("scale"), padding_mode="border", p=chance),
        k.RandomElasticTransform(kernel_size=(31, 31), sigma=(12, 12), padding_mode="border", p=STRONG["elastic"][1]),
        k.RandomGaussianIllumination(p=STRONG["bias"][1]),
        k.RandomGamma(between("gamma"), p=STRONG["gamma"][1]),
        k.RandomContrast(between("contrast"), p=STRONG["contrast"][1]),
        k.RandomGaussianBlur((9, 9), (0.01, STRONG["blur"][0]), p=STRONG["blur"][1]),
        k.RandomGaussianNoise(std=STRONG["noise"][0], p=STRONG["noise"][1]),
        data_keys=["input", "mask"],
    )
    unit, masks = images.sigmoid(), labels[:, None].float()
    return lambda: pipeline(unit, masks)


def batchgenerators_step(images: torch.Tensor, labels: torch.Tensor) -> Step:
    """Apply nnU-Net's own transforms, a sample at a time: all but shift and the bias field."""
    from batchgeneratorsv2.transforms.intensity.contrast import ContrastTransform
    from batchgeneratorsv2.transforms.intensity.gamma import GammaTransform
    from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform
    from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
    from batchgeneratorsv2.transforms.spatial.low_resolution import SimulateLowResolutionTransform
    from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
    from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform
    from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
    from batchgeneratorsv2.transforms.utils.random import RandomTransform

    turn, scale = STRONG["rotation"][0] * 3.1416 / 180, between("scale")
    spatial = SpatialTransform(
        images.shape[-2:], 0, False, 0.3, p_rotation=0.5, rotation=(-turn, turn), p_scaling=0.5, scaling=scale
    )
    intensity = {
        "gamma": GammaTransform(between("gamma"), 0, True, 1, 1),
        "contrast": ContrastTransform(between("contrast"), True, True, 1),
        "blur": GaussianBlurTransform((0.01, STRONG["blur"][0]), True, True, 1),
        "resolution": SimulateLowResolutionTransform((0.5, 1), True, True, ()),
        "noise": GaussianNoiseTransform((0, STRONG["noise"][0] ** 2), 1, True),
    }
    chosen = [RandomTransform(transform, STRONG[name][1]) for name, transform in intensity.items()]
    pipeline = ComposeTransforms([spatial, MirrorTransform((1,)), *chosen])
    pairs = [{"image": one, "segmentation": other[None]} for one, other in zip(images, labels, strict=True)]
    return lambda: [pipeline(**{key: value.clone() for key, value in pair.items()}) for pair in pairs]


def in_turns(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Return the median processor time of each step in milliseconds, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 3):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn >= 3:  # the first turns warm caches up
                times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print the figures last, as one line of JSON")
    given = parser.parse_args()

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    images = torch.randn(given.batch, 1, given.size, given.size)
    labels = torch.zeros(given.batch, given.size, given.size, dtype=torch.int64)
    labels[:, given.size // 3 : given.size // 2, given.size // 3 : given.size // 2] = 1

    steps = {
        "network": network_step(images, labels, given.width),
        "mild": augment_step(images, labels, "mild"),
        "strong": augment_step(images, labels, "strong"),
    }
    libraries = {"monai": monai_step, "kornia": kornia_step, "batchgeneratorsv2": batchgenerators_step}
    for name, library in libraries.items():
        try:
            steps[name] = library(images, labels)
        except ImportError:
            print(f"{name:18s} not installed")
    times = in_turns(steps, given.repeats)
    ratios = {name: times[name] / times["network"] for name in steps}
    for name in steps:
        print(f"{name:18s} {times[name]:8.2f} ms   {ratios[name]:6.3f} of forward + backward")
    if given.json:
        figures = {"milliseconds": times, "ratio": ratios, "target": 0.15, **vars(given)}
        figures["met"] = max(ratios["mild"], ratios["strong"]) < 0.15
        print(json.dumps({key: value for key, value in figures.items() if key != "json"}))


if __name__ == "__main__":
    main()
