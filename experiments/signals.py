"""Measure signals that may tell the guard of a fall, beside the DSC of sentinels. Nothing is trained.

    python -m experiments.signals runs/prostate-lite runs/catalogue --out results/guard-signals.json

For each round of a run and each earlier site, the networks before and after the round see what the model keeps of the
site: its sentinel, and its exemplars as they are and in augmented views. The truth is the fall of the site's mean over
its test part. `experiments.guard` makes the table. Every signal is larger where more was lost:

    drift          ‖f' - f‖ / ‖f‖ of the bottleneck's mean features, over sentinel and exemplars
    disagreement   1 - DSC between the masks of the two networks
    volume         |log V' / V| of the predicted volumes
    entropy        rise of the mean entropy where either network predicts foreground
    augmented      fall of the DSC of augmented exemplars; needs their labels, which the model has
    slices         t of the paired falls of the sentinel's slices; needs its labels
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.guard import scores
from experiments.mistakes import in_one_line
from smg.evaluation.metrics import dice
from smg.evaluation.whole_scan import keep_largest, scores_and_moments
from smg.files import write_json
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import unpack
from smg.learner.learner import Learner
from smg.learner.records import RoundRecord
from smg.networks.features import find_bottleneck, means_of
from smg.prepare.augment import Augmentation, augment
from smg.prepare.cache import Prepared
from smg.report.runs import Run, find_runs

VIEWS = 2  # augmented views of each exemplar
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Masks = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


@dataclass(frozen=True)
class Seen:
    """A subject as one network sees it."""

    mask: Masks
    entropy: Array  # of each pixel
    features: torch.Tensor
    truth: Masks

    @property
    def dsc(self) -> float:
        return dice(self.mask > 0, self.truth > 0)

    def slices(self) -> Array:
        """Return the DSC of each slice that has foreground."""
        there = [n for n in range(len(self.truth)) if self.truth[n].any()]
        return np.array([dice(self.mask[n] > 0, self.truth[n] > 0) for n in there])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", type=Path, nargs="+", help="benches with their models")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for bench in options.benches:
        for run in find_runs([bench]):
            if (run.folder / "model" / "model.json").is_file():
                about = {"bench": bench.name, "run": str(run.folder.relative_to(bench)), "method": run.name}
                rows += [about | row for row in measured(run)]
                write_json(options.out, rows)  # after each run: it takes a while
                print(run.folder, flush=True)


def measured(run: Run) -> Iterator[dict[str, object]]:
    """Yield, for every round and earlier site, the true fall, the sentinels' DSC and every signal."""
    tested, learner = scores(run), Learner(run.folder / "model")
    method = learner.config.recipe().method
    if method.one_network_a_site or method.keeps == "everything":  # no site can be lost, or none is left behind
        return
    kept = {record.site: subjects_of(learner, record) for record in learner.history.records()}
    sites = list(kept)
    by_network: dict[str, dict[str, list[list[Seen]]]] = {}  # round's site -> site -> sentinels, exemplars and views
    for number, name in enumerate(sites):
        network = learner.network(learner.rounds()[number].round)
        by_network[name] = {
            site: [[seen(network, one, learner.config) for one in some] for some in kept[site]]
            for site in sites[: number + 1]
        }
        for site in sites[:number]:
            before, after = by_network[sites[number - 1]][site], by_network[name][site]
            means = [np.mean(list(tested[round_, site].values())) for round_ in (sites[number - 1], name)]
            since = sites[sites.index(site) : number + 1]
            yield {
                "round": name,
                "site": site,
                "fall": round(100 * float(means[0] - means[1]), 3),
                "sentinels": [[round(one.dsc, 5) for one in by_network[then][site][0]] for then in since],
                "signals": signals(before, after),
            }


def subjects_of(learner: Learner, record: RoundRecord) -> list[list[Prepared]]:
    """Return a round's sentinels, its exemplars, and augmented views of these."""
    names = [name for name in ("sentinels", "exemplars") if f"{name}.safetensors" in record.files]
    kept = {name: unpack(record.site, learner.store.read_tensors(record.round, name)) for name in names}
    exemplars = kept.get("exemplars", [])
    return [kept.get("sentinels", []), exemplars, [view for one in exemplars for view in views(one)]]


def seen(network: nn.Module, subject: Prepared, config: LearnerConfig) -> Seen:
    """Return a subject's mask, entropy and features by a network."""
    bottleneck = find_bottleneck(network, subject.images[:1])
    probabilities, moments = scores_and_moments(network, subject.images, bottleneck, config.preparation)
    mask = probabilities.argmax(axis=1).astype(np.uint8)
    entropy = -(probabilities * np.log(np.clip(probabilities, 1e-7, 1))).sum(axis=1)
    mask = keep_largest(mask) if config.largest_component else mask
    return Seen(mask, entropy, means_of(moments[None])[0], subject.labels.numpy())


def views(subject: Prepared) -> list[Prepared]:
    """Return a subject in several augmented views, always the same ones."""
    strong = Augmentation.preset("strong")
    made = [augment(subject.images, subject.labels, strong, 0, view, 0) for view in range(VIEWS)]
    return [replace(subject, images=images, labels=labels) for images, labels in made]


def signals(before: list[list[Seen]], after: list[list[Seen]]) -> dict[str, float]:
    """Return every signal of one site in one round; those of exemplars only where there are any."""
    sentinel, plain, moved = (list(zip(one, other, strict=True)) for one, other in zip(before, after, strict=True))
    found = {
        "drift of features, sentinel": [drift(a, b) for a, b in sentinel],
        "disagreement, sentinel": [apart(a, b) for a, b in sentinel],
        "change of volume, sentinel": [swelling(a, b) for a, b in sentinel],
        "rise of entropy, sentinel": [doubt(a, b) for a, b in sentinel],
        "slices of the sentinel (labels)": [slices_t(a, b) for a, b in sentinel],
        "drift of features, exemplars": [drift(a, b) for a, b in plain],
        "disagreement, exemplars": [apart(a, b) for a, b in plain],
        "disagreement, augmented exemplars": [apart(a, b) for a, b in moved],
        "change of volume, augmented exemplars": [swelling(a, b) for a, b in moved],
        "rise of entropy, augmented exemplars": [doubt(a, b) for a, b in moved],
        "augmented exemplars (labels)": [a.dsc - b.dsc for a, b in moved],
    }
    return {name: round(float(np.mean(values)), 5) for name, values in found.items() if values}


def drift(then: Seen, now: Seen) -> float:
    """Return how far a subject's features moved, relative to their length."""
    return float((now.features - then.features).norm() / then.features.norm().clamp_min(1e-12))


def apart(then: Seen, now: Seen) -> float:
    """Return 1 - DSC between two networks' masks."""
    return 1 - dice(then.mask > 0, now.mask > 0)


def swelling(then: Seen, now: Seen) -> float:
    """Return |log| of the ratio of predicted volumes; one pixel is added, so that an empty mask has a logarithm."""
    return float(abs(np.log(((now.mask > 0).sum() + 1) / ((then.mask > 0).sum() + 1))))


def doubt(then: Seen, now: Seen) -> float:
    """Return the rise of the mean entropy where either network predicts foreground."""
    there = (then.mask > 0) | (now.mask > 0)
    return float((now.entropy - then.entropy)[there].mean()) if there.any() else 0.0


def slices_t(then: Seen, now: Seen) -> float:
    """Return the mean fall of the DSC over slices in units of its standard error."""
    falls = then.slices() - now.slices()
    return float(falls.mean() / max(falls.std(ddof=1) / np.sqrt(len(falls)), 1e-3)) if len(falls) > 1 else 0.0


if __name__ == "__main__":
    with in_one_line():
        main()
