"""What a bridge takes off PostgreSQL: NOTIFY to 100 psycopg listeners, or to 100 behind a bridge.

One server, started here, without fsync; each side in a database of its own, since PostgreSQL up
to 18 wakes every listener of a database.  The notifier is the same on both sides: one psycopg
connection, a transaction each, which waits for its answer.  Its rate counts its own time only, that
of the deliveries until the last listener has everything.  The server's processor time is that of
all its processes until then; what listeners, and the bridge, spend is in neither.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pynotify
import pynotify.bridge
from bench.pairs import alternate
from bench.peer import PAYLOAD_BYTES, Peer, Receiver, payload
from bench.peers.postgres import CHANNEL, Postgres, connect
from bench.rig import Child, Rig
from bench.server import Server, find_programs
from bench.settings import Settings

TOPIC = "bridge"

_LISTENERS = 100
_MESSAGES = 2_000
_PAIRS = 7
_DATABASES = ("direct", "bridged")
_AGAINST = f"{_LISTENERS} psycopg listeners"
_NAME = f"PostgreSQL NOTIFY to {_LISTENERS} listeners, through a bridge"


def run(settings: Settings) -> None:
    """Nothing where there is no PostgreSQL."""
    programs = find_programs()
    if programs is None:
        print("bridge: not measured, as there is no PostgreSQL server")
        return
    messages = settings.messages(_MESSAGES)
    with ExitStack() as stack:
        server = stack.enter_context(Server(programs))
        with connect(server.dsn()) as conn:
            for database in _DATABASES:
                conn.execute(f"CREATE DATABASE {database}")
        peers: list[Peer] = [
            Bridged(settings.directory, server.dsn("bridged")),
            Postgres(settings.directory, server.dsn("direct")),
        ]
        rigs = [stack.enter_context(Rig(peer, listeners=_LISTENERS)) for peer in peers]
        passes = [_Passes(rig, server, messages) for rig in rigs]
        deliveries = alternate([each.run for each in passes], settings.pairs(_PAIRS))
    ours, theirs = passes
    rows: list[tuple[str, str, list[float], list[float]]] = [
        ("", "deliveries/s", deliveries[0], deliveries[1]),
        (", the notifier", "transactions/s", ours.sent[1:], theirs.sent[1:]),
        (", the server's processor", "us/transaction", ours.cpu[1:], theirs.cpu[1:]),
    ]
    for what, unit, our_values, their_values in rows:
        settings.compare(TOPIC, _NAME + what, unit, our_values, their_values, against=_AGAINST)


class _Passes:
    """The passes of one rig, with what else is known of each; the first is a warm-up."""

    def __init__(self, rig: Rig, server: Server, messages: int) -> None:
        self._rig = rig
        self._server = server
        self._messages = messages
        self.sent: list[float] = []
        self.cpu: list[float] = []

    def run(self) -> float:
        before = self._server.cpu_seconds()
        deliveries = self._rig.rate(self._messages)
        self.sent.append(self._rig.sending_rate)
        self.cpu.append((self._server.cpu_seconds() - before) / self._messages * 1e6)
        return deliveries


class Bridged(Postgres):
    """The listeners of this peer are local: one bridge listens for all."""

    name = "PostgreSQL NOTIFY through a bridge"

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, dsn)
        self._segment = f"bench-bridge-{os.getpid()}"

    def prepare(self) -> None:
        self._engine = pynotify.open(self._segment, on_full="block")
        bridge = Child(partial(_be_the_bridge, self._segment, self._dsn))
        bridge.answer()
        self._bridge = bridge.process

    def receiver(self) -> Receiver:
        return _LocalListener(self._engine)

    def dispose(self) -> None:
        self._bridge.terminate()
        self._bridge.join()
        self._engine.close()
        pynotify.unlink(self._segment, force=True)


def _be_the_bridge(segment: str, dsn: str, pipe: Connection) -> None:
    with pynotify.bridge.PostgresBridge(segment, channels=[CHANNEL], conninfo=dsn) as bridge:
        pipe.send("ready")
        bridge.run()


class _LocalListener(Receiver):
    def __init__(self, engine: pynotify.Engine) -> None:
        conn = engine.connect()
        super().__init__(conn.close)
        conn.listen(CHANNEL, wait_upstream=True)
        self._notifies = conn.notifies

    def stream(self) -> Iterator[bytes]:
        rest = payload(0)[72:]
        for note in self._notifies():
            assert isinstance(note, pynotify.Notify), note
            assert len(note.data) == PAYLOAD_BYTES
            yield base64.b64decode(note.payload[:96]) + rest
