"""The base class of methods, and their registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

import torch
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor

from smg.errors import Misuse, validation_line
from smg.gradients.oracle import Gradient
from smg.prepare.batches import Batch, Iteration
from smg.registry import Registry

Opt = Callable[[Tensor, Tensor], Tensor]  # opt(Θ, g): one step of the outer optimiser


@dataclass(frozen=True)
class Method:
    """Base class of every method: it computes the direction of an update from gradients.

    A method asks for gradients of named batches at chosen parameters, and returns one direction. It does not access the
    network, the optimiser, the device, the disk or the replay buffer. A subclass is a frozen dataclass that implements
    `direction`. Its fields are its hyper-parameters: they are written into every result, and each is an option of the
    command line.

    A method stores what it remembers in `self.state`, a dictionary of tensors, and nowhere else. The state is loaded
    and stored for the method: with every checkpoint, and with the version that a round becomes. The name of a tensor
    that is made from one site's patients begins with the site: `f"{batches.site}/..."`. Such a tensor is deleted
    together with the site's exemplars.

    Attributes:
        name: Name under which the method is registered.
        keeps: What is stored of previous sites for replay: `exemplars`, `nothing` or `everything`.
        stores_outputs: Store the network's outputs with each exemplar, as they were when it was chosen.
        keeps_of_patients: What the state holds of patients, in words. A method that remembers must set it.
        one_network_a_site: Train a network of its own for each site.
    """

    name: ClassVar[str]
    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "exemplars"
    stores_outputs: ClassVar[bool] = False
    keeps_of_patients: ClassVar[str] = ""
    one_network_a_site: ClassVar[bool] = False

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The tensors that the method remembers, by name."""
        return {}

    def begin_round(self, theta: Tensor, grad: Gradient, batches: Iteration) -> None:
        """Prepare for a round; called with Θ before its first iteration. The default does nothing.

        `batches.each()` iterates over the whole incoming site.
        """

    def end_round(self, theta: Tensor, grad: Gradient, batches: Iteration) -> None:
        """Finish a round; called with its final Θ, while the site's data is still there. The default does nothing."""

    def has_something_to_do(self, batches: Iteration) -> bool:
        """Return whether this iteration differs from fine-tuning; `direction` is called only if it does.

        A method that keeps exemplars has something to do once there are exemplars to replay: not in the first round. A
        method that keeps none has something to do once its state is not empty, or always if it has no state.
        """
        if self.keeps == "nothing":
            return bool(self.state) or not self.remembers()
        return batches.replay is not None

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        """Return the direction that the optimiser receives in place of a gradient: one flat vector, as long as Θ.

        Args:
            theta: Parameters Θ of the network, one flat vector.
            grad: Gradients of a batch, at Θ or at any other vector.
            batches: Batches of this iteration.
        """
        raise NotImplementedError

    def update(self, theta: Tensor, grad: Gradient, opt: Opt, batches: Iteration) -> Tensor:
        """Return Θ after one iteration; fine-tuning if the method has nothing to do."""
        if self.has_something_to_do(batches):
            return self.later_update(theta, grad, opt, batches)
        return opt(theta, grad(theta, batches.incoming))

    def later_update(self, theta: Tensor, grad: Gradient, opt: Opt, batches: Iteration) -> Tensor:
        """Return Θ after one iteration in which the method has something to do."""
        return opt(theta, self.direction(theta, grad, batches))

    @classmethod
    def remembers(cls) -> bool:
        """Return whether the method has a state: whether it overrides `begin_round` or `end_round`."""
        return cls.begin_round is not Method.begin_round or cls.end_round is not Method.end_round


@dataclass(frozen=True)
class Meta(Method):
    """The base of the methods with an inner step.

    inner: `sgd` shifts Θ by γ g, as the paper's equations say; `adam` by γ g / (√v̂ + ε), with the outer optimiser's own
    second-moment estimate, as its implementation paragraph can be read.
    symmetric: an extension of the paper, whose expansion holds both halves of the alignment's gradient.
    """

    inner: Literal["sgd", "adam"] = "sgd"
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.inner not in ("sgd", "adam"):
            raise Misuse(f"inner: {self.inner!r} is not an optimiser; give sgd or adam")

    def aligned(self, theta: Tensor, grad: Gradient, *pairs: tuple[Batch, Batch, float]) -> list[Tensor]:
        """Return for each pair (A, B, γ) the gradient, to first order in γ, of  L_A + L_B - γ G_A · G_B.

        The paper's:   g(Θ; A) + g(Θ - γ G_A; B)               = G_A + G_B - γ H_B G_A + O(γ²)
        `symmetric`:   g(Θ - γ G_B; A) + g(Θ - γ G_A; B)       = G_A + G_B - γ (H_B G_A + H_A G_B) + O(γ²)

        Gradients that do not depend on each other are asked for together, so that a remote source needs one round trip.
        G_A is asked for before G_B, since A may be local where B is remote.
        """
        g_a = grad.several([(theta, a) for a, _, _ in pairs])
        moved = [(self.shifted(theta, grad, g, gamma), b) for g, (_, b, gamma) in zip(g_a, pairs, strict=True)]
        if not self.symmetric:
            return [g + at_b for g, at_b in zip(g_a, grad.several(moved), strict=True)]
        both = grad.several([*((theta, b) for _, b, _ in pairs), *moved])
        g_b, at_b = both[: len(pairs)], both[len(pairs) :]
        back = [(self.shifted(theta, grad, g, gamma), a) for g, (a, _, gamma) in zip(g_b, pairs, strict=True)]
        return [at + other for at, other in zip(grad.several(back), at_b, strict=True)]

    def shifted(self, theta: Tensor, grad: Gradient, g: Tensor, gamma: float) -> Tensor:
        """Return Θ after an inner step of size γ along g."""
        return torch.sub(theta, g if self.inner == "sgd" else grad.preconditioned(g), alpha=gamma)


@dataclass(frozen=True)
class Anchored(Method):
    """g(Θ; D) + λ Ω ⊙ (Θ - Θ*),  Ω the sum over rounds of how much each weight mattered at that round's end

    Θ* is the weights that closed the last round. This is the base of the penalised methods, which differ in
    `importance`.

    weight: λ.
    normalise: divide each round's importances by their mean, so that λ means the same for every site and network.
    """

    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "nothing"

    weight: float = 1.0
    normalise: bool = True

    def importance(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        """Return how much each weight matters for the incoming site, at the Θ that closes its round."""
        raise NotImplementedError

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        pull = self.state["importance"] * (theta - self.state["theta"])
        return grad(theta, batches.incoming) + self.weight * pull

    def end_round(self, theta: Tensor, grad: Gradient, batches: Iteration) -> None:
        found = self.importance(theta, grad, batches)
        if self.normalise:
            found = found / found.mean().clamp_min(torch.finfo(found.dtype).tiny)
        self.state["importance"] = self.state.get("importance", torch.zeros_like(found)) + found
        self.state["theta"] = theta


def mean_of(vectors: Iterable[Tensor]) -> Tensor:
    """Return the mean of vectors, with one of them in memory at a time."""
    total, count = None, 0
    for vector in vectors:
        total, count = vector if total is None else total + vector, count + 1
    assert total is not None  # a site has slices
    return total / count


ANY = ConfigDict(arbitrary_types_allowed=True)  # a user's own method may have fields of any type
METHODS: Registry[type[Method]] = Registry("method")
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Return a class decorator that registers a method under a name.

    The class below it is a frozen dataclass:

        @register("mine")
        @dataclass(frozen=True)
        class Mine(Method):
            def direction(self, theta, grad, batches):
                return grad(theta, batches.incoming)
    """

    def known(method: M) -> M:
        METHODS.add(name, method)
        method.name = name
        return method

    return known


def find_method(name: str, **options: Any) -> Method:
    """Return the method of that name with its options; a user's own is named with its file: `mine.py:mine`."""
    kind = METHODS.find(name, "; NAME+c, as sga+c, chooses exemplars by the paper's comprehensive score")
    if kind.remembers() and not kind.keeps_of_patients:
        raise Misuse(
            f"method {kind.name}: remembers between rounds, and does not say what it holds of patients; say it in "
            "`keeps_of_patients`"
        )
    return kind(**_checked(kind, options))


def _checked(method: type[Method], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, checked against the names and types of the method's fields."""
    fields, made = [field.name for field in dataclasses.fields(method)], {}
    kinds = get_type_hints(method) if options else {}
    for option, value in options.items():
        if option not in fields:
            raise Misuse(f"method {method.name} has no option {option!r}; it has {', '.join(fields) or 'none'}")
        try:
            made[option] = _adapter(kinds[option]).validate_python(value)
        except ValidationError as error:
            raise Misuse(f"options.{option}: {validation_line(error)}") from None
    return made


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind, config=ANY)
    except PydanticUserError:  # a dataclass or a model checks itself
        return TypeAdapter(kind)
