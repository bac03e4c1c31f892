"""Another key for an encrypted model: whole or not at all, whenever the change is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smg.errors import SmgError
from smg.files import safetensors_header
from smg.learner.history import History
from smg.learner.learner import Learner
from smg.learner.rekey import EVENT, change_key
from smg.learner.store import Store
from smg.learner.verify import verify
from smg.sites.site import Site
from smg.vault.key import Key
from tests.learner.encrypted import (
    KEY,
    OTHER,
    SEALED,
    THIRD,
    assert_same_content,
    entries,
    killed_at_every_write,
)

pytestmark = pytest.mark.usefixtures("no_key_at_hand")


@pytest.mark.parametrize("again", [False, True])
def test_a_new_key_opens_everything_and_the_old_one_nothing(again: bool, sealed_desk: Path) -> None:
    before = {path: path.read_bytes() for path in (sealed_desk / "model").rglob("*.safetensors")}
    learner = Learner(sealed_desk / "model", key=KEY)
    learner.change_key(OTHER, again)
    assert_same_content(sealed_desk / "model", OTHER, sealed_desk / "plain", None, *SEALED)
    assert list(learner.replay()) == ["A", "B"]  # with the same object
    with pytest.raises(SmgError, match="not encrypted by this key"):
        Learner(sealed_desk / "model", key=KEY).replay()
    changed = {path.stem for path, data in before.items() if path.read_bytes() != data}
    assert changed == (set(SEALED) if again else set())
    assert bool(entries(sealed_desk)) != again  # entries under the old data key are of no use any more
    assert not verify(sealed_desk / "model").faults
    lines = [line for line in Store(sealed_desk / "model").journal() if line.event == EVENT]
    assert [line.details()["files"] for line in lines] == [8 if again else 0]
    assert Store(sealed_desk / "model", OTHER).vault is not None
    learner.change_key(OTHER)  # nothing to do, and nothing noted
    assert len([line for line in Store(sealed_desk / "model").journal() if line.event == EVENT]) == 1


def test_a_plain_model_has_no_key_to_change(sealed_desk: Path) -> None:
    with pytest.raises(SmgError, match="plain: not encrypted"):
        Learner(sealed_desk / "plain").change_key(OTHER)


@pytest.mark.parametrize(("again", "step"), [(False, 1), (True, 13), pytest.param(True, 1, marks=pytest.mark.long)])
def test_a_change_killed_at_any_write_loses_nothing_and_goes_on(again: bool, step: int, sealed_desk: Path) -> None:
    moments = 0
    for fatal, model in killed_at_every_write(sealed_desk, again, step):
        moments += 1
        assert not [fault for fault in verify(model).faults if "journal" not in fault], fatal
        record = History(model).model.encryption
        assert record is not None
        old_opens, new_opens = (bool(_opens(model, key)) for key in (KEY, OTHER))
        assert old_opens or new_opens
        if record.changing_to:  # on the way both do
            assert old_opens
            assert new_opens
        key = KEY if old_opens else OTHER
        assert_same_content(model, key, sealed_desk / "plain", None, *SEALED)
        if again and record.changing_to:
            with pytest.raises(SmgError, match="a change to another key"):
                change_key(History(model, KEY), THIRD)
        change_key(History(model, KEY), OTHER, again)
        assert_same_content(model, OTHER, sealed_desk / "plain", None, *SEALED)
        assert not _opens(model, KEY)
        assert not verify(model).faults
        lines = [line for line in Store(model).journal() if line.event == EVENT]
        assert [line.details()["files"] for line in lines] == [8 if again else 0]  # all, whichever process did them
        final = History(model).model.encryption
        assert final is not None
        assert len(final.keys) == 1
        for path in model.glob("rounds/*/*.safetensors"):
            metadata = safetensors_header(path)[1]
            assert path.stem == "weights" or final.current in metadata["sealed"]
        shutil.rmtree(model)
    assert moments > 6


def _opens(model: Path, key: Key) -> bool:
    try:
        return bool(Learner(model, key=key).replay())
    except SmgError:
        return False


def test_a_model_half_changed_goes_on_learning_with_either_key(sealed_desk: Path) -> None:
    changing = next(
        model
        for _, model in killed_at_every_write(sealed_desk, True, step=20)
        if History(model).model.encryption.changing_to  # type: ignore[union-attr]
    )
    Learner(changing, key=KEY).learn(Site.find(sealed_desk, "C"), unguarded=True)
    Learner(sealed_desk / "plain").learn(Site.find(sealed_desk, "C"), unguarded=True)
    assert_same_content(changing, OTHER, sealed_desk / "plain", None, *SEALED)
    change_key(History(changing, OTHER), OTHER, again=True)
    assert_same_content(changing, OTHER, sealed_desk / "plain", None, *SEALED)
    assert not _opens(changing, KEY)
