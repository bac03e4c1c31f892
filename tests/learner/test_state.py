"""What a method remembers: it belongs to the version, goes with what it is of, and is loaded like weights."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import smg.learner.store
from smg.errors import SmgError, Stopped
from smg.gradients.oracle import Oracle
from smg.learner.admission import split_as_before
from smg.learner.config import LearnerConfig
from smg.learner.learner import Learner
from smg.learner.results import read_results
from smg.methods import METHODS, Step
from smg.prepare.batches import Batch
from smg.prepare.prepared_site import prepare_site
from smg.sites.site import Site
from tests.cli.commands import smg as command
from tests.learner.streams import TINY, refused, tiny_stream, write_sites

OWN = """
from dataclasses import dataclass
import torch
from smg.methods import Method, register


@register("counting")
@dataclass(frozen=True)
class Counting(Method):
    keeps = "nothing"
    keeps_of_patients = "how many slices each site had"

    def begin_round(self, theta, grad, batches):
        self.state["round began at"] = theta

    def direction(self, theta, grad, batches):
        self.state["last"] = theta  # itself, not a copy: it must not move on with the weights
        return grad(theta, batches.incoming)

    def end_round(self, theta, grad, batches):
        self.state[f"{batches.site}/slices"] = torch.tensor(len(list(batches.each())))
"""


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(TINY | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each of these methods that has learned A and B."""
    folder, own = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("own") / "mine.py"
    own.write_text(OWN)
    methods = {"ewc": "ewc", "counting": f"{own}:counting", "der++": "der++"}
    for name, method in methods.items():
        learner = Learner.create(folder / name, config(method=method))
        for site in "AB":
            learner.learn(Site.find(data, site))
    return {name: folder / name for name in methods}


def copy(made: dict[str, Path], name: str, tmp_path: Path) -> Learner:
    return Learner(shutil.copytree(made[name], tmp_path / "model"))


def test_the_state_belongs_to_the_version_and_rollback_brings_it_back(
    made: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    learner = copy(made, "ewc", tmp_path)
    states = [learner.store.read_tensors(number, "state") for number in (1, 2)]
    weights = [learner.network(number) for number in (1, 2)]
    for state, network in zip(states, weights, strict=True):
        theta = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        assert torch.equal(state["theta"], theta)  # of the end of its own round
    assert (states[1]["importance"] >= states[0]["importance"]).all()
    assert states[0]["importance"].mean() == pytest.approx(1, rel=1e-5)
    assert states[1]["importance"].mean() == pytest.approx(2, rel=1e-5)
    straight = Learner(shutil.copytree(made["ewc"], tmp_path / "straight")).learn(Site.find(data, "C"))
    learner.rollback(1)
    assert torch.equal(learner.memory()["theta"], states[0]["theta"])
    learner.rollback(2)
    assert learner.learn(Site.find(data, "C")).files == straight.files


def test_the_stored_fisher_is_that_of_the_rounds_own_training_slices(made: dict[str, Path], data: Path) -> None:
    """Computed again from the scans and the stored weights, one slice at a time."""
    learner = Learner(made["ewc"])
    cases = split_as_before(learner.history, Site.find(data, "A"), learner.config, 1)["train"]
    prepared = [p for p in prepare_site(Site.find(data, "A"), learner.config.preparation) if p.subject.case in cases]
    network, total, count = learner.network(1).train(), None, 0
    for subject in prepared:
        for image, labels in zip(subject.images, subject.labels, strict=True):
            network.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(image[None]), labels[None].long(), reduction="sum")
            loss.backward()
            square = torch.cat([p.grad.reshape(-1) for p in network.parameters()]).square()
            total, count = square if total is None else total + square, count + 1
    assert total is not None
    assert count > 6
    stored = learner.store.read_tensors(1, "state")["importance"]
    torch.testing.assert_close(stored, total / total.mean(), rtol=1e-3, atol=1e-4)


def test_a_state_that_was_altered_is_refused(made: dict[str, Path], data: Path, tmp_path: Path) -> None:
    learner = copy(made, "ewc", tmp_path)
    path = learner.store.round_folder(2) / "state.safetensors"
    data_ = bytearray(path.read_bytes())
    data_[-1] ^= 1
    path.write_bytes(data_)
    with pytest.raises(SmgError, match=r"state\.safetensors: cut short or altered since it was written"):
        learner.learn(Site.find(data, "C"))


def test_what_a_state_holds_of_a_site_goes_with_the_site(made: dict[str, Path], tmp_path: Path) -> None:
    learner = copy(made, "counting", tmp_path)
    assert set(learner.memory()) == {"round began at", "last", "A/slices", "B/slices"}
    learner.drop("A")
    assert set(Learner(learner.store.folder).memory()) == {"round began at", "last", "B/slices"}
    assert set(learner.store.read_tensors(1, "state")) == {"round began at", "last"}


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_drop_killed_between_any_two_writes_leaves_a_state_that_can_be_read(
    write: int, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, writes = copy(made, "counting", tmp_path), itertools.count(1)
    names = ("write_record", "write_pieces")
    originals = {name: getattr(smg.learner.store, name) for name in names}

    class Killed(BaseException):
        pass

    def fatal(name: str) -> Any:
        def call(path: Path, what: Any) -> None:
            if path.name in ("state.safetensors", "round.json"):
                if next(writes) == 1 + write:  # the first is of the exemplars
                    raise Killed
            originals[name](path, what)

        return call

    for name in names:
        monkeypatch.setattr(smg.learner.store, name, fatal(name))
    with pytest.raises(Killed):
        learner.drop("A")
    monkeypatch.undo()
    after = Learner(learner.store.folder)
    for number in (1, 2):
        after.store.read_tensors(number, "state")
    after.drop("A")
    assert not any(name.startswith("A/") for n in (1, 2) for name in after.store.read_tensors(n, "state"))
    assert not after.store.read_round(1).replaced


def test_a_vector_that_is_theta_itself_is_kept_as_it_was(made: dict[str, Path]) -> None:
    learner = Learner(made["counting"])
    theta = torch.cat([p.detach().reshape(-1) for p in learner.network(2).parameters()])
    state = learner.memory()
    assert not torch.equal(state["last"], theta)  # of before the last step
    assert torch.equal(state["round began at"], learner_theta(learner, 1))


def learner_theta(learner: Learner, number: int) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in learner.network(number).parameters()])


def test_replay_show_says_what_the_method_remembers(made: dict[str, Path]) -> None:
    shown = command("replay", "show", str(made["ewc"])).stdout
    assert "round 2: its method remembers" in shown
    assert METHODS["ewc"].keeps_of_patients in " ".join(shown.split())
    rows = json.loads(command("replay", "show", str(made["ewc"]), "--json").stdout)
    assert rows[1]["state_of_patients"] == METHODS["ewc"].keeps_of_patients
    assert rows[1]["state_bytes"] == 2 * 4 * len(learner_theta(Learner(made["ewc"]), 2))


# --- the trap ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"method": "finetune"}, {"method": "sga"}, "no exemplars are kept"),
        ({"method": "sga", "replay": {"subjects": 0}}, {"method": "sga"}, "no exemplars are kept"),
        ({"method": "jm"}, {"method": "ewc"}, "the round before left it no state"),
        ({"method": "mas"}, {"method": "ewc"}, "the round before left it no state"),
    ],
)
def test_a_later_round_that_would_only_fine_tune_is_an_error(
    first: dict[str, Any], second: dict[str, Any], why: str, data: Path, tmp_path: Path
) -> None:
    Learner.create(tmp_path / "model", config(iterations=1, **first)).learn(Site.find(data, "A"))
    learner = Learner(tmp_path / "model", config(iterations=1, **second))
    name = second["method"]
    with pytest.raises(SmgError, match=f"^round 2, site B: method {name} would only fine-tune, since {why}; ") as said:
        learner.learn(Site.find(data, "B"))
    assert "\n" not in str(said.value)
    assert Learner(tmp_path / "model").current == 1
    assert not (tmp_path / "model" / "progress").exists()
    Learner(tmp_path / "model", config(iterations=1, method="finetune")).learn(Site.find(data, "B"))


def test_lwf_goes_on_from_any_round_since_its_teacher_is_that_rounds_weights(data: Path, tmp_path: Path) -> None:
    Learner.create(tmp_path / "model", config(iterations=2, method="finetune")).learn(Site.find(data, "A"))
    learner = Learner(tmp_path / "model", config(iterations=2, method="lwf"))
    record = learner.learn(Site.find(data, "B"))
    assert "state.safetensors" not in record.files  # it needs no other copy of these weights
    assert "incoming (distillation)" in record.log[0].losses
    plain = shutil.copytree(tmp_path / "model", tmp_path / "plain")
    Learner(plain).rollback(1)
    other = Learner(plain, config(iterations=2, method="finetune")).learn(Site.find(data, "B"))
    assert other.files["weights.safetensors"] != record.files["weights.safetensors"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("self.state['x'] = 3", "method bad: state 'x' is 3; state is tensors by name"),
        ("self.state['x'] = theta / 0 * 0", "state x of method bad is nan; the model is as it was"),
    ],
)
def test_a_state_that_cannot_be_stored_is_one_line(body: str, said: str, data: Path, tmp_path: Path) -> None:
    text = (
        OWN[: OWN.index("    def begin_round")].replace("counting", "bad")
        + f"    def end_round(self, theta, grad, batches):\n        {body}\n"
    )
    (tmp_path / "bad.py").write_text(text)
    learner = Learner.create(tmp_path / "model", config(iterations=1, method=f"{tmp_path}/bad.py:bad"))
    with pytest.raises(SmgError, match=said):
        learner.learn(Site.find(data, "A"))


def test_a_method_with_memory_has_to_say_what_it_holds_of_patients(data: Path, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(OWN.replace('    keeps_of_patients = "how many slices each site had"\n', ""))
    with pytest.raises(SmgError, match="method counting: remembers between rounds, and does not say what it holds of"):
        config(method=f"{tmp_path}/silent.py:counting")


# --- stored outputs ---------------------------------------------------------------------------------------------------


def test_der_stores_the_outputs_of_the_network_that_closed_the_round(made: dict[str, Path]) -> None:
    learner = Learner(made["der++"])
    kept = learner.replay()
    for site, number in (("A", 1), ("B", 2)):
        network = learner.network(number).eval()
        for exemplar in kept[site]:
            assert exemplar.outputs is not None
            assert exemplar.outputs.dtype == torch.float16
            with torch.no_grad():
                expected = network(exemplar.images)
            torch.testing.assert_close(exemplar.outputs.float(), expected, rtol=1e-3, atol=1e-3)


def test_stored_outputs_are_counted_and_dropped_with_their_exemplars(made: dict[str, Path], tmp_path: Path) -> None:
    learner = copy(made, "der++", tmp_path)
    row = learner.stored()[0]
    slices = sum(len(e.images) for e in learner.replay()["A"])
    assert (row.kept.subjects, row.kept.bytes) == (2, slices * 16 * 16 * (4 + 1 + 2 * 2))
    assert learner.drop("A") == 2
    assert learner.stored()[0].kept.bytes == 0


def test_exemplars_without_stored_outputs_are_one_line(data: Path, tmp_path: Path) -> None:
    Learner.create(tmp_path / "model", config(iterations=1, method="jm")).learn(Site.find(data, "A"))
    switched = Learner(tmp_path / "model", config(iterations=1, method="der++"))
    with refused(str(tmp_path / "model"), "exemplars of A have no stored outputs", "go on with jm"):
        switched.learn(Site.find(data, "B"), on_step=lambda iteration, step: pytest.fail("it began"))


def test_exemplars_without_stored_outputs_can_be_given_up_where_others_have_them(
    made: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made["der++"], tmp_path / "model")
    Learner(folder, config(iterations=1, method="jm")).learn(Site.find(data, "C"))
    again = Learner(folder, config(iterations=1, method="der++"))
    with refused("exemplars of C have no stored outputs", f"`smg replay drop {folder} C`"):
        again.learn(Site.find(data, "C"), again=True)
    again.drop("C")
    assert again.learn(Site.find(data, "C"), again=True).round == 4


# --- who answers ------------------------------------------------------------------------------------------------------


def test_who_answers_is_handed_in(data: Path, tmp_path: Path) -> None:
    """Another oracle than this process's own, which counts what it is asked for, and ends with the same weights."""
    asked: list[str] = []

    class Counted(Oracle):
        def __call__(self, theta: torch.Tensor, batch: Batch, loss: Any = None) -> torch.Tensor:
            asked.append(batch.name)
            return super().__call__(theta, batch, loss)

    hashes = []
    for name, answering in (("plain", {}), ("counted", {"answering": lambda network, config: Counted(network)})):
        learner = Learner.create(tmp_path / name, config(method="jm", iterations=2))
        learner.learn(Site.find(data, "A"), **answering)  # type: ignore[arg-type]
        hashes.append(learner.learn(Site.find(data, "B"), **answering).files["weights.safetensors"])  # type: ignore[arg-type]
    assert asked == ["incoming"] * 2 + ["incoming", "replay"] * 2
    assert hashes[0] == hashes[1]


def test_another_loss_is_learned_with_and_kept_in_the_result(data: Path, tmp_path: Path) -> None:
    hashes = set()
    for number, changes in enumerate(
        [{}, {"loss": "dice+focal"}, {"loss": "TverskyLoss", "loss_options": {"alpha": 0.3}}]
    ):
        learner = Learner.create(tmp_path / str(number), config(iterations=2, method="finetune", **changes))
        record = learner.learn(Site.find(data, "A"))
        assert record.config.tree()["loss"] == changes.get("loss", "dice+ce")
        hashes.add(record.files["weights.safetensors"])
    assert len(hashes) == 3


def test_a_policy_of_ones_own(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
from smg.replay.selection import policy

@policy("last")
def last(candidates, count):
    return list(range(len(candidates.features)))[-count:]
""")
    named = f"{tmp_path}/mine.py:last"
    learner = Learner.create(tmp_path / "model", config(iterations=1, method="jm", replay={"policy": named}))
    record = learner.learn(Site.find(data, "A"))
    assert record.selection.policy == named
    assert record.selection.chosen == record.selection.candidates[-2:]
    (tmp_path / "taken.py").write_text((tmp_path / "mine.py").read_text().replace('"last"', '"random"'))
    with pytest.raises(SmgError, match=r"taken\.py: replay policy 'random' is registered already \(smg\.replay"):
        config(replay={"policy": f"{tmp_path}/taken.py:random"})


def test_a_method_of_smgs_is_not_replaced_by_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text(OWN.replace('"counting"', '"sga"'))
    with pytest.raises(SmgError, match=r"taken\.py: method 'sga' is registered already \(smg\.methods\.sga\); choose"):
        config(method=f"{tmp_path}/taken.py:sga")
    assert METHODS["sga"].__module__ == "smg.methods.sga"


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "kept", "networks"), [("der++", 4, 1), ("ewc", 0, 1), ("per-site", 0, 2)])
def test_a_run_tells_what_it_cost(method: str, kept: int, networks: int, data: Path, tmp_path: Path) -> None:
    results = tiny_stream(data, method=method, iterations=2).run(tmp_path / "run")
    costs, learner = results.costs, Learner(tmp_path / "run" / "model")
    weights = len(learner_theta(learner, 2))
    assert set(type(costs).model_fields) <= set(results.formulas)
    assert costs.replay_subjects == kept
    assert costs.replay_bytes == sum(row.kept.bytes for row in learner.stored()[:2])  # C, the unseen site, is not in it
    sentinels = [one for site in "AB" for one in learner.sentinels()[site]]
    assert costs.sentinel_subjects == len(sentinels) == 2
    assert costs.sentinel_bytes == sum(one.images.nbytes + one.labels.nbytes for one in sentinels)
    assert costs.state_bytes == (2 * 4 * weights if method == "ewc" else 0)
    assert costs.parameters == networks * weights
    assert set(costs.seconds) == set("ABC")
    known = 0.0 if method == "per-site" else None
    assert costs.plasticity["dsc"] == known


def test_costs_of_an_older_run_without_sentinels_are_read(data: Path, tmp_path: Path) -> None:
    results = tiny_stream(data, method="finetune", iterations=1).run(tmp_path / "run")
    tree = json.loads((tmp_path / "run" / "results.json").read_text())
    for key in ("sentinel_subjects", "sentinel_bytes"):
        del tree["costs"][key]
    (tmp_path / "run" / "results.json").write_text(json.dumps(tree))
    assert results.costs is not None
    nothing_known = results.costs.model_copy(update={"sentinel_subjects": None, "sentinel_bytes": None})
    assert read_results(tmp_path / "run").costs == nothing_known


def test_a_rounds_time_goes_on_counting_after_a_stop(data: Path, tmp_path: Path) -> None:
    def stop(iteration: int, step: Step) -> None:
        time.sleep(0.02)
        if iteration == 3 and not stopped:
            stopped.append(iteration)
            raise Stopped("as asked")

    stopped: list[int] = []
    learner = Learner.create(tmp_path / "model", config(method="jm"))
    with pytest.raises(Stopped):
        learner.learn(Site.find(data, "A"), on_step=stop)
    so_far = learner.store.resume()[1].seconds  # type: ignore[index]
    assert so_far >= 0.06
    assert learner.learn(Site.find(data, "A"), on_step=stop).seconds >= so_far + 0.02
