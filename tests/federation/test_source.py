"""Directions over hospitals equal the centralised ones, in as few exchanges as each method needs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from smg.errors import SmgError
from smg.federation.roster import Roster
from smg.federation.source import Federated
from smg.federation.transport import InProcess
from smg.gradients.optimiser import Optimiser
from smg.gradients.oracle import Oracle
from smg.methods import METHODS, take_step
from tests.federation.toy_hospitals import NAMES, central, distance_between, elsewhere, federated, toy_hospital
from tests.toys import oracle, remember, smooth_network

EXCHANGES = {"jm": 1, "pooled": 1, "c-meta": 1, "g-meta": 2, "sga": 2, "gem": 1, "a-gem": 1, "der++": 1, "isgm": 2}
NONE = ("finetune", "per-site", "lwf", "ewc", "mas")  # they look at the incoming site alone


def moved(name: str, far: bool, **options: object) -> tuple[list[torch.Tensor], list[int], list[dict[str, float]]]:
    """Return the optimiser's inputs of three iterations, the exchanges of each, and the losses reported."""
    method = METHODS[name](**options)
    source = federated()[0] if far else oracle()
    if name in NONE:
        remember(method, oracle())
    opt = Optimiser(source.theta)
    seen: list[torch.Tensor] = []
    exchanges, losses = [], []
    for number in range(3):
        before = source.theta.clone()
        step = take_step(method, source, opt, (elsewhere if far else central)(number))  # type: ignore[arg-type]
        seen += [answer.gradient for answer in source.answers] + [source.theta - before]
        exchanges.append(source.journeys if far else 0)  # type: ignore[union-attr]
        losses.append(step.losses)
    return seen, exchanges, losses


@pytest.mark.parametrize("name", [*EXCHANGES, *NONE])
def test_gradients_and_steps_over_hospitals_are_the_centralised_ones(name: str) -> None:
    ours, exchanges, losses = moved(name, far=True)
    theirs, _, expected = moved(name, far=False)
    assert [len(one) for one in ours] == [len(one) for one in theirs]
    assert max(distance_between(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-12  # Adam magnifies rounding
    assert exchanges == [EXCHANGES.get(name, 0)] * 3
    for step, other in zip(losses, expected, strict=True):
        assert step == pytest.approx(other, rel=1e-13)


@pytest.mark.parametrize(("name", "exchanges"), [*EXCHANGES.items(), *((name, 0) for name in NONE)])
def test_messages_of_an_iteration_are_as_many_as_its_exchanges(name: str, exchanges: int) -> None:
    """Count what leaves for each hospital: one message an exchange, and for isgm one from each site's hospital."""
    method = METHODS[name]()
    far, way = federated(keeps=True)
    if name in NONE:
        remember(method, oracle())
    opt, most = Optimiser(far.theta), 0
    for number in range(6):
        way.traffic.messages.clear()
        take_step(method, far, opt, elsewhere(number))
        asked = Counter(receiver for sender, receiver, _ in way.traffic.messages if sender == way.me)
        answered = Counter(sender for sender, _, _ in way.traffic.messages if sender != way.me)
        assert asked == answered
        most = max(most, sum(asked.values()) if name == "isgm" else max(asked.values(), default=0))
        assert most <= exchanges
    assert most == exchanges  # a hospital without a row in an iteration's batches is asked less often


class Plain(Optimiser):
    """Steps of a fixed size along the gradient, which do not magnify rounding as Adam's do."""

    def __call__(self, theta: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return theta.sub_(gradient, alpha=1e-3)


def test_isgm_is_equal_in_double_precision() -> None:
    """It has no direction, so the gradients and the step of an iteration are compared, with plain inner steps."""
    for number in (0, 1, 7):
        far, near = federated()[0], oracle()
        begun = near.theta.clone()
        take_step(METHODS["isgm"](), far, Plain(far.theta), elsewhere(number))
        take_step(METHODS["isgm"](), near, Plain(near.theta), central(number))
        assert not torch.equal(near.theta, begun)
        assert distance_between(far.theta, near.theta) < 1e-14
        for ours, theirs in zip(far.answers, near.answers, strict=True):
            assert distance_between(ours.gradient, theirs.gradient) < 1e-14


@pytest.mark.parametrize("name", [name for name in EXCHANGES if name != "isgm"])
def test_directions_are_equal_in_double_precision(name: str) -> None:
    far, near = federated()[0], oracle()
    for number in (0, 1, 7):
        for source in (far, near):
            source.at(0, 1, number)
        ours = METHODS[name]().direction(far.theta, far, elsewhere(number))
        theirs = METHODS[name]().direction(near.theta, near, central(number))
        assert distance_between(ours, theirs) < 1e-14


@pytest.mark.parametrize("name", [name for name in EXCHANGES if name != "isgm"])
def test_directions_are_equal_to_rounding_in_single_precision(name: str) -> None:
    """Directions and not Θ are compared, since Adam magnifies rounding where gradients vanish."""
    hospitals = {one: toy_hospital(one, n, smooth_network(5).float()) for n, one in enumerate(NAMES[:2])}
    far = Federated(Oracle(smooth_network().float()), tuple(hospitals), Roster(InProcess(hospitals)).ask_all)
    near = Oracle(smooth_network().float())
    for number in range(6):
        for source in (far, near):
            source.at(0, 1, number)
        ours = METHODS[name]().direction(far.theta, far, elsewhere(number))
        theirs = METHODS[name]().direction(near.theta, near, central(number))
        assert ours.dtype == theirs.dtype == torch.float32
        assert distance_between(ours, theirs) < 2e-6


@pytest.mark.parametrize(("name", "exchanges"), [("c-meta", 1), ("g-meta", 3), ("sga", 3)])
def test_symmetric_forms(name: str, exchanges: int) -> None:
    ours, counted, _ = moved(name, far=True, symmetric=True)
    theirs, _, _ = moved(name, far=False, symmetric=True)
    assert counted == [exchanges] * 3
    assert max(distance_between(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-12


@pytest.mark.parametrize("name", ["sga", "g-meta"])
def test_inner_steps_that_the_optimiser_scales(name: str) -> None:
    ours, _, _ = moved(name, far=True, inner="adam")
    theirs, _, _ = moved(name, far=False, inner="adam")
    assert max(distance_between(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-9


def test_rows_at_home_give_the_very_numbers_of_no_federation() -> None:
    far, near = federated()[0], oracle()
    for source in (far, near):
        source.at(0, 1, 0)
    assert torch.equal(far(far.theta, elsewhere().incoming), near(near.theta, central().incoming))


def test_hessian_products_are_refused() -> None:
    far = federated()[0]
    far.at(0, 1, 0)
    with pytest.raises(SmgError, match="use sga"):
        METHODS["sga-direct"]().direction(far.theta, far, elsewhere())


def test_a_loss_that_no_hospital_knows_is_refused_before_it_travels() -> None:
    far, way = federated()
    far.at(0, 1, 0)
    with pytest.raises(SmgError, match="no hospital knows it by name"):
        far(far.theta, elsewhere().replay, lambda outputs: outputs.logits.sum(dim=(1, 2, 3)))  # type: ignore[arg-type]
    assert way.traffic.journeys == 0


def test_the_sum_does_not_depend_on_who_answers_first() -> None:
    runs = []
    for _ in range(3):
        far = federated(3)[0]
        far.at(0, 1, 0)
        runs.append(far(far.theta, elsewhere(previous=3).pooled))
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
