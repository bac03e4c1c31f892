"""Read starting weights from a trained model of nnU-Net v2: a folder with plans.json, dataset.json and fold_X.

Only 2d configurations with the network PlainConvUNet are read; any other plan is refused, with the reason. Spacing,
patch, normalisation and classes are read together with the weights. A checkpoint is a pickle. torch reads it with
`weights_only`, which creates tensors and plain values and calls no other code. numpy's scalars and data types are
allowed too, since nnU-Net's training log contains them.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smg.errors import SmgError
from smg.learner.records import NnunetOrigin
from smg.sites.nnunet_channels import read_description

FINAL = "checkpoint_final.pth"
RESAMPLED = "resample_data_or_seg_to_shape"
READERS = ("SimpleITKIO", "NibabelIO")  # readers that keep a scan's axes as stored
SCHEMES = {"ZScoreNormalization": "ZScore", "CTNormalization": "CT", "NoNormalization": "No",
           "RescaleTo01Normalization": "RescaleTo01"}  # fmt: skip
LAYER = {"all_modules.0.": "conv.", "all_modules.1.": "norm."}  # nnU-Net's second names, and the first
DATA_TYPES = [getattr(np.dtypes, name) for name in np.dtypes.__all__ if name not in ("ObjectDType", "VoidDType")]
SCALAR = np.float64(0).__reduce__()[0]  # the function that makes numpy's scalars, under its old and its new name
ALLOWED = [np.dtype, *DATA_TYPES, *((SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]


@dataclass(frozen=True)
class Trained:
    """A model of nnU-Net: its weights under the names of smg.networks.plainconv, and the settings that go with them."""

    weights: dict[str, Tensor]
    settings: dict[str, Any]  # of a LearnerConfig
    about: NnunetOrigin  # for model.json
    path: Path  # of the checkpoint


def read_nnunet(given: str) -> Trained:
    """Return the model in `FOLDER` or `FOLDER:FOLD`. Default: the only fold in the folder."""
    folder, fold = _parse(given)
    plans = _read_json(folder / "plans.json")
    path = folder / f"fold_{fold or _only_fold(folder)}" / FINAL
    if not path.is_file():
        raise SmgError(f"{path}: not there; nnU-Net writes it when training ends: name a fold that has it")
    checkpoint, sha256 = _read_checkpoint(path)
    arguments = checkpoint.get("init_args")
    configuration = str(arguments.get("configuration", "2d")) if isinstance(arguments, dict) else "2d"
    try:
        plan = _resolved(plans["configurations"], configuration)
        settings = {
            "network": _network(plan),
            "preparation": _preparation(plans, plan, folder),
            "largest_component": False,  # nnU-Net decides after training whether to keep it, outside the model's folder
        }
    except _Refused as error:
        raise SmgError(
            f"{folder}: {error}; smg reads 2d models of PlainConvUNet with nnU-Net's default steps"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise SmgError(
            f"{folder / 'plans.json'}: not plans of nnU-Net v2 ({type(error).__name__}: {error}); copy the folder again"
        ) from None
    about = NnunetOrigin(
        name=folder.resolve().name,
        dataset=str(plans.get("dataset_name", "")),
        configuration=configuration,
        fold=path.parent.name.removeprefix("fold_"),
        trainer=str(checkpoint.get("trainer_name", "")),
        sha256=sha256,
    )
    return Trained(_once(checkpoint["network_weights"], path), settings, about, path)


class _Refused(Exception):
    """Error for a plan that is not supported; its text names the unsupported part."""


def _parse(given: str) -> tuple[Path, str | None]:
    """Return folder and fold of `FOLDER:FOLD`; an existing folder with a colon in its name is taken whole."""
    folder, colon, fold = given.rpartition(":")
    if not colon or Path(given).is_dir():
        folder, fold = given, ""
    if not Path(folder).is_dir():
        raise SmgError(f"{folder}: no such folder; name the one that holds nnU-Net's plans.json and its folds")
    if fold and not re.fullmatch("all|[0-9]+", fold):
        raise SmgError(f"{given}: {fold!r} is no fold; give a number, or `all`")
    return Path(folder), fold or None


def _only_fold(folder: Path) -> str:
    folds = sorted(path.parent.name.removeprefix("fold_") for path in folder.glob(f"fold_*/{FINAL}"))
    if not folds:
        raise SmgError(f"{folder}: no fold_X/{FINAL} in it; name the folder that holds plans.json and the folds")
    if len(folds) > 1:
        raise SmgError(f"{folder}: has folds {', '.join(folds)}; name one, as nnunet:{folder}:{folds[0]}")
    return folds[0]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}; name the folder that holds plans.json and the folds") from None
    except ValueError:
        raise SmgError(f"{path}: not JSON, or cut short; copy it again") from None
    if not isinstance(read, dict):
        raise SmgError(f"{path}: not what nnU-Net writes; copy it again")
    return read


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], str]:
    """Return a checkpoint and its file's hash."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with torch.serialization.safe_globals(ALLOWED):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        weights = checkpoint["network_weights"]
        if not weights or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
            raise TypeError
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it asks for {found[1]}" if found else "it is damaged, or asks for more"
        raise SmgError(f"{path}: {what}, and weights need no program; give a checkpoint of nnU-Net's own") from None
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        raise SmgError(f"{path}: no checkpoint of nnU-Net, or a damaged one; copy it again") from None
    return checkpoint, sha256


def _once(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return each weight under one name, without nnU-Net's second names in the decoder and in lists of layers."""
    once: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        first = name.removeprefix("decoder.") if name.startswith("decoder.encoder.") else name
        for second, plain in LAYER.items():
            first = first.replace(second, plain)
        if not torch.equal(once.setdefault(first, tensor), tensor):
            raise SmgError(f"{path}: holds two versions of {first}; give a checkpoint of nnU-Net's own")
    return once


def _resolved(configurations: dict[str, Any], name: str, *, depth: int = 0) -> dict[str, Any]:
    """Return a configuration together with its inherited settings."""
    if name not in configurations:
        raise _Refused(f"its plans have no configuration {name!r}")
    plan = configurations[name]
    if "inherits_from" not in plan:
        return dict(plan)
    if depth > len(configurations):
        raise _Refused(f"its configuration {name!r} inherits from itself")
    return _resolved(configurations, plan["inherits_from"], depth=depth + 1) | plan


def _network(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the network."""
    if len(plan["patch_size"]) != 2:
        raise _Refused(f"its configuration has {len(plan['patch_size'])}-D patches")
    if "architecture" not in plan:
        return _network_of_first_plans(plan)
    name = str(plan["architecture"]["network_class_name"]).rpartition(".")[2]
    if name != "PlainConvUNet":
        raise _Refused(f"its network is {name}")
    given = plan["architecture"]["arch_kwargs"]
    norm, nonlin = given.get("norm_op_kwargs") or {}, given.get("nonlin_kwargs") or {}
    wanted = {"conv_op": "Conv2d", "norm_op": "InstanceNorm2d", "nonlin": "LeakyReLU", "dropout_op": "None"}
    for key, kind in wanted.items():
        if (found := str(given.get(key)).rpartition(".")[2]) != kind:
            raise _Refused(f"its network has {key} {found}")
    if not norm.get("affine", False) or norm.get("track_running_stats") or given.get("nonlin_first"):
        raise _Refused("its network has another norm")
    same = ("features_per_stage", "kernel_sizes", "strides", "n_conv_per_stage", "n_conv_per_stage_decoder")
    arguments = {key: given[key] for key in same} | {"conv_bias": bool(given.get("conv_bias", False))}
    arguments |= {"eps": float(norm.get("eps", 1e-5)), "negative_slope": float(nonlin.get("negative_slope", 0.01))}
    return {"name": "PlainConvUNet", "arguments": arguments}


def _network_of_first_plans(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the network from plans as nnU-Net wrote them before version 2.4."""
    if plan["UNet_class_name"] != "PlainConvUNet":
        raise _Refused(f"its network is {plan['UNet_class_name']}")
    first, most = plan["UNet_base_num_features"], plan["unet_max_num_features"]
    stages = len(plan["n_conv_per_stage_encoder"])
    arguments = {
        "features_per_stage": [min(first * 2**stage, most) for stage in range(stages)],
        "kernel_sizes": plan["conv_kernel_sizes"],
        "strides": plan["pool_op_kernel_sizes"],
        "n_conv_per_stage": plan["n_conv_per_stage_encoder"],
        "n_conv_per_stage_decoder": plan["n_conv_per_stage_decoder"],
    }
    return {"name": "PlainConvUNet", "arguments": arguments}


def _preparation(plans: dict[str, Any], plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings of the preparation."""
    steps = {"preprocessor_name": ("DefaultPreprocessor",), "resampling_fn_data": (RESAMPLED,),
             "resampling_fn_probabilities": (RESAMPLED,)}  # fmt: skip
    for key, known in steps.items():
        if plan[key] not in known:
            raise _Refused(f"its {key} is {plan[key]}")
    if plans["image_reader_writer"] not in READERS:
        raise _Refused(f"its image_reader_writer is {plans['image_reader_writer']}")
    order, of_scores = (plan[f"resampling_fn_{what}_kwargs"]["order"] for what in ("data", "probabilities"))
    if order not in (1, 3) or of_scores != 1:
        raise _Refused(f"it resamples by splines of order {order} and {of_scores}")
    described = folder / "dataset.json"
    labels = _labels(_read_json(described))
    channels = read_description(described).channels
    schemes = [_scheme(plans, plan, number) for number in range(len(plan["normalization_schemes"]))]
    if len(schemes) != len(channels):
        raise _Refused(f"it has {len(channels)} channels and {len(schemes)} normalisations")
    rows, columns = plan["patch_size"]
    down, across = (float(mm) for mm in plan["spacing"])
    return {
        "size": rows if rows == columns else [rows, columns],
        "spacing": down if down == across else [down, across],
        "channels": list(channels) if len(channels) > 1 else None,
        "nnunet": {"axes": plans["transpose_forward"], "normalise": schemes, "order": order},
        "labels": {"classes": None if list(labels) == ["foreground"] else labels},
    }


def _scheme(plans: dict[str, Any], plan: dict[str, Any], number: int) -> dict[str, Any]:
    """Return how a channel is normalised."""
    name = plan["normalization_schemes"][number]
    if name not in SCHEMES:
        raise _Refused(f"it normalises by {name}")
    made = {"scheme": SCHEMES[name], "masked": SCHEMES[name] == "ZScore" and bool(plan["use_mask_for_norm"][number])}
    if name == "CTNormalization":
        seen = plans["foreground_intensity_properties_per_channel"][str(number)]
        made |= {"mean": seen["mean"], "deviation": seen["std"]}
        made |= {"low": seen["percentile_00_5"], "high": seen["percentile_99_5"]}
    return made


def _labels(dataset: dict[str, Any]) -> dict[str, list[int]]:
    """Return the label values of each class; nnU-Net numbers classes from 1."""
    labels = dataset["labels"]
    if "ignore" in labels:
        raise _Refused("its masks have an `ignore` label")
    if any(isinstance(value, list) and len(value) > 1 for value in labels.values()):
        raise _Refused("it was trained on regions")
    plain = {str(name): int(value[0] if isinstance(value, list) else value) for name, value in labels.items()}
    classes = {name: [value] for name, value in sorted(plain.items(), key=lambda named: named[1]) if value}
    if [value for (value,) in classes.values()] != list(range(1, len(classes) + 1)):
        raise _Refused("its labels do not count from 1")
    return classes
