"""f(s): what a subject looks like to the trained network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smg.networks.features import bottleneck_moments, find_bottleneck, means_of
from smg.prepare.cache import Prepared
from smg.prepare.options import Preparation
from smg.prepare.slices import Slices

AT_ONCE = 16  # slices in one pass


def subject_features(network: nn.Module, subjects: Sequence[Prepared], options: Preparation) -> Tensor:
    """f(s) of each subject, [N, F]: the bottleneck's feature map averaged over space and over the subject's slices."""
    return means_of(subject_moments(network, subjects, options))


def subject_moments(network: nn.Module, subjects: Sequence[Prepared], options: Preparation) -> Tensor:
    """f(s) and, beside it, each feature's deviation over space, likewise averaged over the slices: [N, 2F]."""
    device = next(network.parameters()).device
    whole = options.model_copy(update={"empty_slices": True})  # every slice speaks for the subject
    rows, name = [], None
    for subject in subjects:
        slices = Slices([subject], whole)
        parts = []
        for start in range(0, len(slices), AT_ONCE):
            images = slices.gather(range(start, min(start + AT_ONCE, len(slices)))).images.to(device)
            name = name or find_bottleneck(network, images)
            parts.append(bottleneck_moments(network, images, name))
        rows.append(torch.cat(parts).mean(dim=0).cpu())
    return torch.stack(rows)
