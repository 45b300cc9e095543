"""How a process asks the bridge for a channel, and hears that it is listened to upstream.

1. Over the segment itself, in a database of its own, CONTROL_DATABASE, on a channel called as the
   database that is bridged.  Requests and answers are JSON objects.
2. The process that asks has a LISTEN committed.  The bridge answers when its LISTEN upstream has
   been committed after that, or says at once why it will not come to that.
3. The process that waits also watches the bridge's process, since a dead bridge does not answer.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from pynotify._ffi import again, lib
from pynotify._types import Notify
from pynotify.errors import Error, OperationalError, ProgrammingError, Timeout, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from pynotify._handle import Handle
    from pynotify._types import Gap

CONTROL_DATABASE: Final = "pynotify.bridge"
_numbers = itertools.count(1)
_LONG: Final = 86_400.0


class Control(Protocol):
    """A connection to the control database."""

    def listen(self, *channels: str) -> None:
        """`Connection.listen`."""

    def notify_many(self, channel: str, payloads: list[str]) -> int:
        """`Connection.notify_many`."""

    def fileno(self) -> int:
        """`Connection.fileno`."""

    def poll(self) -> list[Notify | Gap]:
        """`Connection.poll`."""


def bridge_of(handle: Handle) -> int:
    """The process of the bridge of the connection's database; 0: there is none."""
    handle.check_usable()
    return check(again(lambda: int(lib.pn_bridge_pid(handle.native))))


def document_of(message: Notify | Any) -> dict[str, Any]:
    """The JSON object in a message of the control channel, or an empty one."""
    try:
        document = json.loads(message.data) if isinstance(message, Notify) else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class PendingRequest:
    """The request of one call of listen().  Nothing here waits."""

    def __init__(self, database: str, channels: Iterable[str], pid: int) -> None:
        self.database = database
        self._id = f"{os.getpid()}.{next(_numbers)}"
        self._open = dict.fromkeys(channels)
        self._down = ""
        #: The bridge's process.
        self.pid = pid
        if not pid:
            raise self._none("no bridge runs")
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise self.died() from None

    @property
    def answered(self) -> bool:
        """Whether the bridge listens to all channels."""
        return not self._open

    def texts(self) -> list[str]:
        """The messages that ask the bridge."""
        return [json.dumps({"ask": self._id, "channel": channel}) for channel in self._open]

    def check_bridge(self, pid: int) -> None:
        """Raise when the bridge had ended before it was asked, since then it does not answer."""
        if pid != self.pid:
            raise self.died()

    def take(self, message: Notify | Any) -> None:
        """Read a message from the control channel."""
        document = document_of(message)
        if "ended" in document:
            raise self.died()
        if document.get("answer") != self._id:
            return
        if document["state"] == "refused":
            raise ProgrammingError(
                f"the bridge (process {self.pid}) does not listen: {document['detail']}",
                hint="Give it the channel: pynotify bridge NAME --channels ...",
            )
        if document["state"] == "down":
            self._down = document["detail"]
        else:
            self._open.pop(document["channel"], None)

    def died(self) -> Error:
        """The error for a bridge that has ended."""
        return self._none(f"the bridge (process {self.pid}) has ended")

    def _none(self, what: str) -> OperationalError:
        return OperationalError(
            f'{what} for database "{self.database}" of this segment',
            hint="Start `pynotify bridge NAME --channels ...`; the channels are listened to"
            " locally all the same.",
        )

    def late(self, timeout: float | None) -> Timeout:
        """The error for a time-out."""
        why = f": it has no connection to PostgreSQL ({self._down})" if self._down else ""
        error = Timeout(
            f"the bridge (process {self.pid}) did not listen to {', '.join(self._open)} upstream"
            f" within {timeout} s{why}",
            hint="The channels are listened to locally, and will be upstream as soon as it can.",
        )
        return error

    def close(self) -> None:
        """Close the descriptor of the bridge's process."""
        os.close(self.pidfd)


def await_upstream(
    handle: Handle,
    connect: Callable[[str], AbstractContextManager[Control]],
    channels: Sequence[str],
    timeout: float | None,
) -> None:
    """Wait until the bridge listens to the channels upstream; their LISTEN is committed.

    `connect` makes a connection to another database of the segment.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    request = PendingRequest(handle.database, channels, bridge_of(handle))
    try:
        with connect(CONTROL_DATABASE) as control:
            control.listen(request.database)
            control.notify_many(request.database, request.texts())
            request.check_bridge(bridge_of(handle))
            poll = select.poll()
            poll.register(control.fileno(), select.POLLIN)
            poll.register(request.pidfd, select.POLLIN)
            while not request.answered:
                left = _LONG if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise request.late(timeout)
                ready = [fd for fd, _ in poll.poll(int(min(left, _LONG) * 1000) + 1)]
                for message in control.poll():
                    request.take(message)
                if request.pidfd in ready and not request.answered:
                    raise request.died()
    finally:
        request.close()
