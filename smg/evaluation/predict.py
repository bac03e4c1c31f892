"""A network's mask of a whole scan, on the scan's own grid."""

from __future__ import annotations

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from smg.allocator import keep_freed_memory
from smg.networks.features import recorded_moments, undisturbed
from smg.prepare.grid import Grid
from smg.prepare.slices import with_neighbours
from smg.sites.formats import Array

AT_ONCE = 4  # slices in one pass: with more, a CPU is no faster, and needs the more memory


def predict_mask(network: nn.Module, images: Tensor, grid: Grid, adjacent: int = 1, largest: bool = True) -> Array:
    """Class indices, uint8, as the scan is stored; with `largest`, of each class the largest component alone."""
    return mask_of(class_scores(network, images, adjacent), grid, largest)


def mask_of(scores: Array, grid: Grid, largest: bool = True) -> Array:
    """The mask that class scores decide, as the scan is stored."""
    mask = grid.back(scores)
    return keep_largest(mask) if largest else mask


def scores_and_moments(network: nn.Module, images: Tensor, bottleneck: str, adjacent: int = 1) -> tuple[Array, Tensor]:
    """`class_scores`, and from the same passes the bottleneck's moments [2F], averaged over all slices."""
    with recorded_moments(network, bottleneck) as moments:
        scores = class_scores(network, images, adjacent)
    return scores, torch.cat(moments).mean(dim=0).cpu()


def class_scores(network: nn.Module, images: Tensor, adjacent: int = 1) -> Array:
    """Probabilities [slices, classes, N, N] of prepared slices [slices, N, N], some slices at a time."""
    device = next(network.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()  # a third of the time of a pass, at 384 x 384 and width 32
    scores = []
    with undisturbed(network):
        for start in range(0, len(images), AT_ONCE):
            slices = range(start, min(start + AT_ONCE, len(images)))
            logits = network(with_neighbours(images, slices, adjacent).to(device))
            if logits.shape[1] == 1:
                logits = torch.cat([-logits, logits], dim=1) / 2
            scores.append(logits.softmax(dim=1).cpu())
    return torch.cat(scores).numpy()


def keep_largest(mask: Array) -> Array:
    """Of each class only its largest component (voxels that share a face); of equal ones the first."""
    kept = np.zeros_like(mask)
    for number, box in enumerate(ndimage.find_objects(mask), start=1):
        if box is None:
            continue
        components, _ = ndimage.label(mask[box] == number)
        sizes = np.bincount(components.ravel())[1:]
        kept[box][components == 1 + sizes.argmax()] = number
    return kept
