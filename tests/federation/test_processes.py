"""Rounds over real processes, with NVFLARE's relay between them and mutual TLS."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from smg.learner.config import LearnerConfig
from smg.learner.config_layers import configuration, from_words
from smg.learner.learner import Learner
from smg.sites.site import Site
from tests.conftest import write_site
from tests.federation.land import TINY, Processes
from tests.federation.test_round import distance, flat


def settings() -> LearnerConfig:
    return configuration(from_words(list(TINY)))


def central(folder: Path, names: list[str]) -> torch.Tensor:
    """Return the weights where every exemplar is in one folder."""
    learner = Learner.create(folder / "central", settings())
    for name in names:
        learner.learn(Site.find(folder / "data" / name), unguarded=True)
        learner = Learner(folder / "central")
    return flat(learner)


def test_a_round_over_processes(tmp_path: Path) -> None:
    """Two hospitals, a relay, two rounds: the weights are the centralised ones, and nothing listens to the outside."""
    names = ["Amber", "Birch"]
    for number, name in enumerate(names):
        write_site(tmp_path / "data" / name, 5, first_seed=10 * number)
    with Processes(tmp_path, names) as land:
        land.learn("Amber")
        land.learn("Birch")
        for process in land.look():
            with suppress(psutil.NoSuchProcess):  # the round's job is ending
                listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
                assert all(one.laddr.ip == "127.0.0.1" for one in listening)
        _strangers_are_refused(tmp_path)
    own = {name: Learner(tmp_path / name / "model") for name in names}
    assert torch.equal(flat(own["Amber"]), flat(own["Birch"]))
    assert distance(flat(own["Birch"]), central(tmp_path, names)) < 1e-3
    assert [list(own[name].replay()) for name in names] == [["Amber"], ["Birch"]]
    answers = [json.loads(line) for line in (tmp_path / "fed/Amber/answers.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "gradients" and line["answered"] for line in answers) >= 8  # two an iteration
    assert {line["caller"] for line in answers} == {"Birch"}
    assert not list((tmp_path / "fed").rglob("*.socket"))
    said = (tmp_path / "learn-Birch.log").read_text()
    assert said.index("4 iterations with 2 exchanges each") < said.index("round 2: Birch")
    assert "at other hospitals: Amber" in said


def _strangers_are_refused(folder: Path) -> None:
    """Somebody without a certificate of this federation gets no word out of the relay."""
    port = json.loads((folder / "fed/relay/federation.json").read_text())["port"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _a_word(port, context)


def _a_word(port: int, context: ssl.SSLContext) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secure:
        secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if word := secure.recv(100):
            return word
    raise ConnectionError
