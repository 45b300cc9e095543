"""How a process asks the bridge for a channel, and hears that it is listened to upstream.

1. Over the segment itself, in a database of its own, CONTROL_DATABASE, on a channel called as the
   database that is bridged.  Questions and answers are JSON objects.
2. Whoever asks has a LISTEN committed.  The bridge answers when its LISTEN upstream has
   been committed after that, or says at once why it will not come to that.
3. Who waits also watches the bridge's process: if it dies, nobody answers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynotify._engine import Engine
from pynotify._ffi import again, ffi, lib
from pynotify._ownership import keep
from pynotify._types import Notify
from pynotify.errors import (
    Error,
    LockTimeout,
    OperationalError,
    ProgrammingError,
    QueueFull,
    Timeout,
    native_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynotify._base import BaseConnection
    from pynotify._connection import Connection

CONTROL_DATABASE: Final = "pynotify.bridge"
_numbers = itertools.count(1)
_LONG: Final = 86_400.0


def engine_of(connection: BaseConnection) -> Engine:
    """Of the same segment, also when its name means another one by now."""
    connection._check_usable()
    engine = Engine.__new__(Engine)
    engine._name = ""
    engine._handle = connection._engine()
    keep(engine, engine._handle)
    engine._euid = lib.pn_engine_owner_euid(engine._handle)
    return engine


def bridge_of(connection: BaseConnection) -> int:
    """The process of the bridge of the connection's database; 0: there is none."""
    connection._check_usable()
    pid = again(lambda: int(lib.pn_bridge_pid(connection._handle)))
    if pid < 0:
        raise native_error(pid)
    return pid


# ---- who asks --------------------------------------------------------------------------------


class Question:
    """Of one call of listen().  Nothing here waits."""

    def __init__(self, database: str, channels: Iterable[str], pid: int) -> None:
        self.database = database
        self._id = f"{os.getpid()}.{next(_numbers)}"
        self._open = dict.fromkeys(channels)
        self._down = ""
        #: Of the bridge.
        self.pid = pid
        if not pid:
            raise self._none("no bridge runs")
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise self.died() from None

    @property
    def answered(self) -> bool:
        """All of it."""
        return not self._open

    def texts(self) -> list[str]:
        """What to send, to be asked."""
        return [json.dumps({"ask": self._id, "channel": channel}) for channel in self._open]

    def check_bridge(self, pid: int) -> None:
        """After it was sent: a bridge that had ended before does not answer."""
        if pid != self.pid:
            raise self.died()

    def take(self, message: Notify | Any) -> None:
        """What came on the control channel."""
        document = _document(message)
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
        """The bridge is gone."""
        return self._none(f"the bridge (process {self.pid}) has ended")

    def _none(self, what: str) -> OperationalError:
        return OperationalError(
            f'{what} for database "{self.database}" of this segment',
            hint="Start `pynotify bridge NAME --channels ...`; the channels are listened to"
            " locally all the same.",
        )

    def late(self, timeout: float | None) -> Timeout:
        """The time is over."""
        why = f": it has no connection to PostgreSQL ({self._down})" if self._down else ""
        error = Timeout(
            f"the bridge (process {self.pid}) did not listen to {', '.join(self._open)} upstream"
            f" within {timeout} s{why}",
            hint="The channels are listened to locally, and will be upstream as soon as it can.",
        )
        return error

    def close(self) -> None:
        """What it holds."""
        os.close(self.pidfd)


def await_upstream(connection: Connection, channels: Sequence[str], timeout: float | None) -> None:
    """Until the bridge listens to them upstream; their LISTEN is committed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    question = Question(connection.database, channels, bridge_of(connection))
    try:
        with engine_of(connection).connect(CONTROL_DATABASE) as control:
            control.listen(question.database)
            control.notify_many(question.database, question.texts())
            question.check_bridge(bridge_of(connection))
            poll = select.poll()
            poll.register(control.fileno(), select.POLLIN)
            poll.register(question.pidfd, select.POLLIN)
            while not question.answered:
                left = _LONG if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise question.late(timeout)
                ready = [fd for fd, _ in poll.poll(int(min(left, _LONG) * 1000) + 1)]
                for message in control.poll():
                    question.take(message)
                if question.pidfd in ready and not question.answered:
                    raise question.died()
    finally:
        question.close()


# ---- who answers -----------------------------------------------------------------------------


class Asked(NamedTuple):
    """By somebody, for a channel."""

    by: str
    channel: str


class Desk:
    """The bridge's side."""

    def __init__(self, engine: Engine, database: str) -> None:
        self._channel = database
        self._connection = engine.connect(CONTROL_DATABASE)
        try:
            # Who listens to nothing watches nobody, and would not hear of a listener's death.
            self._connection.listen(database)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """Readable when there may be questions."""
        return self._connection.fileno()

    def questions(self) -> list[Asked]:
        """Those that have come."""
        documents = map(_document, self._connection.poll())
        return [Asked(str(d["ask"]), str(d.get("channel"))) for d in documents if "ask" in d]

    def answer(self, asked: Asked, state: str, detail: str = "") -> bool:
        """state: "listening"; "down": wait on; "refused".  False: not now, the queue is full."""
        document = {"answer": asked.by, "channel": asked.channel, "state": state}
        document["detail"] = detail[:500]
        try:
            self._connection.notify(self._channel, json.dumps(document))
        except (QueueFull, LockTimeout):
            return False
        return True

    def close(self) -> None:
        """Tell those who wait."""
        if not self._connection.closed:
            with contextlib.suppress(Error):  # an unlinked segment has woken them already
                self._connection.notify(self._channel, json.dumps({"ended": True}))
            self._connection.close()


def _document(message: Notify | Any) -> dict[str, Any]:
    """Empty when it is nothing of ours."""
    try:
        document = json.loads(message.data) if isinstance(message, Notify) else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


# ---- the core, as the bridge needs it ---------------------------------------------------------


def become_bridge(connection: Connection) -> None:
    """Raises `OperationalError` when there is one."""
    result = again(lambda: lib.pn_conn_bridge(connection._handle))
    if result < 0:
        raise native_error(result)


def max_payload(connection: BaseConnection) -> int:
    """Of the segment, in bytes."""
    options = ffi.new("pn_options *")
    lib.pn_engine_options(connection._engine(), options)
    return int(options.max_payload)
