"""Spectra of a site for the style memory: amplitudes of its training slices, in an order that reveals no subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.prepare.batches import Batch, Iteration
from smg.prepare.prepare_options import Size, Spacing, StyleOptions
from smg.prepare.styles import Styles, amplitudes
from smg.randomness import numpy_generator

KEY = "amplitudes"
AT_ONCE = 16  # slices


def spectra_of(batches: Iteration, options: StyleOptions) -> dict[str, Tensor]:
    """Return the amplitudes of the incoming site's slices, at most as many as are kept, without augmentation.

    Where the network sees windows, one window of each slice is used. The amplitudes are sorted by mean brightness, so
    that their order reveals neither the subject of a slice nor its position in the subject.
    """
    n = len(batches.incoming_site)
    kept = sorted(numpy_generator("spectra", batches.seed, batches.round).permutation(n)[: options.slices].tolist())
    found = []
    for start in range(0, len(kept), AT_ONCE):
        rows = tuple((0, index, index) for index in kept[start : start + AT_ONCE])
        images = Batch("spectra", rows, replace(batches, _loaded={})).load().images
        found += [amplitudes(image, options.cutoff) for image in images]
    whole = torch.stack(found)
    return {KEY: whole[torch.argsort(whole[:, 0, options.cutoff, 0], stable=True)]}


@dataclass(frozen=True)
class Spectra:
    """The amplitudes of one site, and the size and spacing of their windows."""

    amplitudes: Tensor  # [slices, channels, 2L + 1, L + 1]
    size: Size  # pixels of a window's side
    spacing: Spacing  # mm


def styles_of(stored: Mapping[str, Spectra], config: LearnerConfig) -> Styles | None:
    """Return the styles of the earlier sites for a round; None if the memory is off or empty."""
    if config.memory != "style" or not stored:
        return None
    now, sites = config.preparation, []
    for site, one in stored.items():
        if (one.size, one.spacing) != (now.size, now.spacing):
            raise SmgError(
                f"spectra of {site} are of windows of {_window(one.size, one.spacing)}, not "
                f"{_window(now.size, now.spacing)}; keep preparation.size and preparation.spacing, or give them up: "
                f"`smg replay drop MODEL {site}`"
            )
        more = max(one.amplitudes.shape[-1] - 1 - config.style.cutoff, 0)  # stored beyond the configured cut-off
        rows, columns = one.amplitudes.shape[-2:]
        sites.append(one.amplitudes[..., more : rows - more, : columns - more])
    return Styles(sites, config.style.probability, config.style.share)


def _window(size: Size, spacing: Spacing) -> str:
    return f"{size} pixels" + ("" if spacing is None else f" at {spacing} mm")
