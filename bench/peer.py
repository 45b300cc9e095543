"""What a competitor has to be able to do to be measured here."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

PAYLOAD_BYTES = 100
BODY_BYTES = 200

PROBE = 2**64 - 2
END_OF_PROBES = 2**64 - 1


def payload(message_number: int, size: int = PAYLOAD_BYTES) -> bytes:
    """So many bytes that begin with their number: 100 of a notification, 200 of a job."""
    return message_number.to_bytes(8, "little") + _REST[: size - 8]


_REST = bytes((i * 37 + 11) % 256 for i in range(8, BODY_BYTES))


def message_number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def _nothing() -> None:
    """Most have nothing to do."""


class Sender:
    """Lives in a process of its own.

    `send` is the peer's own call where one argument is all that it takes, so that nothing stands
    between it and the loop.  `close` is called before the process ends.
    """

    def __init__(
        self, send: Callable[[bytes], object], close: Callable[[], object] = _nothing
    ) -> None:
        self.send = send
        self.close = close

    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Every payload in a call of its own, as fast as it goes."""
        send = self.send
        for data in payloads:
            send(data)

    def send_many(self, payloads: Sequence[bytes]) -> None:
        """As many in a call as the peer can take."""
        self.send_all(payloads)


class Receiver(ABC):
    """Lives in a process of its own; has subscribed when it is constructed."""

    def __init__(self, close: Callable[[], object] = _nothing) -> None:
        self.close = close

    @abstractmethod
    def stream(self) -> Iterator[bytes]:
        """Message by message, sleeping in between; leaving it loses nothing."""

    def receive(self, count: int) -> bytes:
        """Read exactly `count` messages, as fast as it goes; returns the last."""
        data = b""
        for data in itertools.islice(self.stream(), count):  # noqa: B007  (the last is returned)
            pass
        return data

    def collect(self, count: int) -> list[bytes]:
        """`count` messages, to be compared; the way receive() reads them where that is another."""
        return list(itertools.islice(self.stream(), count))


class Taker(Receiver):
    """`take` is the peer's own call: it sleeps until there is a message, and returns it."""

    def __init__(self, take: Callable[[], bytes], close: Callable[[], object] = _nothing) -> None:
        super().__init__(close)
        self.take = take

    def done(self) -> None:
        """Acknowledge what was taken last, where that can be done."""

    def receive(self, count: int) -> bytes:
        take = self.take
        data = b""
        for _ in range(count):
            data = take()
        return data

    def stream(self) -> Iterator[bytes]:
        while True:
            yield self.take()


def look_at(data: bytes) -> None:
    """What a consumer calls for each message, where a row is about one that calls something."""


class Part(ABC):
    """What is measured; the parent prepares it and disposes of it, the rest is in its children."""

    name: ClassVar[str]

    def prepare(self) -> None:  # noqa: B027
        """Before the children are forked."""

    def dispose(self) -> None:  # noqa: B027
        """After the children have ended."""


class Peer(Part):
    """Every receiver is to get every message."""

    def __init__(self, directory: Path) -> None:
        """`directory`: for sockets and files."""
        self.directory = directory

    @abstractmethod
    def sender(self) -> Sender: ...

    @abstractmethod
    def receiver(self) -> Receiver: ...


class Queue(Peer):
    """Every message is for one of the receivers."""

    has_many: ClassVar[bool] = False

    @abstractmethod
    def receiver(self) -> Taker: ...

    def empty(self) -> None:
        """Between two passes in which nothing is taken; where it cannot, there are none."""
        raise NotImplementedError
