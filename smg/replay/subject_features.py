"""f(s): the features of a subject, computed by the trained network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from smg.networks.features import bottleneck_map, bottleneck_moments, find_bottleneck, means_of
from smg.prepare.cache import Prepared
from smg.prepare.prepare_options import Preparation
from smg.prepare.slices import passes
from smg.prepare.windows import cut

AT_ONCE = 16  # slices a pass


def subject_features(network: nn.Module, subjects: Sequence[Prepared], options: Preparation) -> Tensor:
    """Return f(s) of each subject, [N, F]: the bottleneck's feature map averaged over space and slices."""
    return means_of(subject_moments(network, subjects, options))


def subject_moments(network: nn.Module, subjects: Sequence[Prepared], options: Preparation) -> Tensor:
    """Return f(s) and each feature's standard deviation over space, both averaged over slices, [N, 2F]."""
    name, rows = None, []
    for subject in subjects:
        parts = []
        for images, _ in _passes(network, subject, options):
            name = name or find_bottleneck(network, images)
            parts.append(bottleneck_moments(network, images, name))
        rows.append(torch.cat(parts).mean(dim=0).cpu())
    return torch.stack(rows)


def foreground_features(network: nn.Module, subjects: Sequence[Prepared], options: Preparation) -> Tensor:
    """Return f(s) averaged over the foreground alone, [N, F]; zero for a subject without foreground.

    Each position counts by its share of foreground. After instance norm, a feature's average over a whole slice is
    nearly the same for every slice by construction; its average over the foreground is not.
    """
    name, rows = None, []
    for subject in subjects:
        total, weight = torch.zeros(()), torch.zeros(())
        for images, labels in _passes(network, subject, options):
            name = name or find_bottleneck(network, images)
            features = bottleneck_map(network, images, name)
            h, w = features.shape[-2:]
            share = adaptive_avg_pool2d((labels > 0).to(features)[:, None], (h, w))
            total = total + (features * share).sum(dim=(0, 2, 3)).cpu()
            weight = weight + share.sum().cpu()
        rows.append(total / weight if weight > 0 else total)
    return torch.stack(rows)


def _passes(network: nn.Module, subject: Prepared, options: Preparation) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of the windows that predict a subject, with their labels; empty slices count too."""
    device = next(network.parameters()).device
    for where, images in passes(subject.images, options, AT_ONCE):
        size, zeros = (images.shape[-2], images.shape[-1]), options.nnunet is not None
        labels = torch.stack([cut(subject.label_slices[number], corner, size, zeros) for number, corner in where])
        yield images.to(device), labels.to(device)
