"""A client of PostgreSQL's protocol 3.0 that sends what it is told to, right or wrong.

Drivers do not say everything that the protocol allows, nor show all that a server answers.  An
answer here is a list of tuples, one for each message: its type, and its fields.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from receiving import PATIENCE

Answer = tuple[Any, ...]
PROTOCOL = 3 << 16
CANCEL, SSL, GSS = (1234 << 16 | number for number in (5678, 5679, 5680))
#: Of reports, those that say what happened; the others name files and lines of a server.
REPORTED = "SVCMDHP"


class Notification(NamedTuple):
    pid: int
    channel: str
    payload: str


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def query(sql: str) -> bytes:
    return message("Q", text(sql))


def parse(sql: str, name: str = "", types: tuple[int, ...] = ()) -> bytes:
    oids = struct.pack(f"!H{len(types)}I", len(types), *types)
    return message("P", text(name) + text(sql) + oids)


def bind(
    *values: str | bytes | None,
    portal: str = "",
    name: str = "",
    formats: tuple[int, ...] = (),
    results: tuple[int, ...] = (),
) -> bytes:
    body = text(portal) + text(name) + struct.pack(f"!H{len(formats)}H", len(formats), *formats)
    body += struct.pack("!H", len(values))
    for value in values:
        if value is None:
            body += struct.pack("!i", -1)
        else:
            data = value.encode() if isinstance(value, str) else value
            body += struct.pack("!i", len(data)) + data
    return message("B", body + struct.pack(f"!H{len(results)}H", len(results), *results))


def describe(what: str = "P", name: str = "") -> bytes:
    return message("D", what.encode() + text(name))


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message("E", text(portal) + struct.pack("!I", rows))


def close(what: str, name: str = "") -> bytes:
    return message("C", what.encode() + text(name))


SYNC, FLUSH, TERMINATE = message("S"), message("H"), message("X")


def startup(version: int = PROTOCOL, **parameters: str) -> bytes:
    body = struct.pack("!I", version)
    body += b"".join(text(key) + text(value) for key, value in parameters.items()) + b"\0"
    return struct.pack("!I", len(body) + 4) + body


class Client:
    """One connection, which has sent nothing yet."""

    def __init__(self, address: Path | str | tuple[str, int]) -> None:
        tcp = isinstance(address, tuple)
        self._socket = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(address if tcp else str(address))
        self._bytes = b""
        self.pid = self.secret = 0
        self.parameters: dict[str, str] = {}

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def start(
        self, user: str = "postgres", database: str = "postgres", **more: str
    ) -> list[Answer]:
        """The answers up to ReadyForQuery, or to the end."""
        self.send(startup(user=user, database=database, **more))
        return self.until_ready()

    def ask(self, data: bytes | str) -> list[Answer]:
        """Send, and the answers up to ReadyForQuery."""
        self.send(query(data) if isinstance(data, str) else data)
        return self.until_ready()

    def until_ready(self) -> list[Answer]:
        answers = []
        for answer in self.answers():
            answers.append(answer)
            if answer[0] == "Z":
                break
        return answers

    def until(self, kind: str) -> list[Answer]:
        """The answers up to one of this type."""
        answers = []
        for answer in self.answers():
            answers.append(answer)
            if answer[0] == kind:
                break
        return answers

    def notification(self) -> Notification:
        """The next one; anything else is a failure."""
        answer = next(self.answers())
        assert answer[0] == "A", answer
        return Notification(*answer[1:])

    def answers(self) -> Iterator[Answer]:
        """Until the server closes the connection."""
        while True:
            head = self._take(5)
            if head is None:
                return
            kind = chr(head[0])
            (length,) = struct.unpack("!I", head[1:])
            body = self._take(length - 4)
            assert body is not None, "cut in the middle of a message"
            answer = decode(kind, body)
            if kind == "K":
                self.pid, self.secret = answer[1:]
            elif kind == "S":
                self.parameters[answer[1]] = answer[2]
            yield answer

    def byte(self) -> bytes:
        """The next one, outside of a message."""
        return self._take(1) or b""

    def at_end(self) -> bool:
        """Whether the server has closed the connection, and said nothing more."""
        return self._take(1) is None

    def _take(self, count: int) -> bytes | None:
        while len(self._bytes) < count:
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self._socket.recv(65536)
            if not data:
                assert not self._bytes, f"cut: {self._bytes!r}"
                return None
            self._bytes += data
        taken, self._bytes = self._bytes[:count], self._bytes[count:]
        return taken


def decode(kind: str, body: bytes) -> Answer:
    """A message of a server."""
    decoder = _DECODERS.get(kind)
    return (kind, *decoder(body)) if decoder else (kind, body) if body else (kind,)


def _string(body: bytes) -> Answer:
    return (body[:-1].decode(),)


def _strings(body: bytes) -> Answer:
    return tuple(part.decode() for part in body[:-1].split(b"\0"))


def _report(body: bytes) -> Answer:
    fields = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
    return ({key: fields[key] for key in REPORTED if key in fields},)


def _row(body: bytes) -> Answer:
    values: list[bytes | None] = []
    at = 2
    for _ in range(struct.unpack_from("!H", body)[0]):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        values.append(None if length < 0 else body[at : at + length])
        at += max(length, 0)
    return (values,)


def _columns(body: bytes) -> Answer:
    """Name, type, its length, and the format of each column."""
    columns = []
    at = 2
    for _ in range(struct.unpack_from("!H", body)[0]):
        end = body.index(b"\0", at)
        _table, _number, oid, size, _modifier, form = struct.unpack_from("!IHIhiH", body, end + 1)
        columns.append((body[at:end].decode(), oid, size, form))
        at = end + 1 + 18
    return (columns,)


def _types(body: bytes) -> Answer:
    (count,) = struct.unpack_from("!H", body)
    return (list(struct.unpack_from(f"!{count}I", body, 2)),)


def _notification(body: bytes) -> Answer:
    channel, payload = body[4:-1].split(b"\0")
    return struct.unpack_from("!I", body)[0], channel.decode(), payload.decode()


def _version(body: bytes) -> Answer:
    newest, _count = struct.unpack_from("!II", body)
    return newest, [part.decode() for part in body[8:].split(b"\0") if part]


_DECODERS: dict[str, Any] = {
    "A": _notification,
    "C": _string,
    "D": _row,
    "E": _report,
    "K": lambda body: struct.unpack("!II", body),
    "N": _report,
    "R": lambda body: struct.unpack_from("!I", body),
    "S": _strings,
    "T": _columns,
    "Z": lambda body: (body.decode(),),
    "t": _types,
    "v": _version,
}
