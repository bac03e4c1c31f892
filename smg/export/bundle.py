"""The configurations of a MONAI bundle: what the network takes and gives, and how inference is put together."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import smg
from smg.export.release import Release

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
PACKAGES = {"nibabel": "5.1", "scipy": "1.11"}  # that the script needs beside torch, monai and numpy
OLDEST = {"monai": "1.4.0", "torch": "2.6.0", "numpy": "1.26.0", **PACKAGES}  # said where one is not installed here
SCRIPT = "scripts.segment"


def metadata(release: Release) -> dict[str, Any]:
    """Return configs/metadata.json."""
    options, network = release.config.preparation, release.config.network
    names = ["background", *options.labels.names]
    channels = list(options.channels or ("image",))
    if options.adjacent > 1:
        channels = [f"{name}, {which} slice" for which in ("lower", "own", "upper") for name in channels]
    tensor: dict[str, Any] = {
        "type": "image",
        "modality": "n/a",
        "spatial_shape": list(options.shape),
        "dtype": "float32",
    }
    tensor |= {"value_range": [], "is_patch_data": options.spacing is not None}
    image = {"format": "magnitude", "num_channels": network.channels, "channel_def": _numbered(channels)}
    logits = {"format": "labels", "num_channels": network.classes, "channel_def": _numbered(names)}
    sites = ", ".join(one.site for one in release.learned) or "no site yet"
    return {
        "schema": SCHEMA,
        "version": f"0.{release.number}.0",
        "changelog": {f"0.{one.round}.0": f"learned {one.site}" for one in release.learned}
        or {"0.0.0": "first weights"},
        "monai_version": _version("monai"),
        "pytorch_version": _version("torch"),
        "numpy_version": _version("numpy"),
        "required_packages_version": {name: _version(name) for name in PACKAGES},
        "supported_apps": {},
        "name": release.name,
        "task": f"segmentation of {', '.join(options.labels.names)}",
        "description": f"A 2-D network, trained by continual learning on {sites}. README.md is its card.",
        "authors": f"made with smg {smg.__version__}",
        "copyright": "that of its trainers",
        "intended_use": "Research. Not a medical device.",
        "network_data_format": {"inputs": {"image": tensor | image}, "outputs": {"pred": tensor | logits}},
    }


def inference(settings: dict[str, Any]) -> dict[str, Any]:
    """Return configs/inference.json, for a model with these settings of preparation.json."""
    preparation = {"preparation": "$@bundle_root + '/preparation.json'"}
    about = settings["network"]
    if about["name"] == "unet":
        network = {"_target_": f"{SCRIPT}.UNet", **{key: value for key, value in about.items() if key != "name"}}
    else:
        network = {"_target_": f"monai.networks.nets.{about['name']}", **about["arguments"]}
    inferer = "SliceScores" if settings["windows"] is None else "WindowScores"
    channels = len(settings["channels"])
    return {
        "imports": ["$import torch", f"$import {SCRIPT} as segment"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/scans'",
        "output_dir": "$@bundle_root + '/masks'",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "datalist": f"$[{{'image': files}} for files in segment.find_scans([@dataset_dir], {channels})]",
        "network_def": network,
        "weights": "$torch.load(@bundle_root + '/models/model.pt', map_location='cpu', weights_only=True)",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [{"_target_": f"{SCRIPT}.PrepareScand", "keys": "image", **preparation}],
        },
        "dataset": {"_target_": "Dataset", "data": "@datalist", "transform": "@preprocessing"},
        "inferer": {"_target_": f"{SCRIPT}.{inferer}", **preparation},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": f"{SCRIPT}.RestoreMaskd", "keys": "pred", **preparation},
                {"_target_": f"{SCRIPT}.SaveMaskd", "keys": "pred", "output_dir": "@output_dir"},
            ],
        },
        "evaluator": {
            "_target_": f"{SCRIPT}.Segmenter",
            "dataset": "@dataset",
            "network": "@network_def",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "device": "@device",
        },
        "run": ["$@network_def.load_state_dict(@weights)", "$@evaluator.run()"],
    }


def _numbered(names: list[str]) -> dict[str, str]:
    return {str(number): name for number, name in enumerate(names)}


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return OLDEST[package]
