"""What holds for every method: names, hyper-parameters, reports, policies, processes."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import smg.methods
from smg import trust
from smg.errors import SmgError
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.learner.config import LearnerConfig, Recipe
from smg.methods import METHODS, Method, find_method, take_step
from smg.networks import NetworkConfig, build_network
from smg.prepare.batches import Iteration
from smg.prepare.slices import Slices
from smg.prepare.styles import Styles, amplitudes
from smg.replay.selection import POLICIES, select
from smg.replay.subject_features import subject_features
from tests.toys import OPTIONS, Given, iteration, oracle, remember, slices, subject

PAPER = ("finetune", "jm", "gem", "c-meta", "g-meta", "isgm", "sga", "sga-direct", "pooled", "per-site")
REMEMBERING = ("ewc", "mas", "lwf")
NAMES = (*PAPER, *REMEMBERING, "a-gem", "der++")
STYLED = ("styled finetune", "styled jm", "styled sga", "styled lwf")
SHARED = ("shared sga", "shared lwf")  # rows that are asked for twice are passed once


def small_oracle(share: bool = False) -> Oracle:
    return Oracle(build_network(NetworkConfig(width=4, depth=1), 0), share=share)


def train(method: Method, steps: int = 3, ours: Oracle | None = None, **more: object) -> torch.Tensor:
    ours = ours or oracle()
    opt = Optimiser(ours.theta)
    if more.get("previous"):
        remember(method, ours)
    for number in range(steps):
        take_step(method, ours, opt, iteration(number, **more))
    return ours.theta.clone()


def test_every_method_is_there() -> None:
    assert set(NAMES) == {name for name, method in METHODS.items() if method.__module__.startswith("smg.")}
    assert all(METHODS[name].__doc__ for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_in_the_first_round_every_method_is_finetuning(name: str) -> None:
    assert torch.equal(train(METHODS[name](), previous=0), train(METHODS["finetune"](), previous=0))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_the_networks_own_parameters_and_is_repeatable(name: str) -> None:
    ours = oracle()
    start = ours.theta.clone()
    moved = train(METHODS[name](), ours=ours, previous=2)
    assert torch.isfinite(moved).all()
    assert not torch.equal(moved, start)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in ours.network.parameters()]), moved)
    assert torch.equal(train(METHODS[name](), previous=2), moved)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("finetune", "per-site", "gem", "a-gem")])
def test_what_is_kept_matters(name: str) -> None:
    assert not torch.equal(train(METHODS[name](), previous=2), train(METHODS["finetune"](), previous=2))


@pytest.mark.parametrize("name", NAMES)
def test_a_method_with_memory_says_what_it_holds_of_patients(name: str) -> None:
    method = METHODS[name]()
    assert method.remembers() == bool(method.keeps_of_patients) == (name in REMEMBERING)
    assert method.has_something_to_do(iteration(previous=0)) == (name in ("finetune", "per-site"))
    assert remember(method, oracle()).has_something_to_do(iteration(previous=0 if name in REMEMBERING else 1))


OTHER = {"gamma": 0.5, "beta": 0.5, "inner": "adam", "symmetric": True, "epsilon": 0.9, "margin": 3.0, "ridge": 10.0}
OTHER |= {"weight": 0.3, "normalise": False, "temperature": 5.0, "alpha": 0.2}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field.name) for name in NAMES for field in dataclasses.fields(METHODS[name])]
)
def test_every_hyper_parameter_changes_the_update(name: str, field: str) -> None:
    """Asked of the direction itself: Adam would forgive a scale."""
    ours, opposing = oracle(), _opposing()
    theta = ours.theta.clone()

    def moved(method: Method) -> torch.Tensor:
        if name == "gem":  # its options act where a constraint is violated
            return method.direction(theta, opposing, iteration(previous=2))
        remember(method, ours, theta + 0.1)
        ours.at(0, 1, 1, scale=lambda g: g.sign())
        return method.update(theta.clone(), ours, lambda at, g: at - g, iteration(1))

    base = METHODS[name](**({"gamma": 0.2} if field in ("inner", "symmetric") and name == "c-meta" else {}))
    changed = dataclasses.replace(base, **{field: OTHER[field]})
    assert not torch.equal(moved(base), moved(changed))


def _opposing() -> Given:
    generator = torch.Generator().manual_seed(0)
    g, a, b = torch.randn(3, 20, dtype=torch.float64, generator=generator)
    return Given({"incoming": g, "site 1": 0.3 * (0.5 * a - g), "site 2": 0.3 * (0.5 * b - g)})


def test_names_options_and_their_mistakes() -> None:
    assert LearnerConfig(method="sga+c").recipe() == Recipe(METHODS["sga"](), "comprehensive")
    assert LearnerConfig(method="sga", replay={"policy": "comprehensive"}).recipe() == Recipe(
        METHODS["sga"](), "comprehensive"
    )
    assert LearnerConfig(method="jm").recipe().policy == "representative"
    with pytest.raises(SmgError, match=r"no method 'sga\+c'"):  # it is a spelling of settings, not a name
        find_method("sga+c")
    assert find_method("c-meta", gamma=0.1, inner="adam") == METHODS["c-meta"](gamma=0.1, inner="adam")  # type: ignore[call-arg]
    with pytest.raises(SmgError, match="no method 'sgaa'; did you mean sga"):
        find_method("sgaa")
    with pytest.raises(SmgError, match="method sga has no option 'lambda'; it has"):
        find_method("sga", **{"lambda": 1})
    with pytest.raises(SmgError, match=r"options\.inner: Input should be 'sgd' or 'adam'"):
        find_method("sga", inner="adamw")


def test_two_files_of_one_name_are_two(tmp_path: Path) -> None:
    trust.allow_everything()
    text = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Literal
from smg.methods import JM, register

@dataclass(frozen=True)
class Plan:
    steps: int = 1

@register("late")
@dataclass(frozen=True)
class Late(JM):
    kind: Literal["%s"] = "%s"
    plan: Plan = field(default_factory=Plan)
"""
    names = []
    for kind in "xy":
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "late.py").write_text(text % (kind, kind))
        names.append(f"{tmp_path / kind / 'late.py'}:late")
        assert find_method(names[-1], kind=kind, plan={"steps": 2}).plan.steps == 2  # type: ignore[attr-defined]
    assert find_method(names[0], kind="x").kind == "x"  # type: ignore[attr-defined]
    with pytest.raises(SmgError, match=r"options\.kind: Input should be 'x'"):
        find_method(names[0], kind="y")


OUTSIDE = '''
from dataclasses import dataclass
from smg.methods import Method, register


@register("replay-only")
@dataclass(frozen=True)
class ReplayOnly(Method):
    """w g(Θ; P)"""

    weight: float = 1.0

    def direction(self, theta, grad, batches):
        return self.weight * grad(theta, batches.replay)
'''


def test_a_new_method_is_one_new_file_outside_the_package(tmp_path: Path) -> None:
    path = tmp_path / "replay_only.py"
    path.write_text(OUTSIDE)
    spec = importlib.util.spec_from_file_location("replay_only", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay_only"] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    try:
        method = find_method("replay-only", weight=2.0)
        ours, batches = oracle(), iteration()
        assert torch.equal(method.direction(ours.theta, ours, batches), 2 * ours(ours.theta, batches.replay))
        train(method)
    finally:
        METHODS.pop("replay-only")


def test_a_method_is_mostly_its_equation() -> None:
    folder = Path(smg.methods.__file__).parent
    for path in folder.glob("*.py"):
        if path.name not in ("base.py", "step.py"):
            assert len(path.read_text().splitlines()) <= 60, path.name


# --- what a step tells ------------------------------------------------------------------------------------------------


def test_a_step_tells_losses_norms_and_cosines_without_an_extra_pass() -> None:
    ours, batches = oracle(), iteration()
    d, p = batches.incoming, batches.replay
    assert p is not None
    c_tr, c_te = batches.split(d, p)
    method, theta = METHODS["sga"](), ours.theta.clone()
    g_d, g_tr = ours(theta, d), ours(theta, c_tr)
    g_p = ours(theta - method.gamma * g_d, p)  # type: ignore[attr-defined]
    g_te = ours(theta - method.beta * g_tr, c_te)  # type: ignore[attr-defined]
    step = take_step(method, ours, Optimiser(ours.theta), batches)
    cosine = torch.nn.functional.cosine_similarity
    assert step.cosines["cos_incoming_replay"] == pytest.approx(float(cosine(g_d, g_p, dim=0)), rel=1e-9)
    assert step.cosines["cos_train_test"] == pytest.approx(float(cosine(g_tr, g_te, dim=0)), rel=1e-9)
    assert step.shifted == ("replay", "virtual test")
    assert step.norms["incoming"] == pytest.approx(float(g_d.norm()), rel=1e-9)
    assert set(step.losses) == {"incoming", "replay", "virtual train", "virtual test"}
    assert len(ours.answers) == 4


@pytest.mark.parametrize(
    ("name", "passes", "cosines"),
    [
        ("finetune", 1, set()), ("jm", 2, {"cos_incoming_replay"}), ("c-meta", 2, {"cos_incoming_replay"}),
        ("g-meta", 2, {"cos_train_test"}), ("sga", 4, {"cos_incoming_replay", "cos_train_test"}),
        ("sga-direct", 4, {"cos_incoming_replay", "cos_train_test"}), ("gem", 3, set()), ("isgm", 3, set()),
        ("pooled", 1, set()), ("ewc", 1, set()), ("mas", 1, set()), ("lwf", 2, set()),
        ("a-gem", 2, {"cos_incoming_replay"}), ("der++", 3, set()),
    ],
)  # fmt: skip
def test_passes_and_cosines_of_each_method(name: str, passes: int, cosines: set[str]) -> None:
    ours = oracle()
    step = take_step(remember(METHODS[name](), ours), ours, Optimiser(ours.theta), iteration())
    assert len(ours.answers) == passes
    assert set(step.cosines) == cosines


def test_symmetric_tells_the_unshifted_cosine() -> None:
    ours = oracle()
    step = take_step(find_method("sga", symmetric=True), ours, Optimiser(ours.theta), iteration())
    assert step.shifted == ()
    assert len(ours.answers) == 8


# --- any method with any policy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_with_every_policy_over_three_rounds(name: str, policy: str) -> None:
    ours, method = small_oracle(), METHODS[name]()
    kept: list[Slices] = []
    for round in range(3):
        site = [subject(100 * round + i) for i in range(4)]
        opt = Optimiser(ours.theta)
        incoming = slices(*(100 * round + i for i in range(4)))
        batches = [Iteration(incoming, kept, 3, 0, round, number, earlier=round) for number in range(2)]
        method.begin_round(ours.theta.clone(), ours, batches[0])
        for number in range(2):
            take_step(method, ours, opt, batches[number])
        method.end_round(ours.theta.clone(), ours, batches[1])
        features = subject_features(ours.network, site, OPTIONS)
        previous = [subject_features(ours.network, source.subjects, OPTIONS) for source in kept]
        choice = select(policy, features, previous, seed=0, round=round)
        assert len(set(choice.chosen)) == 2
        kept.append(slices(*(100 * round + i for i in choice.chosen)))
    assert torch.isfinite(ours.theta).all()


# --- several processes ------------------------------------------------------------------------------------------------


def _trained(name: str) -> torch.Tensor:
    torch.set_num_threads(1)
    styles = Styles([amplitudes(subject(20).images, 4)]) if name in STYLED else None
    share, name = name in SHARED, name.removeprefix("styled ").removeprefix("shared ")
    method = find_method(name, inner="adam") if name == "sga" else METHODS[name]()
    ours = small_oracle(share)
    opt = Optimiser(ours.theta)
    remember(method, ours, ours.theta + 0.01)
    for number in range(3):
        take_step(
            method, ours, opt, iteration(number, size=3, styles=styles)
        )  # five rows and three do not divide by two
    return torch.cat([ours.theta.clone(), *method.state.values()])


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save({name: _trained(name) for name in (*NAMES, *STYLED, *SHARED)}, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads may abort a process whose interpreter shuts down


def test_two_processes_with_half_the_batch_each_equal_one(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in (*NAMES, *STYLED, *SHARED):
        alone = _trained(name)
        start = torch.zeros_like(alone)
        start[: len(small_oracle().theta)] = small_oracle().theta
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        assert (ranks[0][name] - alone).norm() < 2e-3 * (alone - start).norm(), name


def test_a_file_of_methods_may_put_off_its_annotations(tmp_path: Path) -> None:
    text = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from smg.methods import JM, register

@register("late")
@dataclass(frozen=True)
class Late(JM):
    keeps: ClassVar[str] = "everything"
    slack: float = 0.5
"""
    (tmp_path / "late.py").write_text(text)
    trust.allow(f"{tmp_path}/late.py")
    assert find_method(f"{tmp_path}/late.py:late", slack="2e-1").slack == 0.2  # type: ignore[attr-defined]


# --- what a user's method may get wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "its direction is None; return a torch.float64 vector of"),
        ("grad(theta, batches.incoming)[:-1]", r"its direction is a torch.float64 tensor of shape \[\d+\]; return"),
        ("grad(theta, batches.incoming).float()", "its direction is a torch.float32 tensor"),
        ("0.5", "its direction is 0.5; return"),
    ],
)
def test_a_direction_that_is_no_vector_is_one_line_that_names_the_method(
    returned: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text(OUTSIDE.replace("self.weight * grad(theta, batches.replay)", returned))
    trust.allow(f"{tmp_path}/bad.py")
    method = find_method(f"{tmp_path}/bad.py:replay-only")
    ours = oracle()
    before = ours.theta.clone()
    with pytest.raises(SmgError, match=f"^method replay-only: {said}") as refused:
        take_step(method, ours, Optimiser(ours.theta), iteration())
    assert "\n" not in str(refused.value)
    assert torch.equal(ours.theta, before)


def test_a_method_that_keeps_nothing_is_asked_all_the_same(tmp_path: Path) -> None:
    """It was not, once: without a replay batch every method was fine-tuning, whatever its direction said."""
    text = OUTSIDE.replace("grad(theta, batches.replay)", "theta").replace(
        "    weight: float", '    keeps = "nothing"\n    weight: float'
    )
    (tmp_path / "decay.py").write_text(text)
    trust.allow(f"{tmp_path}/decay.py")
    method = find_method(f"{tmp_path}/decay.py:replay-only", weight=0.5)
    theta = oracle().theta
    for previous in (0, 1):
        moved = method.update(theta, oracle(), lambda at, g: at - g, iteration(previous=previous))
        assert torch.equal(moved, theta - 0.5 * theta)
