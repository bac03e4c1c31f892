"""`preparation.json`: how a scan is prepared for the network and its answer put back, for any other program."""

from __future__ import annotations

from typing import Any

from smg.evaluation.whole_scan import AT_ONCE, WINDOWS_AT_ONCE
from smg.export.release import Release
from smg.networks import NetworkConfig
from smg.networks.build import arguments_of
from smg.prepare.prepare_options import Preparation
from smg.prepare.prepared_site import ROUNDING
from smg.prepare.windows import LEAST, OVERLAP, SIGMA

FORMAT = 1
UNET = ("channels", "classes", "width", "depth", "norm", "dropout")  # what the network's constructor takes


def preparation(release: Release) -> dict[str, Any]:
    """Return all that decides a mask, in the order in which it is applied."""
    config, options = release.config, release.config.preparation
    return {
        "format": FORMAT,
        "channels": list(options.channels or ("image",)),
        "orientation": {"slices": "inferior to superior", "rows": "anterior to posterior", "columns": "right to left"},
        "clip": list(options.clip) if options.clip else None,
        "resample": {
            "size": list(options.shape) if options.spacing is None else None,
            "spacing": options.spacing,
            "field": options.field,
            "filter": "triangle",
        },
        "normalise": options.normalise,
        "constant": ROUNDING,
        "adjacent": options.adjacent,
        "windows": _windows(options),
        "at_once": AT_ONCE if options.spacing is None else WINDOWS_AT_ONCE,
        "mirror": config.mirror,
        "labels": _labels(options),
        "largest_component": config.largest_component,
        "network": network(config.network),
        "steps": steps(release),
    }


def network(config: NetworkConfig) -> dict[str, Any]:
    """Return the network's name and what its constructor takes."""
    if config.name == "unet":
        return {"name": "unet", **{key: getattr(config, key) for key in UNET}}
    return {"name": config.name, "arguments": arguments_of(config)}


def _windows(options: Preparation) -> dict[str, Any] | None:
    if options.spacing is None:
        return None
    return {"size": options.size, "overlap": OVERLAP, "sigma": SIGMA, "least": LEAST, "beyond": "edge"}


def _labels(options: Preparation) -> list[dict[str, Any]]:
    labels = options.labels
    names = ["background", *labels.names]
    return [
        {"index": n, "name": name, "value": value}
        for n, (name, value) in enumerate(zip(names, labels.written, strict=True))
    ]


def steps(release: Release) -> list[str]:
    """Return the same in sentences, for the author of such a program."""
    options, config = release.config.preparation, release.config
    lines = [
        "Permute and flip the stored axes to those directions; do not resample for it, also where a scan is oblique."
    ]
    if options.clip:
        low, high = options.clip
        lines.append(f"Clip each channel to its percentiles {low:g} and {high:g} over the whole volume.")
    how = "a triangle filter (linear upwards, averaging downwards), pixel centres aligned over the whole edge"
    if options.spacing is None:
        lines.append(f"Resize each slice to {options.size} x {options.size} with {how}.")
    else:
        lines.append(f"Resample each slice to {options.spacing:g} mm in plane, rounded to whole pixels, with {how}.")
        if options.field:
            lines.append(f"Keep the central {options.field:g} mm of rows and columns, or all where there are fewer.")
    lines.append(f"Subtract each channel's mean over the {options.normalise} and divide by its standard deviation.")
    if options.adjacent > 1:
        lines.append(
            "Give each slice with its lower and upper neighbour as channels (lower, own, upper; at an end, itself)."
        )
    if options.spacing is not None:
        lines.append(
            f"Cover the slice with windows of {options.size} x {options.size} that overlap by at least "
            f"{100 * OVERLAP:g} %, spread evenly; one where it covers the slice. Beyond the slice repeat its edge."
        )
    lines.append("Take the softmax of the network's logits.")
    if config.mirror:
        lines.append("Average it with that of the window seen left for right.")
    if options.spacing is not None:
        lines.append(
            "Average windows with the weights of a Gaussian: `sigma` is a share of the side, `least` the least weight."
        )
    lines.append(
        "Resample the probabilities to the scan's rows and columns with the same filter; beyond the field: background."
    )
    lines.append("Take the class of the largest probability.")
    if config.largest_component:
        lines.append("Keep of each class its largest component, of voxels that share a face.")
    return [*lines, "Undo the flips and the permutation, and write the values of the labels."]
