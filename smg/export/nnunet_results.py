"""A model as nnU-Net v2 has them: a results folder that `nnUNetv2_predict` runs.

    README.md                                             the model card
    DatasetXXX_NAME/nnUNetTrainer__nnUNetPlans__2d/       plans.json and dataset.json
    DatasetXXX_NAME/nnUNetTrainer__nnUNetPlans__2d/fold_0/checkpoint_final.pth

Only what plans can say is written: a PlainConvUNet whose scans are prepared in nnU-Net's way. smg's own preparation
turns every scan to one orientation first, which plans cannot say; with them, slices could be upside down.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smg.errors import SmgError
from smg.export.release import Release
from smg.files import write_json
from smg.learner.nnunet_weights import FINAL, RESAMPLED, SCHEMES
from smg.learner.records import NnunetOrigin
from smg.networks import NetworkConfig
from smg.networks.build import build_network
from smg.networks.plainconv import PlainConvUNet
from smg.prepare.prepare_options import NnunetPreparation, Normalisation, Preparation
from smg.sites.nnunet_channels import write_description

FOLDER = "nnUNetTrainer__nnUNetPlans__2d"
NUMBER = 900  # of a dataset that nnU-Net has no number for
ENDING = ".nii.gz"


def check(release: Release) -> NnunetPreparation:
    """Return how scans are prepared, or refuse a model that nnU-Net's plans cannot express."""
    options, name = release.config.preparation, release.config.network.name
    if options.spacing is None:
        raise SmgError("--as nnunet: the model resizes slices, and nnU-Net's plans need a spacing; --as torch does it")
    if name == "unet":
        raise SmgError(
            "--as nnunet: smg's U-Net shrinks maps by max pooling, and nnU-Net's plans have strided convolutions only; "
            "--as torch does it"
        )
    if name != "PlainConvUNet":
        raise SmgError(f"--as nnunet: nnU-Net's plans cannot name the network {name}; --as onnx has its graph")
    if options.nnunet is None:
        raise SmgError(
            "--as nnunet: the model turns every scan to one orientation, and nnU-Net takes scans as they are stored; "
            "only models with preparation.nnunet can be exported so"
        )
    values = options.labels.written
    if values != tuple(range(len(values))):
        shown = ", ".join(map(str, values))
        raise SmgError(f"--as nnunet: its masks have values {shown}, and nnU-Net's count from 0; --as onnx does it")
    return options.nnunet


def write_results(release: Release, folder: Path) -> Path:
    """Write the results folder, and return the checkpoint."""
    about = check(release)
    dataset = _dataset_name(release)
    model = folder / dataset / FOLDER
    (model / "fold_0").mkdir(parents=True)
    options = release.config.preparation
    names = {"background": 0} | {name: index for index, name in enumerate(options.labels.names, start=1)}
    trained = sum(one.trained for one in release.learned)
    write_description(model / "dataset.json", options.channels or ("image",), names, trained)
    plans = _plans(release, dataset, about)
    write_json(model / "plans.json", plans, sort_keys=False)
    checkpoint = {
        "network_weights": with_second_names(release.weights()),
        "optimizer_state": None,
        "grad_scaler_state": None,
        "logging": {},
        "_best_ema": None,
        "current_epoch": 0,
        "init_args": {"plans": plans, "configuration": "2d", "fold": 0},
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (1,) if release.config.mirror else None,
    }
    path = model / "fold_0" / FINAL
    torch.save(checkpoint, path)
    return path


def with_second_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under all names that nnU-Net has for them; a tensor is stored once."""
    both = {}
    for name, tensor in weights.items():
        both[name] = both[_in_list(name)] = tensor
    return both | {f"decoder.{name}": tensor for name, tensor in both.items() if name.startswith("encoder.")}


def _in_list(name: str) -> str:
    """Return a layer's name in the list of its block."""
    return name.replace(".conv.", ".all_modules.0.").replace(".norm.", ".all_modules.1.")


def _dataset_name(release: Release) -> str:
    given = release.origin.dataset if isinstance(release.origin, NnunetOrigin) else ""
    if re.fullmatch(r"Dataset\d{3}_\w+", given, re.ASCII):
        return given
    return f"Dataset{NUMBER}_{re.sub(r'[^A-Za-z0-9]+', '_', release.name).strip('_') or 'model'}"


def _plans(release: Release, dataset: str, about: NnunetPreparation) -> dict[str, Any]:
    """Return plans.json. What nnU-Net's planner notes of its training data is the patch here, or zero."""
    options = release.config.preparation
    assert options.pixel is not None
    forward = list(about.axes)
    patch, spacing = list(options.shape), list(options.pixel)
    plan = {
        "data_identifier": "nnUNetPlans_2d",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": release.config.batch,
        "patch_size": patch,
        "median_image_size_in_voxels": patch,
        "spacing": spacing,
        "normalization_schemes": [_scheme_name(one) for one in about.normalise],
        "use_mask_for_norm": [one.masked for one in about.normalise],
        **_resampling("data", about.order, is_seg=False),
        **_resampling("seg", 1, is_seg=True),
        **_resampling("probabilities", 1, is_seg=False),
        "architecture": _architecture(release.config.network),
        "batch_dice": True,
    }
    return {
        "dataset_name": dataset,
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": [max(spacing), *spacing],
        "original_median_shape_after_transp": [1, *patch],
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": forward,
        "transpose_backward": [forward.index(axis) for axis in range(3)],
        "configurations": {"2d": plan},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": _intensities(options, about),
    }


def _scheme_name(one: Normalisation) -> str:
    return next(name for name, scheme in SCHEMES.items() if scheme == one.scheme)


def _intensities(options: Preparation, about: NnunetPreparation) -> dict[str, dict[str, float | None]]:
    """Return the intensities that a CT channel is normalised by; other schemes do not read theirs."""
    return {
        str(number): {"mean": one.mean, "std": one.deviation, "percentile_00_5": one.low, "percentile_99_5": one.high}
        for number, one in enumerate(about.normalise)
    }


def _resampling(what: str, order: int, is_seg: bool) -> dict[str, Any]:
    options = {"is_seg": is_seg, "order": order, "order_z": 0, "force_separate_z": None}
    return {f"resampling_fn_{what}": RESAMPLED, f"resampling_fn_{what}_kwargs": options}


def _architecture(config: NetworkConfig) -> dict[str, Any]:
    """Return the network, with every argument that has a default said."""
    network = build_network(config).network
    assert isinstance(network, PlainConvUNet)
    shape = network.plan
    return {
        "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
        "arch_kwargs": {
            "n_stages": len(shape.features),
            "features_per_stage": shape.features,
            "conv_op": "torch.nn.modules.conv.Conv2d",
            "kernel_sizes": [list(kernel) for kernel in shape.kernels],
            "strides": [list(stride) for stride in shape.strides],
            "n_conv_per_stage": shape.down,
            "n_conv_per_stage_decoder": shape.up,
            "conv_bias": shape.bias,
            "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
            "norm_op_kwargs": {"eps": shape.eps, "affine": True},
            "dropout_op": None,
            "dropout_op_kwargs": None,
            "nonlin": "torch.nn.LeakyReLU",
            "nonlin_kwargs": {"negative_slope": shape.slope, "inplace": True},
        },
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }
