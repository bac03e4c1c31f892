"""What a hospital answers, what it refuses, and what it writes down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from torch import nn

from smg.errors import Misuse, SmgError
from smg.federation.hospital import refuse_coupled_rows
from smg.federation.kit import Kit, provision
from smg.federation.limits import Audit, Limits
from smg.federation.messages import DTYPES, Ask, Message, Query, Sums, Terms
from smg.federation.privacy import Noise
from smg.federation.roster import Roster
from smg.federation.transport import InProcess, Refused
from smg.gradients.oracle import Oracle
from smg.methods import METHODS
from smg.prepare.batches import Batch
from tests.federation.toy_hospitals import central, elsewhere, federated, kept_at, toy_hospital, toy_terms
from tests.toys import smooth_network


def asking(theta: torch.Tensor, *rows: tuple[int, int], loss: str = "") -> bytes:
    return Ask((0, 1, 0), True, (theta,), (Query(0, rows, loss),)).message().to_bytes()


def test_messages_survive_the_way() -> None:
    theta = torch.randn(7, dtype=torch.float64)
    ask = Ask((3, 1, 4), False, (theta, theta[:0]), (Query(0, ((5, 9), (2, 6)), "distance"), Query(1, ())))
    again = Ask.of(Message.from_bytes(ask.message().to_bytes()))
    assert (again.place, again.augmented, again.queries) == (ask.place, ask.augmented, ask.queries)
    assert all(torch.equal(a, b) for a, b in zip(again.thetas, ask.thetas, strict=True))
    sums = Sums((theta, 2 * theta), (theta[0], theta[1]))
    back = Sums.of(Message.from_bytes(sums.message().to_bytes()))
    assert torch.equal(back.gradients[1], 2 * theta)
    assert back.losses[1] == theta[1]
    with pytest.raises(SmgError, match="not smg's"):
        Message.from_bytes(b"anything else")


def test_every_kind_of_tensor_survives_as_in_a_file_of_safetensors() -> None:
    kinds = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in DTYPES}
    odd = {
        "transposed": torch.randn(3, 5).T,
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
        "shared": kinds["torch.int8"],
    }
    data = Message("any", {"ε": [1, None]}, kinds | odd).to_bytes()
    again = Message.from_bytes(data)
    assert again.facts == {"ε": [1, None]}
    for name, tensor in (kinds | odd).items():
        assert again.tensors[name].dtype == tensor.dtype
        assert again.tensors[name].shape == tensor.shape
        assert torch.equal(again.tensors[name], tensor)
    assert set(load(data)) == set(kinds | odd)


@pytest.mark.parametrize(
    "changed",
    [{"smg": "0"}, {"torch": "1"}, {"network": "x"}, {"preparation": "x"}, {"augmentation": "x"}, {"seed": 1}],
)
def test_a_hospital_that_computes_otherwise_is_not_joined(changed: dict[str, object]) -> None:
    roster = Roster(InProcess({"Amber": toy_hospital("Amber", 0)}))
    with pytest.raises(Refused, match=f"{next(iter(changed))} .*make them equal"):
        roster.greet(["Amber"], toy_terms(**changed))
    assert roster.greet(["Amber"], toy_terms())["Amber"].rows == len(kept_at(0))


def test_limits_of_rows_rate_and_budget(tmp_path: Path) -> None:
    audit = tmp_path / "answers.jsonl"
    limits = Limits(least_rows=2, budget=3)
    hospital = toy_hospital("Amber", 0, limits=limits, audit=Audit(audit))
    roster = Roster(InProcess({"Amber": hospital}))
    theta = hospital.oracle.theta.clone()

    def ask(*rows: tuple[int, int]) -> Message:
        return roster.answer("Amber", roster.way.ask("Amber", asking(theta, *rows)))

    with pytest.raises(Refused, match="no fewer than 2 slices"):
        ask((0, 0))
    with pytest.raises(Refused, match="no fewer than 2 slices, and was asked for 1"):
        ask((0, 0), (0, 1))  # one slice at two places
    for _ in range(3):
        assert ask((0, 0), (1, 1)).kind == "sums"
    with pytest.raises(Refused, match="of the 3 answers that it allows"):
        ask((0, 0), (1, 1))
    again = toy_hospital("Amber", 0, limits=limits, audit=Audit(audit))  # a restart does not give the budget back
    roster.way = InProcess({"Amber": again})
    with pytest.raises(Refused, match="of the 3 answers that it allows"):
        ask((0, 0), (1, 1))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["answered"] for line in lines] == [False, False, True, True, True, False, False]
    assert lines[2]["rows"] == [2]
    assert lines[2]["iteration"] == 0
    slow = toy_hospital("Amber", 0, limits=Limits(a_minute=1))
    roster.way = InProcess({"Amber": slow})
    ask((0, 0))
    with pytest.raises(SmgError, match="1 answers a minute"):
        ask((0, 0))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"noise": 4}, "each needs the other"),
        ({"clip": 1.0}, "each needs the other"),
        ({"clip": 1.0, "noise": 0}, "noise is 0; give a number above zero"),
        ({"least_rows": "3"}, "least_rows is '3'; give a whole number"),
        ({"budget": -1}, "budget is -1"),
        ({"least_rows": None}, "least_rows is None; give a whole number"),
        ({"delta": None}, "delta is None; give a number above zero and below 1"),
        ({"delta": 2.0}, "delta is 2.0; give a number above zero and below 1"),
    ],
)
def test_limits_that_would_not_limit_are_refused(limits: dict[str, object], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text(json.dumps(limits))
    with pytest.raises(SmgError, match=f"limits.json: .*{sentence}"):
        Kit(tmp_path, "Amber", ("Amber", "Birch"), "localhost", 8002).limits()


def test_gradients_in_the_log_of_an_older_version_count_one_by_one(tmp_path: Path) -> None:
    lines = [{"answered": True, "rows": [5, 5, 0, 5]}, {"answered": True}, {"answered": False, "rows": [5]}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Audit(tmp_path / "answers.jsonl").answered == 3 + 1


def test_one_slice_moves_an_answer_by_clip_however_often_it_is_asked_for() -> None:
    noise, oracle = Noise(1e-3, 1e-9), Oracle(smooth_network())
    batches = central()
    once = Batch("asked", ((0, 1, 0),), batches)
    often = Batch("asked", tuple((0, 1, place) for place in range(20)), batches)
    theta = oracle.theta.clone()
    assert float(noise.summed(oracle, theta, once)[0].norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(noise.summed(oracle, theta, often)[0].norm()) == pytest.approx(1e-3, rel=1e-3)


def test_each_gradient_of_a_message_is_an_answer(tmp_path: Path) -> None:
    audit = tmp_path / "answers.jsonl"
    hospital = toy_hospital("Amber", 0, limits=Limits(budget=5, a_minute=4), audit=Audit(audit))
    theta = hospital.oracle.theta.clone()

    def ask(count: int) -> Message:
        queries = tuple(Query(0, ((0, 0),)) for _ in range(count))
        return Message.from_bytes(hospital("Birch", Ask((0, 1, 0), True, (theta,), queries).message().to_bytes()))

    assert ask(3).kind == "sums"
    assert Audit(audit).answered == 3
    later = ask(2)
    assert "allows 4 answers a minute; go on later" in later.facts["why"]
    assert later.facts["later"]
    assert "has given 3 of the 5 answers that it allows" in ask(3).facts["why"]
    hospital = toy_hospital("Amber", 0, limits=Limits(a_minute=1))
    never = ask(2)
    assert "allows 1 answers a minute; this method asks 2 at once" in never.facts["why"]
    assert not never.facts["later"]


@pytest.mark.parametrize(
    ("hospitals", "host", "sentence"),
    [
        (["A", "a"], "localhost", "differ in nothing but capitals"),
        (["A", "B"], "relay.example.org:8002", "not a host's name"),
        (["A", "B"], "relay_1", "not a host's name"),
        (["A", "B"], "b", "or a hospital's"),
    ],
)
def test_names_that_a_federation_cannot_have(hospitals: list[str], host: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=sentence):
        provision(tmp_path / "federation", hospitals, host)
    assert list(tmp_path.iterdir()) == []


def test_rows_losses_and_weights_that_are_not_there() -> None:
    hospital = toy_hospital("Amber", 0)
    roster = Roster(InProcess({"Amber": hospital}))
    theta = hospital.oracle.theta.clone()
    for question, why in (
        (asking(theta, (99, 0)), "a row that it does not have"),
        (asking(theta, (0, 0), loss="mine"), "does not know the loss"),
        (asking(theta[:-1], (0, 0)), "weights; send as many"),
        (Message("run my code").to_bytes(), "no question of kind"),
        (b"GET / HTTP/1.1", "not smg's"),
    ):
        with pytest.raises(Refused, match=why):
            roster.answer("Amber", roster.way.ask("Amber", question))


def test_coupled_rows_are_refused() -> None:
    for module, why in ((nn.BatchNorm2d(3), "batch norm"), (nn.Dropout2d(0.1), "drops activations")):
        with pytest.raises(SmgError, match=why):
            refuse_coupled_rows(nn.Sequential(nn.Conv2d(1, 3, 3), module))
    refuse_coupled_rows(nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.Dropout(0.0)))


def test_nothing_that_left_a_hospital_holds_a_pixel_or_a_name() -> None:
    """Every message is looked through for runs of four of the hospital's pixels, as float32 or float64, and names."""
    far, way = federated(keeps=True)
    for name in ("sga", "der++", "gem"):
        far.at(0, 1, 0)
        METHODS[name]().direction(far.theta, far, elsewhere())
    left = [(sender, data) for sender, _, data in way.traffic.messages if sender != way.me]
    assert len(left) >= 6
    for sender, data in left:
        subjects = kept_at(("Amber", "Birch").index(sender)).subjects
        assert not set(pixels(subjects)) & {data[i : i + 16] for i in range(0, len(data) - 15)}
        for word in (b"Case", b"/", b".nii", str(Path.home()).encode()):
            assert word not in data[: 8 + int.from_bytes(data[:8], "little")]


def pixels(subjects: object) -> list[bytes]:
    """Return every run of 16 bytes of the images' pixels, in single and double precision, from every pixel on."""
    found = []
    for subject in subjects:  # type: ignore[attr-defined]
        for kind, step in ((torch.float32, 4), (torch.float64, 8)):
            raw = subject.images.to(kind).numpy().tobytes()
            found += [raw[i : i + 16] for i in range(0, len(raw) - 15, step)]
    return found


def test_terms_name_what_differs() -> None:
    assert toy_terms().differences(toy_terms(seed=3, loss="other")) == ["loss", "seed"]
    assert isinstance(toy_terms(), Terms)
