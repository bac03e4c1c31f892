"""A trained-model folder as nnU-Net 2.8 writes it, made without it: the same files, names, types and doubled keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from smg.networks.plainconv import PlainConvUNet

PATCH, SPACING = [16, 32], [1.0, 1.25]
FEATURES, STRIDES = [4, 8], [[1, 1], [2, 2]]


def plans(**changes: Any) -> dict[str, Any]:
    """Return plans.json; `changes` are of the 2d configuration."""
    resampled = {"is_seg": False, "order": 3, "order_z": 0, "force_separate_z": None}
    network = {
        "n_stages": 2,
        "features_per_stage": FEATURES,
        "conv_op": "torch.nn.modules.conv.Conv2d",
        "kernel_sizes": [[3, 3], [3, 3]],
        "strides": STRIDES,
        "n_conv_per_stage": [2, 2],
        "n_conv_per_stage_decoder": [2],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }
    planned = {
        "data_identifier": "nnUNetPlans_2d",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": PATCH,
        "spacing": SPACING,
        "normalization_schemes": ["ZScoreNormalization"],
        "use_mask_for_norm": [False],
        "resampling_fn_data": "resample_data_or_seg_to_shape",
        "resampling_fn_data_kwargs": resampled,
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": resampled | {"order": 1},
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": network,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
    }
    return {
        "dataset_name": "Dataset042_Prostate",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {"2d": planned | changes},
        "foreground_intensity_properties_per_channel": {
            "0": {"mean": 90.0, "std": 20.0, "percentile_00_5": 10.0, "percentile_99_5": 200.0}
        },
    }


def state_of(network: PlainConvUNet) -> dict[str, torch.Tensor]:
    """Return a network's state with nnU-Net's second names: a list in every block, and the encoder in the decoder."""
    whole = {}
    for name, module in network.named_modules():
        for kind, tensor in module._parameters.items():
            if tensor is not None:
                whole[f"{name}.{kind}"] = tensor.data
                block, _, layer = name.rpartition(".")
                if layer in ("conv", "norm"):
                    whole[f"{block}.all_modules.{('conv', 'norm').index(layer)}.{kind}"] = tensor.data
    return whole | {f"decoder.{name}": tensor for name, tensor in whole.items() if name.startswith("encoder.")}


def write_nnunet(
    folder: Path, planned: dict[str, Any] | None = None, labels: dict[str, Any] | None = None, fold: str = "0",
    **more: Any,
) -> PlainConvUNet:  # fmt: skip
    """Write a model's folder and return its network; `more` goes into the checkpoint."""
    network = PlainConvUNet(1, 2, FEATURES, strides=STRIDES)
    torch.manual_seed(5)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    (folder / f"fold_{fold}").mkdir(parents=True)
    dataset = {"channel_names": {"0": "T2"}, "labels": labels or {"background": 0, "prostate": 1}, "numTraining": 4}
    (folder / "dataset.json").write_text(json.dumps(dataset | {"file_ending": ".nii.gz"}))
    (folder / "plans.json").write_text(json.dumps(planned or plans()))
    checkpoint = {
        "network_weights": state_of(network),
        "optimizer_state": {"state": {}, "param_groups": [{"lr": 0.01}]},
        "grad_scaler_state": None,
        "logging": {"ema_fg_dice": [np.float64(0.5), np.float32(0.25)], "epochs": [np.int64(1)]},
        "_best_ema": np.float64(0.5),
        "current_epoch": 1,
        "init_args": {"configuration": "2d", "fold": fold, "device": torch.device("cpu"), "name": np.str_("x")},
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1),
    }
    torch.save(checkpoint | more, folder / f"fold_{fold}" / "checkpoint_final.pth")
    return network
