"""One person is forgotten: nothing of theirs is left in any round, everything else is, and the model goes on."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import smg.learner.store
from smg.errors import SmgError
from smg.learner.config import LearnerConfig
from smg.learner.exemplars import alias
from smg.learner.forget import EVENT, Person, find, forget, person_of
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.store import Store
from smg.learner.verify import verify
from smg.prepare.cache import cache_folder
from smg.prepare.prepared_site import prepare_site
from smg.sites.site import Site
from tests.learner.streams import TINY, fingerprint, write_sites


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sites A, B and C, and a model of der++ with a style memory that has learned A, B, and A again."""
    folder = write_sites(tmp_path_factory.mktemp("sites"))
    config = LearnerConfig.model_validate(TINY | {"method": "der++", "memory": "style"})
    learner = Learner.create(folder / "model", config)
    for name in "ABA":
        learner.learn(Site.find(folder, name), again=True)
    return folder


@pytest.fixture
def desk(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "desk")
    return tmp_path / "desk"


def by_case(model: Path, site: str = "A") -> dict[str, str]:
    """Return the pseudonyms of a site's cases."""
    seed = History(model).record(1).config.seed
    return {case: alias(seed, site, case) for case in (f"Case{n:02d}" for n in range(4))}


def one_of(model: Path, part: str, site: str = "A") -> tuple[str, str]:
    """Return a case of a site in this part, and its pseudonym."""
    names = dict(History(model).records_of(site)[0].parts)[part]
    return next((case, name) for case, name in by_case(model, site).items() if name in names)


def without_journal(model: Path) -> bytes:
    """Return all bytes of a model but for its journal."""
    return b"".join(p.read_bytes() for p in sorted(model.rglob("*")) if p.is_file() and p.name != "journal.jsonl")


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("by", ["name", "pseudonym"])
def test_no_round_keeps_anything_of_the_person_and_everything_of_others(part: str, by: str, desk: Path) -> None:
    model = desk / "model"
    case, name = one_of(model, part)
    before = {number: History(model).record(number) for number in (1, 2, 3)}
    assert name.encode() in without_journal(model)
    removed = forget(History(model), Person(case if by == "name" else name, "A"))
    assert name.encode() not in without_journal(model)
    for other in by_case(model).values():
        if other != name:
            assert other.encode() in without_journal(model)
    for number, then in before.items():
        now = History(model).record(number)
        assert now.files["weights.safetensors"] == then.files["weights.safetensors"]
        assert now.replaced == {}
    assert removed.trained == ((1, 3) if part == "train" else ())
    assert removed.later == ((2,) if part == "train" else ())
    assert removed.spectra == (("A",) if part == "train" else ())
    kinds = {"train": "exemplar and stored outputs", "validation": "sentinel", "test": "test metrics"}
    assert [kinds[part] in one.said for one in removed.rounds if one.round != 2] == [True, True]
    assert not verify(model).faults


def test_rows_of_other_candidates_keep_their_scores(desk: Path) -> None:
    model = desk / "model"
    case, name = one_of(model, "train")
    then = History(model).record(1).selection
    forget(History(model), Person(case, "A"))
    now = History(model).record(1).selection
    stays = [place for place, one in enumerate(then.candidates) if one != name]
    for key in ("candidates", "R", "V", "H", "features"):
        assert getattr(now, key) == tuple(getattr(then, key)[place] for place in stays)


def test_arrays_of_a_state_that_are_named_for_the_person_go(desk: Path) -> None:
    model = desk / "model"
    case, name = one_of(model, "test")
    store, record = Store(model), Store(model).read_round(2)
    with store.locked():
        files = record.files | {"state.safetensors": smg.learner.store.EMPTY}
        (model / "rounds/002/state.safetensors").write_bytes(b"\x08" + bytes(7) + b"{}      ")
        store.replace_record(record.model_copy(update={"files": files}))
        store.replace_tensors(2, "state", {f"A/{name}/mean": torch.ones(2), "A/mean": torch.zeros(2)})
    removed = forget(History(model), Person(case, "A"))
    assert "arrays of the method's state" in next(one for one in removed.rounds if one.round == 2).said
    assert set(store.read_tensors(2, "state")) == {"A/mean"}


def test_a_name_at_two_sites_and_a_name_nobody_has(desk: Path) -> None:
    model, before = desk / "model", without_journal(desk / "model")
    with pytest.raises(SmgError, match="was learned at A, B; --site says which one is meant"):
        forget(History(model), Person("Case00"))
    for nobody in (Person("Case77"), Person("Case00", "C"), Person(""), *map(Person, ("0000", "images", "A"))):
        with pytest.raises(SmgError, match="nothing is kept of this person"):
            forget(History(model), nobody)
    assert without_journal(model) == before
    forget(History(model), Person("Case00", "A"))
    forget(History(model), Person("Case00"))  # only B has one now
    with pytest.raises(SmgError, match="nothing is kept of this person"):
        forget(History(model), Person("Case00"))


def test_by_the_scan_its_hashes_and_cached_copies_go_too(desk: Path) -> None:
    """Not those of a scan of the same name at another site, nor by another scan under this name."""
    model, scan = desk / "model", desk / "A" / "Case01.nii.gz"
    for name in "AB":
        prepare_site(Site.find(desk, name), Learner(model).config.preparation)
    assert len(list(cache_folder().glob("*.safetensors"))) == 8
    unknown = desk / "unknown" / "Case01.nii.gz"
    unknown.parent.mkdir()
    shutil.copy(desk / "C" / "Case01.nii.gz", unknown)
    with pytest.raises(SmgError, match="nothing is kept of this person"):
        forget(History(model), person_of(None, [unknown]))
    other = History(model).record(2)
    hashes = set(History(model).record(1).scans)
    removed = forget(History(model), person_of(None, [scan]))
    assert len(removed.cached) == 1
    assert len(list(cache_folder().glob("*.safetensors"))) == 7
    assert len(hashes - set(History(model).record(1).scans)) in (1, 2)  # as stored, and turned
    assert by_case(model)["Case01"].encode() not in without_journal(model)
    assert History(model).record(2).parts == other.parts
    with pytest.raises(SmgError, match="nothing is kept of this person"):
        find(History(model), person_of(None, [scan]))


def test_hashes_go_when_the_scan_is_given_later(desk: Path) -> None:
    model = desk / "model"
    assert forget(History(model), Person("Case01", "A")).hashes_stay
    scan = desk / "A" / "Case01.nii.gz"
    with pytest.raises(SmgError, match="give the name too, with --case, also if only the scan's hash is left"):
        forget(History(model), person_of(None, [scan]))
    later = forget(History(model), person_of("Case01", [scan]))
    assert [one.said for one in later.rounds] == [("hashes of the scan",)] * 2


def test_a_scan_under_nnunets_name_finds_its_case(desk: Path) -> None:
    model, renamed = desk / "model", desk / "Case01_0000.nii.gz"
    shutil.copy(desk / "A" / "Case01.nii.gz", renamed)
    removed = forget(History(model), person_of(None, [renamed]))
    assert all("part" in one.said and "hashes of the scan" in one.said for one in removed.rounds)
    assert by_case(model)["Case01"].encode() not in without_journal(model)


def test_a_scan_under_another_name_is_not_forgotten_by_half(desk: Path) -> None:
    model, renamed = desk / "model", desk / "export.nii.gz"
    case, name = one_of(model, "train")
    shutil.copy(desk / "A" / f"{case}.nii.gz", renamed)
    before = fingerprint(model)
    with pytest.raises(SmgError, match="knows this scan, of site A, but by another case name than its file's"):
        forget(History(model), person_of(None, [renamed]))
    assert fingerprint(model) == before
    forget(History(model), person_of(case, [renamed]))
    assert name.encode() not in without_journal(model)


def test_a_scan_under_its_own_name_is_not_forgotten_by_half_for_a_mistyped_case(desk: Path) -> None:
    model = desk / "model"
    case, name = one_of(model, "train")
    scan = desk / "A" / f"{case}.nii.gz"
    before = fingerprint(model)
    with pytest.raises(
        SmgError, match="knows this scan, of site A, by its file's name; correct --case, or leave it out"
    ) as no:
        forget(History(model), person_of("Case99", [scan]))
    assert case not in str(no.value)
    assert fingerprint(model) == before
    forget(History(model), person_of(case, [scan]))
    assert name.encode() not in without_journal(model)


def test_the_journal_notes_it_without_a_name(desk: Path) -> None:
    model = desk / "model"
    case, name = one_of(model, "train")
    before = len((model / "journal.jsonl").read_bytes())
    forget(History(model), Person(case, "A"))
    added = (model / "journal.jsonl").read_bytes()[before:]
    assert name.encode() not in added
    assert case.encode() not in added
    (line,) = [one for one in Store(model).journal() if one.event == EVENT]
    assert line.details() == {"rounds": [1, 3]}


@pytest.mark.parametrize("by", ["case", "scan"])
def test_killed_at_any_write_it_opens_and_is_run_again_to_the_same_end(by: str, desk: Path, tmp_path: Path) -> None:
    """By case an exemplar of A; by scan the sentinel of B, which a later round of A has scored."""
    whole = tmp_path / "whole"
    shutil.copytree(desk / "model", whole)
    if by == "case":
        person = Person(one_of(whole, "train")[0], "A")
    else:
        person = person_of(None, [desk / "B" / f"{one_of(whole, 'validation', 'B')[0]}.nii.gz"])
        assert any("sentinel scores" in one.said for one in find(History(whole), person).rounds if one.round == 3)
    forget(History(whole), person)
    moments = 0
    for fatal in range(1, 99):
        model = tmp_path / f"killed-{fatal}"
        shutil.copytree(desk / "model", model)
        with pytest.MonkeyPatch.context() as patch:
            died = _die_at(fatal, patch)
            try:
                forget(History(model), person)
            except KeyboardInterrupt:
                moments += 1
        assert bool(died) == (fatal == moments)
        assert [one.fault for one in History(model).rounds()] == [None] * 3
        assert not verify(model).faults
        Learner(model).versions.replay()
        if not died:
            break
        with contextlib.suppress(SmgError):  # after the last write nothing is found
            forget(History(model), person)
        assert fingerprint(model) == fingerprint(whole)
        assert not verify(model).faults
        assert any(line.event == EVENT for line in Store(model).journal())
    assert moments > 10


def _die_at(fatal: int, patch: pytest.MonkeyPatch) -> list[bool]:
    """Stop at the n-th write of a record, of arrays or of the journal: before it or after it."""
    left, died = [fatal], []

    def pass_by() -> None:
        left[0] -= 1
        if left[0] == 0:
            died.append(True)
            raise KeyboardInterrupt

    for name in ("write_record", "write_pieces", "append_line"):
        original = getattr(smg.learner.store, name)

        def watched(*args: Any, original: Any = original, **more: Any) -> None:
            pass_by()
            original(*args, **more)
            pass_by()

        patch.setattr(smg.learner.store, name, watched)
    return died


def test_the_next_round_works_and_the_guard_says_what_it_cannot_measure(desk: Path) -> None:
    """One exemplar of A is left, then none; its sentinel is gone."""
    model = desk / "model"
    train = [case for case, name in by_case(model).items() if name in History(model).record(1).parts.train]
    for case in (train[0], one_of(model, "validation")[0]):
        forget(History(model), Person(case, "A"))
    assert History(model).kept(3).subjects == 1
    learner = Learner(model)
    learner.learn(Site.find(desk, "C"))
    record = History(model).record(4)
    assert record.guard is not None
    assert record.guard.sites["A"].evidence == "none"
    assert record.guard.sites["B"].measured
    assert record.held
    assert any("A was not measured" in reason for reason in record.guard.reasons)
    forget(History(model), Person(train[1], "A"))
    assert History(model).kept(3).subjects == 0
    Learner(model).learn(Site.find(desk, "C"), again=True)
    assert History(model).record(5).earlier.keys() == {"B"}
    assert not verify(model).faults


def test_not_while_a_round_is_under_way(desk: Path) -> None:
    model = desk / "model"
    (model / "progress").mkdir()
    (model / "progress" / f"{'0' * 32}.safetensors").write_bytes(b"")
    with pytest.raises(SmgError, match=r"a round is under way.*`smg abandon"):
        forget(History(model), Person("Case00", "A"))


def test_without_the_secret_only_the_pseudonym_finds_them(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = desk / "model"
    case, name = one_of(model, "train")
    monkeypatch.setenv("SMG_SECRET", str(desk / "another"))
    with pytest.raises(SmgError, match="without the secret of its pseudonyms"):
        forget(History(model), Person(case, "A"))
    forget(History(model), Person(name))
    assert name not in json.dumps([History(model).record(n).model_dump(mode="json") for n in (1, 2, 3)])
