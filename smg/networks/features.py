"""The bottleneck's features, of any network: what tells one slice from another when exemplars are chosen."""

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
    """The bottleneck's feature map averaged over space, [B, F]; `name` spares finding the bottleneck again."""
    return means_of(bottleneck_moments(network, images, name))


def means_of(moments: Tensor) -> Tensor:
    """Of moments [..., 2F] the averages alone, [..., F]."""
    return moments[..., : moments.shape[-1] // 2]


def bottleneck_moments(network: nn.Module, images: Tensor, name: str | None = None) -> Tensor:
    """The average and the standard deviation over space of each of the bottleneck's features, [B, 2F]."""
    name = name or find_bottleneck(network, images)
    return _moments(_output_of(network, images, name))


def bottleneck_map(network: nn.Module, images: Tensor, name: str | None = None) -> Tensor:
    """The bottleneck's feature map itself, [B, F, h, w]."""
    name = name or find_bottleneck(network, images)
    output = _output_of(network, images, name)
    if output.ndim == 4:
        return output
    raise SmgError(f"bottleneck {name} puts out tokens, which have no place: replay.features has to be everywhere")


def _output_of(network: nn.Module, images: Tensor, name: str) -> Tensor:
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
    """A list to which every pass in the block adds its bottleneck's moments [B, 2F]; the pass itself goes on as ever.

    So a prediction's features cost no pass of their own. They are taken on the spot: what follows may work in place.
    """
    recorded: list[Tensor] = []
    batch, passes = 0, 0

    def begin(_network: nn.Module, inputs: Any) -> None:
        nonlocal batch, passes
        batch, passes = len(inputs[0]), passes + 1

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if len(recorded) < passes:  # of a module that a pass uses twice, the first, as `bottleneck_moments` has it
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
    """The dotted name of the bottleneck: the configured one, else a module called so, else the one a pass shows.

    There it is the output of the fewest positions (pixels, or tokens of a transformer), of the outermost modules that
    have as few, and of those the widest and last. The network's own output is none.
    """
    if name := getattr(network, "named_bottleneck", None):
        return str(name)
    known = dict(network.named_modules())
    for name in ("bottleneck", "network.bottleneck"):
        if name in known:
            return name
    outputs = _outputs(network, images[:1])
    if not outputs:
        raise SmgError(f"{type(network).__name__} shows no bottleneck: name one of its modules as `bottleneck`")
    # One position is what attention by channel squeezes a map to, at any level: it is the last resort.
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
    """Ends a pass at the bottleneck: the way back up is half its cost and none of its features."""

    def __init__(self, output: Any) -> None:
        self.output = output


def _module(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise SmgError(f"bottleneck {name}: {type(network).__name__} has no module of that name") from error


def _idle(name: str) -> SmgError:
    return SmgError(f"bottleneck {name} takes no part in the network's pass")


def _outputs(network: nn.Module, image: Tensor) -> list[_Output]:
    """What each inner module put out, in order of completion: maps [1, F, H, W] and tokens [1, T, F]."""
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
    space = (2, 3) if features.ndim == 4 else (1,)
    # Not the sample's deviation, which one position would not have.
    return torch.cat([features.mean(dim=space), features.std(dim=space, correction=0)], dim=1)


def _features(output: Any, batch: int, name: str) -> Tensor:
    """A module's output, if it is a feature map or tokens."""
    if isinstance(output, Tensor) and len(output) == batch and output.ndim in (3, 4):
        return output
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise SmgError(f"bottleneck {name} puts out {shape}, neither a feature map nor tokens: name another module")


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Evaluation without gradient; afterwards each module trains or not as before, and no statistic has moved."""
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
    handles: list[RemovableHandle] = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
