"""Methods that remember, each against something that is not itself, in double precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from smg.gradients.flat import pieces, trainable
from smg.methods import AGEM, DER, EWC, GEM, MAS, FineTune, LwF, Method
from smg.methods.der import distance
from smg.methods.lwf import Distillation
from smg.networks.loss import Outputs
from smg.prepare.augment import Augmentation
from smg.prepare.batches import Batch
from tests.toys import Given, iteration, oracle, remember, slices, smooth_network


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((a - b).norm() <= tolerance * b.norm())


# --- EWC --------------------------------------------------------------------------------------------------------------


class Quadratic:
    """An oracle of ½ (Θ - a)ᵀ A (Θ - a), and of samples x with the log-likelihood -½ ‖Θ - x‖²: ∇ = x - Θ."""

    def __init__(self, centre: Tensor, curvature: Tensor, samples: Tensor) -> None:
        self.centre, self.curvature, self.samples = centre, curvature, samples

    def __call__(self, theta: Tensor, batch: Batch, loss: object = None) -> Tensor:
        if loss is None:
            return self.curvature @ (theta - self.centre)
        return self.samples[[row[1] for row in batch.rows]].mean(0) - theta


@pytest.mark.parametrize("normalise", [False, True])
def test_ewc_on_a_quadratic_settles_where_the_closed_form_says(normalise: bool) -> None:
    """A (Θ - a) + λ F (Θ - Θ*) = 0, so Θ = (A + λ F)⁻¹ (A a + λ F Θ*), F the mean of (x - Θ*)²."""
    generator = torch.Generator().manual_seed(0)
    n, weight = 6, 0.7
    start, centre = torch.randn(2, n, dtype=torch.float64, generator=generator)
    root = torch.randn(n, n, dtype=torch.float64, generator=generator)
    curvature = root @ root.T / n + torch.eye(n, dtype=torch.float64)
    batches = iteration()
    samples = torch.randn(len(batches.incoming_site), n, dtype=torch.float64, generator=generator)
    grad, method = Quadratic(centre, curvature, samples), EWC(weight=weight, normalise=normalise)
    method.end_round(start.clone(), grad, batches)  # type: ignore[arg-type]
    theta = start.clone()
    for _ in range(2000):
        theta -= 0.05 * method.direction(theta, grad, batches)  # type: ignore[arg-type]
    fisher = (samples - start).square().mean(0)
    fisher = torch.diag(fisher / fisher.mean() if normalise else fisher)
    closed = torch.linalg.solve(curvature + weight * fisher, curvature @ centre + weight * fisher @ start)
    assert close(theta, closed, 1e-9)


def one_by_one(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every slice of the toys' incoming site, read off its subjects and not through a batch."""
    for index, (number, slice_) in enumerate(slices(0, 1, 2, 3).places):
        if index < count:
            subject = slices(0, 1, 2, 3).subjects[number]
            yield subject.images[slice_][None].double(), subject.labels[slice_]


def test_the_fisher_is_the_mean_of_squares_sample_by_sample_and_not_the_square_of_the_mean() -> None:
    ours, network = oracle(), smooth_network()
    squares, gradients = [], []
    for image, labels in one_by_one(20):
        network.zero_grad()
        log_p = log_softmax(network(image)[0], dim=0)
        sum(log_p[int(labels[i, j]), i, j] for i in range(16) for j in range(16)).backward()  # type: ignore[union-attr]
        gradients.append(torch.cat([p.grad.reshape(-1) for p in network.parameters()]))  # type: ignore[union-attr]
        squares.append(gradients[-1].square())
    assert len(squares) == len(iteration().incoming_site) == 20
    fisher = torch.stack(squares).mean(0)
    made = remember(EWC(normalise=False), ours)
    assert close(made.state["importance"], fisher, 1e-10)
    assert not close(torch.stack(gradients).mean(0).square(), fisher, 0.1)
    assert close(remember(EWC(), ours).state["importance"], fisher / fisher.mean(), 1e-10)


@pytest.mark.parametrize("kind", [EWC, MAS])
def test_importances_add_up_over_rounds_each_at_its_own_theta(kind: type[EWC | MAS]) -> None:
    ours = oracle()
    first, second = ours.theta.clone(), ours.theta + 0.05
    apart = [remember(kind(), ours, theta).state["importance"] for theta in (first, second)]
    both = remember(remember(kind(), ours, first), ours, second)
    assert close(both.state["importance"], apart[0] + apart[1])
    assert torch.equal(both.state["theta"], second)
    assert not close(apart[0], apart[1], 1e-3)


@pytest.mark.parametrize("kind", [EWC, MAS])
def test_at_the_anchor_the_penalty_has_no_gradient_and_beyond_it_pulls_back(kind: type[EWC | MAS]) -> None:
    ours, batches = oracle(), iteration()
    method = remember(kind(weight=2.0), ours)
    assert torch.equal(method.direction(ours.theta, ours, batches), ours(ours.theta, batches.incoming))
    away = ours.theta + 0.1
    pull = method.direction(away, ours, batches) - ours(away, batches.incoming)
    assert close(pull, 2.0 * method.state["importance"] * 0.1, 1e-9)


# --- MAS --------------------------------------------------------------------------------------------------------------


def test_mas_against_finite_differences() -> None:
    ours, network, step = oracle(), smooth_network(), 1e-6
    made = remember(MAS(normalise=False), ours).state["importance"]
    theta, named = ours.theta.clone(), trainable(network)

    def lengths(at: Tensor) -> Tensor:
        values = []
        for image, _ in one_by_one(20):
            given = pieces(named, at)
            values.append(torch.func.functional_call(network, given, (image,)).detach().square().sum())
        return torch.stack(values)

    for weight in torch.linspace(0, len(theta) - 1, 12).long().tolist():
        shift = torch.zeros_like(theta)
        shift[weight] = step
        central = (lengths(theta + shift) - lengths(theta - shift)) / (2 * step)
        assert made[weight] == pytest.approx(float(central.abs().mean()), rel=1e-5, abs=1e-7)


# --- LwF --------------------------------------------------------------------------------------------------------------


def test_lwf_without_weight_is_fine_tuning() -> None:
    ours, batches = oracle(), iteration()
    method = remember(LwF(weight=0.0), ours, ours.theta + 0.1)
    plain = FineTune().direction(ours.theta, ours, batches)
    assert torch.equal(method.direction(ours.theta, ours, batches), plain)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 8.0])
def test_at_the_teachers_theta_distillation_has_no_gradient(temperature: float) -> None:
    ours, batch = oracle(), iteration(augmentation=Augmentation.preset("strong")).incoming
    there, apart = ours.theta.clone(), ours.theta + 0.1
    scale = ours(there, batch, Distillation(apart, temperature)).norm()
    assert ours(there, batch, Distillation(there, temperature)).norm() < 1e-13 * scale


def test_the_temperature_is_undone() -> None:
    """As T grows, T² H(q, p) has the gradient of ½ ‖f - f*‖² / K of centred outputs: it does not fade as 1/T²."""
    ours, batch = oracle(), iteration().incoming
    teacher = ours.theta + 0.1

    def limit(outputs: Outputs) -> Tensor:
        apart = outputs.logits - outputs.at(teacher)
        apart = apart - apart.mean(dim=1, keepdim=True)
        return 0.5 * apart.square().mean(dim=1).mean(dim=(1, 2))

    expected = ours(ours.theta, batch, limit)
    errors = [
        float((ours(ours.theta, batch, Distillation(teacher, t)) - expected).norm() / expected.norm())
        for t in (10.0, 100.0)
    ]
    assert errors[1] < 1e-3
    assert 50 < errors[0] / errors[1] < 150  # O(1/T²) for two classes


def test_lwf_keeps_its_teacher_for_a_round_and_needs_one_before_it() -> None:
    ours, method = oracle(), LwF()
    method.begin_round(ours.theta.clone(), ours, iteration(earlier=0))
    assert not method.has_something_to_do(iteration(previous=0))
    method.begin_round(ours.theta.clone(), ours, iteration(earlier=3))
    assert torch.equal(method.state["theta"], ours.theta)
    method.end_round(ours.theta.clone(), ours, iteration())
    assert not method.state


# --- A-GEM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_gem_is_gem_with_one_constraint_margin_0_and_ridge_0(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    g, p = torch.randn(2, 30, dtype=torch.float64, generator=generator)
    grad, batches = Given({"incoming": g, "site 1": p, "replay": p}), iteration(previous=1)
    expected = GEM(margin=0, ridge=0).direction(g, grad, batches)  # type: ignore[arg-type]
    made = AGEM().direction(g, grad, batches)  # type: ignore[arg-type]
    assert close(made, expected, 1e-9)
    assert torch.equal(made, g) == bool(g @ p >= 0)


def test_a_gem_survives_a_replay_gradient_of_zero() -> None:
    g = torch.ones(5, dtype=torch.float64)
    grad = Given({"incoming": g, "replay": torch.zeros_like(g)})
    assert torch.equal(AGEM().direction(g, grad, iteration(previous=1)), g)  # type: ignore[arg-type]


# --- DER++ ------------------------------------------------------------------------------------------------------------


def test_der_without_weights_is_fine_tuning_and_each_term_is_what_it_says() -> None:
    ours, batches = oracle(), iteration()
    p, other = batches.replay, batches.second_replay
    assert p is not None
    assert other is not None
    plain = FineTune().direction(ours.theta, ours, batches)
    assert torch.equal(DER(alpha=0, beta=0).direction(ours.theta, ours, batches), plain)
    replayed = DER(alpha=0, beta=2).direction(ours.theta, ours, batches) - plain
    assert close(replayed, 2 * ours(ours.theta, other))
    network = smooth_network()
    samples = p.load()
    assert samples.outputs is not None
    (network(samples.images.double()) - samples.outputs.double()).square().mean().backward()
    by_hand = torch.cat([q.grad.reshape(-1) for q in network.parameters()])  # type: ignore[union-attr]
    assert close(DER(alpha=3, beta=0).direction(ours.theta, ours, batches) - plain, 3 * by_hand, 1e-10)


def test_stored_outputs_that_are_the_networks_own_have_no_gradient() -> None:
    ours, batches = oracle(), iteration()
    network = smooth_network()
    for site in batches.previous_sites:
        site.subjects = [  # in full precision, of which half is what is stored
            dataclasses.replace(s, outputs=network(s.images.double()).detach()) for s in site.subjects
        ]
    assert batches.replay is not None
    moved = ours(ours.theta + 0.1, batches.replay, distance).norm()
    assert ours(ours.theta, batches.replay, distance).norm() < 1e-5 * moved  # a float32 is between


def test_the_second_replay_is_another_draw_with_augmentation_of_its_own() -> None:
    numbers = [iteration(n, previous=3, size=5) for n in range(40)]
    pairs = [(b.replay, b.second_replay) for b in numbers]
    assert all(p is not None and q is not None and len(p) == len(q) == 5 for p, q in pairs)
    same = sum(p.rows[k][:2] == q.rows[k][:2] for p, q in pairs for k in range(5))  # type: ignore[union-attr]
    assert same < 60  # of 200; by chance 7
    for batches in numbers[:5]:
        everything = [batches.incoming, batches.replay, batches.second_replay, *batches.exemplars, batches.pooled]
        places = [row[2] for batch in everything for row in batch.rows]  # type: ignore[union-attr]
        assert len(set(places)) == len(places)
    assert iteration(previous=0).second_replay is None


# --- what holds for all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [EWC(), MAS(), LwF()], ids=lambda method: method.name)
def test_looking_at_a_round_moves_nothing(method: Method) -> None:
    ours = oracle()
    before = ours.theta.clone()
    remember(method, ours)
    assert torch.equal(ours.theta, before)
    assert not ours.answers  # a pass over a site is not kept in memory


def test_each_passes_over_every_slice_once_and_holds_none() -> None:
    batches = iteration(size=3)
    rows = [row for batch in batches.each(3) for row in batch.rows]
    assert [row[1] for row in rows] == list(range(20))
    assert [len(batch) for batch in batches.each(3)] == [3] * 6 + [2]
    for batch in batches.each():
        batch.load()
    assert not batches._loaded
