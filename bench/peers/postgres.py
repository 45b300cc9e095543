"""PostgreSQL's own LISTEN/NOTIFY through psycopg 3; only when a DSN is given."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peer import PAYLOAD_BYTES, Peer, Receiver, Sender, payload

CHANNEL = "bench"


def _encode(data: bytes) -> str:
    """Its payloads are text: the number as it is, the rest stands for itself."""
    return base64.b64encode(data[:72]).decode("ascii") + "=" * 4


class Postgres(Peer):
    """pg_notify(), autocommit: a transaction each.  The payload is text of the same length."""

    name = "PostgreSQL NOTIFY"

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory)
        self._dsn = dsn

    def sender(self) -> Sender:
        return _Notifier(self._dsn)

    def receiver(self) -> Receiver:
        return _Listener(self._dsn)


def connect(dsn: str) -> Any:
    """In autocommit."""
    return importlib.import_module("psycopg").connect(dsn, autocommit=True)


class _Notifier(Sender):
    def __init__(self, dsn: str) -> None:
        super().__init__(self._notify)
        self._conn = connect(dsn)

    def _notify(self, data: bytes) -> None:
        self._conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, _encode(data)), prepare=True)


class _Listener(Receiver):
    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._conn = connect(dsn)
        self._conn.execute(f"LISTEN {CHANNEL}")

    def stream(self) -> Iterator[bytes]:
        rest = payload(0)[72:]
        for notify in self._conn.notifies():
            assert len(notify.payload) == PAYLOAD_BYTES
            yield base64.b64decode(notify.payload[:96]) + rest
