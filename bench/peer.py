"""What a competitor has to be able to do to be measured here."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

PAYLOAD_BYTES = 100
_REST = bytes((i * 37 + 11) % 256 for i in range(8, PAYLOAD_BYTES))

PROBE = 2**64 - 2
END_OF_PROBES = 2**64 - 1


def payload(message_number: int) -> bytes:
    """100 bytes that begin with their number."""
    return message_number.to_bytes(8, "little") + _REST


def message_number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


class Sender(ABC):
    """Lives in a process of its own."""

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    def send_all(self, payloads: Sequence[bytes]) -> None:
        """Every payload, as fast as it goes."""

    def close(self) -> None:  # noqa: B027  (most have nothing to do)
        """Whatever is to be done before the process ends."""


class Receiver(ABC):
    """Lives in a process of its own; has subscribed when it is constructed."""

    @abstractmethod
    def receive(self, count: int) -> bytes:
        """Read exactly `count` messages, as fast as it goes; returns the last."""

    @abstractmethod
    def stream(self) -> Iterator[bytes]:
        """Message by message, sleeping in between; leaving it loses nothing."""

    def collect(self, count: int) -> list[bytes]:
        """`count` messages, to be compared; the way receive() reads them where that is another."""
        return list(itertools.islice(self.stream(), count))

    def close(self) -> None:  # noqa: B027  (most have nothing to do)
        """Whatever is to be done before the process ends."""


class Peer(ABC):
    """Made, prepared and disposed of by the parent; sender() and receiver() run in its children."""

    name: ClassVar[str]
    one_to_many: ClassVar[bool] = True

    def __init__(self, directory: Path, messages: int) -> None:
        """`directory`: for sockets.  `messages`: how many a pass sends, a hint for buffers."""
        self.directory = directory
        self.messages = messages

    def prepare(self) -> None:  # noqa: B027
        """Before the children are forked."""

    @abstractmethod
    def sender(self) -> Sender: ...

    @abstractmethod
    def receiver(self) -> Receiver: ...

    def dispose(self) -> None:  # noqa: B027
        """After the children have ended."""
