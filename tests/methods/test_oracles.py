"""Each method against what is known of it from elsewhere, in double precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from smg.gradients.oracle import Oracle
from smg.methods import GEM, ISGM, JM, SGA, CMeta, GMeta, SGADirect
from smg.methods.gem import dual
from smg.networks.loss import segmentation_loss
from smg.prepare.batches import Batch, Iteration
from tests.toys import Given, iteration, oracle


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((a - b).norm() <= tolerance * b.norm())


def parts(batches: Iteration) -> tuple[Batch, Batch, Batch, Batch]:
    d, p = batches.incoming, batches.replay
    assert p is not None
    return d, p, *batches.split(d, p)


def jm(ours: Oracle, batches: Iteration) -> Tensor:
    return JM().direction(ours.theta, ours, batches)


# --- with inner steps of zero -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_an_inner_step_all_are_joint_minimisation(symmetric: bool) -> None:
    ours, batches = oracle(), iteration()
    joint = jm(ours, batches)
    assert close(CMeta(gamma=0, symmetric=symmetric).direction(ours.theta, ours, batches), joint)
    assert close(GMeta(beta=0, symmetric=symmetric).direction(ours.theta, ours, batches), joint)  # |D| = |P|
    assert close(SGA(gamma=0, beta=0, symmetric=symmetric).direction(ours.theta, ours, batches), 2 * joint)
    assert close(SGADirect(gamma=0, beta=0).direction(ours.theta, ours, batches), 2 * joint)


def test_joint_minimisation_is_twice_the_pass_over_the_union() -> None:
    ours, batches = oracle(), iteration()
    d, p, _, _ = parts(batches)
    assert close(jm(ours, batches), 2 * ours(ours.theta, batches.union(d, p)))


# --- Taylor limits ----------------------------------------------------------------------------------------------------


def test_the_first_order_step_yields_one_half_of_the_alignment() -> None:
    """(g(Θ - γ G_D; P) - g(Θ; P)) / -γ  ->  H_P G_D, with an error that falls as γ."""
    ours, batches = oracle(), iteration()
    d, p, _, _ = parts(batches)
    g_d, g_p = ours(ours.theta, d), ours(ours.theta, p)
    _, hessian = ours.linear(ours.theta, p)
    limit = hessian(g_d)
    errors = []
    for gamma in (1e-2, 1e-3, 1e-4):
        shifted = CMeta(gamma=gamma).direction(ours.theta, ours, batches) - g_d
        errors.append(float(((shifted - g_p) / -gamma - limit).norm() / limit.norm()))
    assert errors[-1] < 1e-3
    assert all(8 < a / b < 12 for a, b in itertools.pairwise(errors))


@pytest.mark.parametrize(("symmetric", "order"), [(True, 2), (False, 1)])
def test_symmetric_agrees_with_direct_to_second_order_and_the_papers_form_to_first(symmetric: bool, order: int) -> None:
    ours, batches = oracle(), iteration()
    errors = []
    for step in (4e-2, 2e-2, 1e-2):
        first_order = SGA(gamma=step, beta=step, symmetric=symmetric).direction(ours.theta, ours, batches)
        direct = SGADirect(gamma=step, beta=step).direction(ours.theta, ours, batches)
        errors.append(float((first_order - direct).norm()))
    ratios = [a / b for a, b in itertools.pairwise(errors)]
    assert all(abs(ratio / 2**order - 1) < 0.15 for ratio in ratios), ratios


def test_direct_is_the_gradient_of_equation_4() -> None:
    """Written out: the loss of Eq. 4 as a scalar, differentiated by autograd through the gradients in it."""
    ours, batches = oracle(), iteration()
    gamma, beta = 0.3, 0.7
    network = ours.network

    def loss(batch: Batch) -> Tensor:
        samples = batch.load()
        return segmentation_loss(network(samples.images.double()), samples.labels).mean()

    parameters = list(network.parameters())

    def gradient(value: Tensor) -> Tensor:
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters, create_graph=True)])

    l_d, l_p, l_tr, l_te = (loss(batch) for batch in parts(batches))
    sga = l_d + l_p + l_tr + l_te
    sga = sga - gamma * gradient(l_d) @ gradient(l_p) - beta * gradient(l_tr) @ gradient(l_te)
    assert close(SGADirect(gamma, beta).direction(ours.theta, ours, batches), gradient(sga).detach(), 1e-10)


# --- GEM --------------------------------------------------------------------------------------------------------------


def brute_force(gram: np.ndarray, products: np.ndarray, margin: float) -> np.ndarray:
    """argmin ½ vᵀPv + qᵀv, v ≥ margin, by trying every set of coordinates that sit at the margin."""
    n, best = len(gram), (np.inf, None)
    for held in itertools.product((False, True), repeat=n):
        fixed = np.array(held)
        v = np.full(n, margin)
        if not fixed.all():
            free = ~fixed
            right = -products[free] - gram[np.ix_(free, fixed)] @ v[fixed]
            v[free] = np.linalg.solve(gram[np.ix_(free, free)], right)
        value = 0.5 * v @ gram @ v + products @ v
        if (v >= margin - 1e-12).all() and value < best[0]:
            best = (value, v)
    assert best[1] is not None
    return best[1]


@pytest.mark.parametrize("seed", range(40))
def test_gems_dual_is_the_best_of_all_active_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 1 + seed % 5
    memory, g = rng.normal(size=(n, 12)), rng.normal(size=12)
    gram = memory @ memory.T + 1e-3 * np.eye(n)
    margin = (0.0, 0.5)[seed % 2]
    assert np.allclose(dual(gram, memory @ g, margin), brute_force(gram, memory @ g, margin), atol=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_gem_with_one_constraint_and_no_margin_is_a_gem(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    g, g_1 = torch.randn(2, 30, dtype=torch.float64, generator=generator)
    z = GEM(margin=0, ridge=1e-12).direction(g, Given({"incoming": g, "site 1": g_1}), iteration(previous=1))
    closed = g if g @ g_1 >= 0 else g - (g @ g_1) / (g_1 @ g_1) * g_1
    assert close(z, closed, 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_gem_keeps_every_constraint_and_moves_no_further_than_it_must(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    g, *memory = torch.randn(4, 30, dtype=torch.float64, generator=generator)
    names = {"incoming": g} | {f"site {k}": m for k, m in enumerate(memory, start=1)}
    z = GEM(margin=0, ridge=1e-12).direction(g, Given(names), iteration(previous=3))
    assert all(float(z @ m) >= -1e-8 for m in memory)
    if all(float(g @ m) >= 0 for m in memory):
        assert torch.equal(z, g)
    for _ in range(50):  # no feasible point is nearer
        other = torch.randn(30, dtype=torch.float64, generator=generator) * 0.1 + z
        if all(float(other @ m) >= 0 for m in memory):
            assert (other - g).norm() >= (z - g).norm() - 1e-9


def test_gem_asks_for_one_gradient_a_site_and_mixes_no_memory_into_d() -> None:
    ours, batches = oracle(), iteration(previous=3)
    GEM().direction(ours.theta, ours, batches)
    assert [answer.batch for answer in ours.answers] == ["incoming", "site 1", "site 2", "site 3"]
    assert {row[0] for row in batches.incoming.rows} == {0}


# --- Fish -------------------------------------------------------------------------------------------------------------


def sgd(rate: float):
    return lambda theta, g: theta - rate * g


def test_isgm_with_one_site_is_sgd() -> None:
    ours, batches = oracle(), iteration(previous=0)
    moved = ISGM(epsilon=1.0).later_update(ours.theta, ours, sgd(0.1), batches)
    assert close(moved, ours.theta - 0.1 * ours(ours.theta, batches.incoming))


def test_isgm_averaged_over_orders_has_the_published_expansion() -> None:
    ours, batches = oracle(), iteration(previous=2)
    sites = [batches.incoming, *batches.exemplars]
    g, h = zip(*(ours.linear(ours.theta, site) for site in sites), strict=True)
    alignment = sum(h[i](g[j]) + h[j](g[i]) for i, j in itertools.combinations(range(3), 2))
    errors = []
    for a in (2e-2, 1e-2, 5e-3):
        moves = []
        for order in itertools.permutations(sites):
            batches.shuffled = lambda _, order=order: list(order)  # type: ignore[method-assign]
            moves.append(ISGM(epsilon=1.0).later_update(ours.theta, ours, sgd(a), batches) - ours.theta)
        expansion = -a * sum(g) + a**2 / 2 * alignment
        errors.append(float((torch.stack(moves).mean(0) - expansion).norm()))
    ratios = [x / y for x, y in itertools.pairwise(errors)]
    assert all(abs(ratio / 8 - 1) < 0.15 for ratio in ratios), ratios  # O(a³)


def test_isgms_order_is_random_in_every_iteration() -> None:
    names = set()
    for number in range(20):
        batches = iteration(number)
        names.add(tuple(b.name for b in batches.shuffled([batches.incoming, *batches.exemplars])))
    assert len(names) > 3
