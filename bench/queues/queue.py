"""What a queue of work has to be able to do to be measured here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

BODY_BYTES = 200
_REST = bytes((i * 37 + 11) % 256 for i in range(4, BODY_BYTES))
STOP = 2**32 - 1


def body(number: int) -> bytes:
    """200 bytes that begin with their number."""
    return number.to_bytes(4, "little") + _REST


def number_of(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


class Producer(ABC):
    """Lives in a process of its own."""

    @abstractmethod
    def put_each(self, bodies: Sequence[bytes]) -> None:
        """Every body in a call of its own, as fast as it goes."""

    def put_many(self, bodies: Sequence[bytes]) -> None:
        """As many at a time as the queue can take."""
        self.put_each(bodies)

    def close(self) -> None:  # noqa: B027  (most have nothing to do)
        """Whatever is to be done before the process ends."""


class Worker(ABC):
    """Lives in a process of its own; is connected when it is constructed."""

    @abstractmethod
    def take(self) -> bytes:
        """The next body; sleeps until there is one."""

    def done(self) -> None:  # noqa: B027
        """Acknowledge it, where that can be done."""

    def close(self) -> None:  # noqa: B027  (most have nothing to do)
        """Whatever is to be done before the process ends."""


class Queue(ABC):
    """Made, prepared and disposed of by the parent; the rest runs in its children."""

    name: ClassVar[str]
    acknowledges: ClassVar[bool] = True
    has_many: ClassVar[bool] = False

    def __init__(self, directory: Path) -> None:
        """`directory`: for sockets and files."""
        self.directory = directory

    def prepare(self) -> None:  # noqa: B027
        """Before the children are forked."""

    @abstractmethod
    def producer(self) -> Producer: ...

    @abstractmethod
    def worker(self) -> Worker: ...

    def empty(self) -> None:
        """Between two passes in which nobody works; where it cannot, there are no such passes."""
        raise NotImplementedError

    def dispose(self) -> None:  # noqa: B027
        """After the children have ended."""
