"""Compute features from the bottleneck of any network, by which exemplars are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from smg.errors import SmgError


def bottleneck_features(network: nn.Module, images: Tensor, name: str | None = None) -> Tensor:
    """Return the bottleneck's feature map averaged over space, [B, F]; `name` saves finding the bottleneck."""
    return means_of(bottleneck_moments(network, images, name))


def means_of(moments: Tensor) -> Tensor:
    """Return the averages [..., F] of moments [..., 2F]."""
    return moments[..., : moments.shape[-1] // 2]


def bottleneck_moments(network: nn.Module, images: Tensor, name: str | None = None) -> Tensor:
    """Return the average and the standard deviation over space of each feature of the bottleneck, [B, 2F]."""
    name = name or find_bottleneck(network, images)
    return _moments(_output_of(network, images, name))


def bottleneck_map(network: nn.Module, images: Tensor, name: str | None = None) -> Tensor:
    """Return the bottleneck's feature map, [B, F, h, w]."""
    name = name or find_bottleneck(network, images)
    output = _output_of(network, images, name)
    if output.ndim == 4:
        return output
    raise SmgError(
        f"bottleneck {name} returns tokens, which have no place in the slice; set replay.features=everywhere"
    )


def _output_of(network: nn.Module, images: Tensor, name: str) -> Tensor:
    """Return the output of a module, and end the pass there."""
    module = _module(network, name)

    def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
        raise _Reached(output)

    with undisturbed(network), _hooks([(module, leave)]):
        try:
            network(images)
        except _Reached as reached:
            return _features(reached.output, len(images), name)
    raise _idle(name)


@contextmanager
def recorded_moments(network: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """Yield a list to which every pass in the block adds the moments [B, 2F] of its bottleneck.

    So the features of a prediction need no extra pass. The moments are computed immediately, since later layers may
    change the map in place.
    """
    recorded: list[Tensor] = []
    batch, passes = 0, 0

    def begin(_network: nn.Module, inputs: Any) -> None:
        nonlocal batch, passes
        batch, passes = len(inputs[0]), passes + 1

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if len(recorded) < passes:  # a pass may use a module twice: the first output counts, as in bottleneck_moments
            recorded.append(_moments(_features(output, batch, name)))

    begun = network.register_forward_pre_hook(begin)
    try:
        with _hooks([(_module(network, name), note)]):
            yield recorded
    finally:
        begun.remove()
    if len(recorded) < passes:
        raise _idle(name)


def find_bottleneck(network: nn.Module, images: Tensor) -> str:
    """Return the dotted name of the bottleneck: the configured one, a module of that name, or one found by a pass.

    A pass shows which outputs have the fewest positions (pixels, or tokens of a transformer). Of the outermost modules
    with such outputs the widest one is taken, and of equally wide ones the last. The network's own output never counts.
    """
    if name := getattr(network, "named_bottleneck", None):
        return str(name)
    known = dict(network.named_modules())
    for name in ("bottleneck", "network.bottleneck"):
        if name in known:
            return name
    outputs = _outputs(network, images[:1])
    if not outputs:
        raise SmgError(f"{type(network).__name__}: no bottleneck found; name one of its modules as network.bottleneck")
    # Channel attention squeezes maps of any level to one position, so an output of one position is the last choice.
    fewest = min((o.positions for o in outputs if o.positions > 1), default=1)
    smallest = [o for o in outputs if o.positions == fewest]
    names = {o.name for o in smallest}
    outermost = [o for o in smallest if not any(ancestor in names for ancestor in _ancestors(o.name))]
    return max(enumerate(outermost), key=lambda placed: (placed[1].width, placed[0]))[1].name


@dataclass(frozen=True)
class _Output:
    name: str
    tensor: Tensor
    positions: int
    width: int


class _Reached(Exception):
    """End a pass at the bottleneck: the decoder is half of its cost and adds nothing to the features."""

    def __init__(self, output: Any) -> None:
        self.output = output


def _module(network: nn.Module, name: str) -> nn.Module:
    """Return the module of that dotted name."""
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise SmgError(
            f"bottleneck {name}: {type(network).__name__} has no module of that name; correct network.bottleneck"
        ) from error


def _idle(name: str) -> SmgError:
    """Return the error of a bottleneck that a pass does not use."""
    return SmgError(f"bottleneck {name}: the network's pass does not use this module; name another")


def _outputs(network: nn.Module, image: Tensor) -> list[_Output]:
    """Return the outputs of all inner modules in order of completion: maps [1, F, H, W] and tokens [1, T, F]."""
    outputs: list[_Output] = []

    def note(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim not in (3, 4) or len(output) != 1:
                return
            if output.ndim == 4:
                outputs.append(_Output(name, output, output.shape[2] * output.shape[3], output.shape[1]))
            else:
                outputs.append(_Output(name, output, output.shape[1], output.shape[2]))

        return hook

    with undisturbed(network), _hooks([(module, note(name)) for name, module in network.named_modules()]):
        answer = network(image)
    return [output for output in outputs if output.tensor is not answer]


def _moments(features: Tensor) -> Tensor:
    """Return average and standard deviation over space, [B, 2F]."""
    space = (2, 3) if features.ndim == 4 else (1,)
    # Without Bessel's correction: it is undefined for a single position.
    return torch.cat([features.mean(dim=space), features.std(dim=space, correction=0)], dim=1)


def _features(output: Any, batch: int, name: str) -> Tensor:
    """Return a module's output if it is a feature map or tokens; raise an error if not."""
    if isinstance(output, Tensor) and len(output) == batch and output.ndim in (3, 4):
        return output
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise SmgError(f"bottleneck {name} returns {shape}: that is neither a feature map nor tokens; name another module")


def _ancestors(name: str) -> list[str]:
    """Return the names of the modules around a module, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Evaluate without gradients in the block; each module's training mode and statistics are as before afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _hooks(hooks: list[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    """Register forward hooks for the block."""
    handles: list[RemovableHandle] = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
