"""Predict the mask of a whole scan, on the scan's own grid, window by window."""

from __future__ import annotations

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from smg.allocator import keep_freed_memory
from smg.errors import SmgError
from smg.networks.features import recorded_moments, undisturbed
from smg.prepare.grid import Grid
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import passes
from smg.prepare.windows import Corner, gaussian, nnunet_gaussian
from smg.sites.formats import Array

AT_ONCE = 4  # slices a pass; more need more memory and are no faster on a CPU
WINDOWS_AT_ONCE = 16  # windows a pass


class NotFinite(SmgError):
    """Error for a scan whose scores are NaN or infinite; the caller names the scan."""


def predict_mask(
    network: nn.Module, images: Tensor, grid: Grid, options: Preparation, largest: bool = True, mirror: bool = False
) -> Array:
    """Return the predicted class indices, uint8, in the scan's storage order.

    With `largest` only the largest component of each class is kept. With `mirror` predictions of mirrored windows are
    averaged in.
    """
    return mask_of(class_scores(network, images, options, mirror), grid, largest)


def mask_of(scores: Array, grid: Grid, largest: bool = True) -> Array:
    """Return the mask that class scores give, in the scan's storage order."""
    mask = grid.back(scores)
    return keep_largest(mask) if largest else mask


def scores_and_moments(
    network: nn.Module, images: Tensor, bottleneck: str, options: Preparation, mirror: bool = False
) -> tuple[Array, Tensor]:
    """Return `class_scores` and, from the same passes, the bottleneck's moments [2F], averaged over all windows.

    Mirrored passes add to the scores but not to the moments, since moments of sites are without them.
    """
    with recorded_moments(network, bottleneck) as moments:
        scores = class_scores(network, images, options, mirror)
    return scores, torch.cat(moments[:: 2 if mirror else 1]).float().mean(dim=0).cpu()


def class_scores(network: nn.Module, images: Tensor, options: Preparation, mirror: bool = False) -> Array:
    """Return scores [slices, classes, rows, columns] of prepared slices [slices, channels, rows, columns].

    They are probabilities or, with nnU-Net's preparation, logits, since nnU-Net averages and resamples those; the class
    with the highest one is predicted. If one window covers a slice, they are the network's own. Overlapping windows are
    averaged with Gaussian weights. With `mirror` each window is also predicted with left and right exchanged, and the
    two predictions are averaged.
    """
    device = next(network.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()  # a third of the time of a pass, at 384 x 384 and width 32
    whole, scored = _Whole(images, options), _logits if options.nnunet else _probabilities
    with undisturbed(network):
        for where, windows in passes(images, options, AT_ONCE if options.spacing is None else WINDOWS_AT_ONCE):
            scores = scored(network, windows.to(device))
            if mirror:
                scores = (scores + scored(network, windows.to(device).flip(-1)).flip(-1)) / 2
            whole.add(where, scores.cpu())
    every = whole.scores()
    if not np.isfinite(every).all():
        raise NotFinite("the network's scores are NaN or infinite, so that there is no mask; check its intensities")
    return every


def class_logits(network: nn.Module, images: Tensor, options: Preparation) -> Tensor:
    """Return the network's own outputs [slices, K, rows, columns] of prepared slices, averaged as `class_scores`."""
    device = next(network.parameters()).device
    whole = _Whole(images, options)
    with undisturbed(network):
        for where, windows in passes(images, options, AT_ONCE if options.spacing is None else WINDOWS_AT_ONCE):
            whole.add(where, network(windows.to(device)).cpu())
    return torch.from_numpy(whole.scores())


def _probabilities(network: nn.Module, windows: Tensor) -> Tensor:
    """Return class probabilities [B, classes, h, w]."""
    return _logits(network, windows).softmax(dim=1)


def _logits(network: nn.Module, windows: Tensor) -> Tensor:
    """Return a logit of each class [B, classes, h, w]; a network with one output is taken as a logistic one."""
    logits: Tensor = network(windows).float()  # of bfloat16, where the caller has chosen that precision
    return torch.cat([-logits, logits], dim=1) / 2 if logits.shape[1] == 1 else logits


class _Whole:
    """Scores of whole slices, accumulated from those of their windows."""

    def __init__(self, images: Tensor, options: Preparation) -> None:
        self.shape = len(images), images.shape[-2], images.shape[-1]
        self.sums: Tensor | None = None  # [slices, classes, rows, columns]
        self.weights = torch.zeros(self.shape[1:])  # of one slice; all slices have the same windows
        self.weigh = nnunet_gaussian if options.nnunet else gaussian

    def add(self, where: list[tuple[int, Corner]], scores: Tensor) -> None:
        """Add the scores of some windows, each at its (slice, corner)."""
        slices, rows, columns = self.shape
        high, wide = scores.shape[-2:]
        if self.sums is None:
            self.sums = torch.zeros(slices, scores.shape[1], rows, columns)
        alone = high >= rows and wide >= columns
        for (number, (top, left)), window in zip(where, scores, strict=True):
            down, across = slice(max(top, 0), top + high), slice(max(left, 0), left + wide)
            inside = slice(max(-top, 0), rows - top), slice(max(-left, 0), columns - left)
            if alone:
                self.sums[number, :, down, across] = window[:, *inside]
                continue
            weights = self.weigh((high, wide))[inside]
            self.sums[number, :, down, across] += window[:, *inside] * weights
            if number == 0:
                self.weights[down, across] += weights

    def scores(self) -> Array:
        """Return the scores [slices, classes, rows, columns]."""
        assert self.sums is not None  # a scan has slices
        if self.weights.any():
            self.sums /= self.weights
        return self.sums.numpy()


def keep_largest(mask: Array) -> Array:
    """Return a mask with only the largest component of each class (voxels that share a face); the first of equals."""
    kept = np.zeros_like(mask)
    for number, box in enumerate(ndimage.find_objects(mask), start=1):
        if box is None:
            continue
        components, _ = ndimage.label(mask[box] == number)
        sizes = np.bincount(components.ravel())[1:]
        kept[box][components == 1 + sizes.argmax()] = number
    return kept
