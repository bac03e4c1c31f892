"""What a method is, and how it is found by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
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
    """A recipe over gradients. Its fields are its hyper-parameters, its flags and its documentation.

    A method asks for gradients of named batches at chosen parameters and returns one direction. It never touches the
    network, the optimiser, the device, the disk or the buffer.
    """

    name: ClassVar[str]
    keeps: ClassVar[Literal["exemplars", "nothing", "everything"]] = "exemplars"  # of previous sites, for replay
    one_network_a_site: ClassVar[bool] = False

    def direction(self, theta: Tensor, grad: Gradient, batches: Iteration) -> Tensor:
        """What is handed to the optimiser."""
        raise NotImplementedError

    def update(self, theta: Tensor, grad: Gradient, opt: Opt, batches: Iteration) -> Tensor:
        """Θ after one iteration. With nothing to replay, every method is fine-tuning."""
        if batches.replay is None:
            return opt(theta, grad(theta, batches.incoming))
        return self.later_update(theta, grad, opt, batches)

    def later_update(self, theta: Tensor, grad: Gradient, opt: Opt, batches: Iteration) -> Tensor:
        """Θ after one iteration from the second round on."""
        return opt(theta, self.direction(theta, grad, batches))


@dataclass(frozen=True)
class Meta(Method):
    """What the methods with an inner step share.

    inner: `sgd` shifts Θ by γ g, as the paper's equations say; `adam` by γ g / (√v̂ + ε), with the outer optimiser's own
    second-moment estimate, as its implementation paragraph can be read.
    symmetric: beyond the paper, the form whose expansion holds both halves of the alignment's gradient.
    """

    inner: Literal["sgd", "adam"] = "sgd"
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.inner not in ("sgd", "adam"):
            raise Misuse(f"inner: sgd or adam, not {self.inner!r}")

    def aligned(self, theta: Tensor, grad: Gradient, a: Batch, b: Batch, gamma: float) -> Tensor:
        """The gradient, to first order in γ, of  L_A + L_B - γ G_A · G_B.

        The paper's:   g(Θ; A) + g(Θ - γ G_A; B)               = G_A + G_B - γ H_B G_A + O(γ²)
        `symmetric`:   g(Θ - γ G_B; A) + g(Θ - γ G_A; B)       = G_A + G_B - γ (H_B G_A + H_A G_B) + O(γ²)
        """
        g_a = grad(theta, a)
        at_a = grad(self.shifted(theta, grad, grad(theta, b), gamma), a) if self.symmetric else g_a
        return at_a + grad(self.shifted(theta, grad, g_a, gamma), b)

    def shifted(self, theta: Tensor, grad: Gradient, g: Tensor, gamma: float) -> Tensor:
        """Θ after an inner step of size γ along g."""
        return torch.sub(theta, g if self.inner == "sgd" else grad.preconditioned(g), alpha=gamma)


ANY = ConfigDict(arbitrary_types_allowed=True)  # a method of one's own may have fields of any kind
METHODS: Registry[type[Method]] = Registry("method")
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Make a method known under a name: `@register("mine")` above a dataclass that has `direction`."""

    def known(method: M) -> M:
        METHODS.add(name, method)
        method.name = name
        return method

    return known


@dataclass(frozen=True)
class Recipe:
    """A method, and the policy by which its exemplars are chosen."""

    method: Method
    policy: str


def recipe(name: str, **options: Any) -> Recipe:
    """The method of that name; `+c` behind it asks for the comprehensive replay buffer, as in `sga+c`.

    A method of your own is named with its file: `mine.py:mine`.
    """
    kind = METHODS.find(name.removesuffix("+c"), more=", and NAME+c for the comprehensive buffer")
    method = kind(**_checked(kind, options))
    return Recipe(method, "comprehensive" if name.endswith("+c") else "representative")


def _checked(method: type[Method], options: dict[str, Any]) -> dict[str, Any]:
    """Options that the method has, each of the kind its field is declared to be."""
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
    except PydanticUserError:  # a dataclass, a model: it has its own rules
        return TypeAdapter(kind)
