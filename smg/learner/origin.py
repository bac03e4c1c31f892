"""Weights that a new model starts from: a safetensors file, a round of another model, or a model of nnU-Net.

The weights become round 0 of the new model, `rounds/000`. model.json records where they came from:

    {"origin": {"kind": "file", "name": "weights.safetensors", "sha256": "..."}}
    {"origin": {"kind": "model", "name": "old", "round": 3, "sites": ["RUNMC", "HK"], "sha256": "..."}}
    {"origin": {"kind": "nnunet", "name": "nnUNetTrainer__nnUNetPlans__2d", "fold": "0", "sha256": "...", ...}}

`name` is the name of a file or folder, never a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smg.errors import SmgError
from smg.learner.history import History
from smg.learner.nnunet_weights import read_nnunet
from smg.learner.records import AnyOrigin, FileOrigin, ModelOrigin
from smg.learner.shared_tensors import stored_once, under_all_names
from smg.learner.versions import Versions
from smg.networks import MainOutput, NetworkConfig, build_network
from smg.prepare.arrays import map_safetensors

NNUNET = "nnunet:"  # before the folder of a model of nnU-Net
INNER = "network."  # how the names of a network that is not ours begin in a model, and not in a file from elsewhere


@dataclass(frozen=True)
class Origin:
    """Starting weights, their description, and the settings that belong to them."""

    weights: dict[str, Tensor]
    about: AnyOrigin  # for model.json
    path: Path  # for messages
    settings: dict[str, Any] = field(default_factory=dict)  # of the source model; a file has none

    def check(self, network: NetworkConfig) -> None:
        """Raise an error if the weights do not fit such a network, before the model is created."""
        self.fitted(build_network(network))

    def fitted(self, network: nn.Module) -> dict[str, Tensor]:
        """Load the weights into a network and return its state; an error names the first weight that does not fit."""
        wanted = network.state_dict()
        given = _named_as(wanted, self.weights) if isinstance(network, MainOutput) else self.weights
        shared = stored_once(wanted)[1]  # a file may hold a shared tensor under any one of its names
        by_first_name = {shared.get(name, name): tensor for name, tensor in given.items()}
        state = {}
        for name, tensor in wanted.items():
            found = given.get(name, by_first_name.get(shared.get(name, name)))
            if found is None:
                raise self._misfit(f"it has no {name} {_shape(tensor)}, which the network has")
            if found.shape != tensor.shape:
                raise self._misfit(f"{name} is {_shape(found)}, where the network has {_shape(tensor)}")
            if found.is_floating_point() != tensor.is_floating_point():
                raise self._misfit(f"{name} is {found.dtype}, where the network has {tensor.dtype}")
            if not found.isfinite().all():
                raise SmgError(f"{self.path}: {name} holds a number that is not finite; give another file")
            state[name] = found
        for name in given:
            if name not in wanted:
                raise self._misfit(f"it has {name}, which the network does not have")
        network.load_state_dict(state)
        return network.state_dict()

    def _misfit(self, how: str) -> SmgError:
        return SmgError(
            f"{self.path}: does not fit the network: {how}; set the network that these weights were made for"
        )


def read_origin(given: str | Path) -> Origin:
    """Return starting weights from a safetensors file, another model's current round, or `nnunet:FOLDER[:FOLD]`."""
    if str(given).startswith(NNUNET):
        trained = read_nnunet(str(given).removeprefix(NNUNET))
        return Origin(trained.weights, trained.about, trained.path, trained.settings)
    path = Path(given)
    if path.is_dir():
        return _from_model(path)
    if path.suffix != ".safetensors":
        raise SmgError(f"{path}: weights are read from a .safetensors file or a model's folder; convert them to one")
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        weights = under_all_names(*map_safetensors(path))
    except OSError as error:
        raise SmgError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        raise SmgError(f"{path}: no safetensors file, or a damaged one; copy it again") from None
    return Origin(weights, FileOrigin(name=path.name, sha256=sha256), path)


def _from_model(folder: Path) -> Origin:
    history = History(folder)
    if not history.has_learned:
        raise SmgError(f"{folder}: has learned nothing yet; give a model that has")
    versions, current = Versions(history), history.current
    about = ModelOrigin(
        name=folder.resolve().name,
        round=current,
        sites=tuple(history.sites),
        sha256=history.store.files_of(current)["weights.safetensors"],
    )
    weights = history.store.read_tensors(current, "weights")
    return Origin(weights, about, folder, versions.as_prepared(current).model_dump(mode="json"))


def _named_as(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an external file under the names that a model uses."""
    if any(name in wanted for name in given):
        return dict(given)
    return {INNER + name: tensor for name, tensor in given.items()}


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
