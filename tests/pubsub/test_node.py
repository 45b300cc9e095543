"""Interoperability: a peer in JavaScript, on node-postgres, through a real PostgreSQL.

The peer (tests/pubsub/node/peer.js) shares nothing with ours but the vectors.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, random_objects, take
from pubsub.server import Server
from pubsub.vectors import HEARD, PATH, SENT, USUAL, as_received
from pynotify.pubsub._format import NOTHING
from receiving import PATIENCE, readable
from requirement import require

HERE = Path(__file__).resolve().parent / "node"
SIZES = [0, 1, 7_998, 7_999, 8_000, 8_001, 1 << 20]
MARKED = "L'été: \"ça\" \\ 'x' $$ 日本語 😀"


class Peer:
    """A node process that one talks to by lines."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(HERE / "peer.js"), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def line(self) -> str:
        assert self._process.stdout is not None
        assert readable(self._process.stdout.fileno(), PATIENCE)
        return self._process.stdout.readline().strip()

    def end(self) -> str:
        out, _ = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0
        return out

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def peer() -> Iterator[Any]:
    require("node")
    if not (HERE / "node_modules" / "pg").exists():
        require("node-postgres", "`make node-peer` installs it, with npm")
    peers: list[Peer] = []

    def start(*command: str) -> Peer:
        peers.append(Peer(*command))
        return peers[-1]

    yield start
    for running in peers:
        running.kill()


def as_value(obj: object) -> dict[str, Any]:
    """As in the vectors."""
    if obj is NOTHING:
        return {"none": True}
    if isinstance(obj, bytes):
        return {"bytes": obj.hex()}
    return {"text": obj} if isinstance(obj, str) else {"json": obj}


def of_all_sizes() -> list[Any]:
    return [
        *("x" * size for size in SIZES),
        *(os.urandom(size) for size in SIZES),
        *(bytes(size) for size in SIZES),
        *({"a": "x" * size, "é": [size]} for size in SIZES),
        *("é" * (size // 2) for size in SIZES),
        MARKED, {MARKED: [MARKED, None, True, 1.5, -1e-7]}, [], {}, 0, False, NOTHING,
    ]  # fmt: skip


def test_the_peer_agrees_with_every_vector(peer: Any) -> None:
    found = json.loads(peer("vectors", str(PATH)).end())
    assert found == {"held": 2 * len(SENT) + len(HEARD), "wrong": []}


@pytest.fixture
def pubsub(postgres: Server, new_pubsub: NewPubSub) -> Iterator[pynotify.PubSub]:
    with postgres.connect() as conn:
        yield new_pubsub(conn)


CASES = {
    "vectors": [row.obj for row in USUAL],
    "sizes": of_all_sizes(),
    "random": random_objects(1000),
}


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(
    peer: Any, postgres: Server, pubsub: pynotify.PubSub, channel: str, case: str
) -> None:
    """What we send arrives at the peer, and what it makes of it comes back."""
    there, back = f"{channel[:50]} there", f"{channel[:50]} 'back\""
    pubsub.subscribe(back)
    echo = peer("echo", postgres.dsn, there, back)
    assert echo.line() == "ready"
    for obj in CASES[case]:
        pubsub.publish(there, obj)
        (received,) = take(pubsub, 1)
        assert received.obj == as_received(obj)
        assert type(received.obj) in (type(as_received(obj)), int)  # 1.0 is 1 there
    pubsub.publish(there, "end")
    assert json.loads(echo.line()) == {"malformed": 0}
    echo.end()
    assert pubsub.stats().malformed == 0


@pytest.mark.parametrize("case", CASES)
def test_what_the_peer_sends_arrives(
    peer: Any, postgres: Server, pubsub: pynotify.PubSub, channel: str, case: str
) -> None:
    """Objects that it has never had from us."""
    pubsub.subscribe(channel)
    sender = peer("send", postgres.dsn, channel)
    for obj in CASES[case]:
        sender.write(json.dumps(as_value(obj)))
        assert objects(take(pubsub, 1)) == [as_received(obj)]
    sender.end()
    assert pubsub.stats().malformed == 0
