"""SQLAlchemy: notify when, and only when, the transaction of a session commits.

```
from pynotify.contrib.sqlalchemy import SessionNotifier

bus = SessionNotifier("app")
with Session(engine) as session, session.begin():
    session.add(order)
    bus.notify(session, "orders", order.number)
```

1. What is asked for waits at the session, at the level of its transaction at which it was asked:
   a SAVEPOINT that is rolled back takes its part along, one that is released hands it on.
2. Before the database commits all of it is made in one transaction here and prepared (`prepare()`):
   a full queue raises `QueueFull` out of `session.commit()`, and the rows can be rolled back.
   After the database has committed that transaction is committed, which does not fail for want of
   room.  What remains is a process that dies between the two: its rows are there, and nothing was
   sent.
3. A commit on its way has a connection of its own, which is kept for the next one.  So tasks of
   `AsyncSession`, which share a thread, do not meet in one transaction.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pynotify._connect import connect
from pynotify.contrib._own import PerProcess
from pynotify.errors import ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import SessionTransaction
    from typing_extensions import Buffer

    from pynotify._connection import Connection, Transaction
    from pynotify._options import OpenOptions

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]
    Action = Callable[[Connection], object]

__all__ = ["SessionNotifier"]

_KEY = "pynotify.contrib.sqlalchemy"
#: Flushing may make objects that have to be flushed; SQLAlchemy gives up after as many.
_FLUSHES = 100


class _Connections:
    """Those of a process that no commit uses."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self.closed = False

    def take(self) -> Connection:
        with self._lock:
            while self._idle:
                own = self._idle.pop()
                if not own.closed:
                    return own
        return self._make()

    def give_back(self, own: Connection) -> None:
        with self._lock:
            if not self.closed:
                self._idle.append(own)
                return
        own.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for own in idle:
            own.close()


class _Waiting:
    """What a session has asked a notifier for, until its transaction ends."""

    def __init__(self, connections: PerProcess[_Connections]) -> None:
        self._connections = connections
        self.levels: dict[SessionTransaction, list[Action]] = {}
        self._prepared: tuple[_Connections, Connection, Transaction] | None = None

    def add(self, level: SessionTransaction, action: Action) -> None:
        if self._prepared is not None:
            raise ProgrammingError(
                "the session is committing, and what it sends has been prepared",
                hint="Ask for it before: in a handler of before_flush, for instance.",
            )
        self.levels.setdefault(level, []).append(action)

    def hand_on(self, level: SessionTransaction, above: SessionTransaction) -> None:
        actions = self.levels.pop(level, [])
        if actions:
            self.levels.setdefault(above, []).extend(actions)

    def prepare(self) -> None:
        self.undo()  # of a commit that the database has refused
        actions = [action for of_level in self.levels.values() for action in of_level]
        if not actions:
            return
        connections = self._connections.get()
        own = connections.take()
        try:
            transaction = own.transaction()
            transaction.__enter__()
            for action in actions:
                action(own)
            transaction.prepare()
        except BaseException:
            own.close()
            raise
        self._prepared = connections, own, transaction

    def commit(self) -> None:
        """The database has committed."""
        if self._prepared is None:
            self.prepare()  # a SAVEPOINT was open until then: it was not known whose commit began
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return
        connections, own, transaction = prepared
        try:
            transaction.__exit__(None, None, None)
        except BaseException:
            own.close()
            raise
        connections.give_back(own)

    def undo(self) -> None:
        """Any thread may end a session, and a transaction is its thread's: the slot goes, too."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared[1].close()


def _level(session: Session) -> SessionTransaction:
    """The innermost SAVEPOINT, or the transaction, which begins if there is none."""
    return session.get_nested_transaction() or session.get_transaction() or session.begin()


def _waiting(session: Session) -> list[_Waiting]:
    return list(session.info.get(_KEY, {}).values())


def _before_commit(session: Session) -> None:
    if session.get_nested_transaction() is not None:
        return
    for _ in range(_FLUSHES):  # the commit would do it, after this: handlers may ask for more
        session.flush()
        if not (session.new or session.dirty or session.deleted):
            break
    for each in _waiting(session):
        each.prepare()


def _after_commit(session: Session) -> None:
    level = session.get_nested_transaction()
    if level is None:
        with contextlib.ExitStack() as all_of_them:
            for each in _waiting(session):
                all_of_them.callback(each.commit)
        return
    above = level.parent
    while above is not None and not above.nested and above.parent is not None:
        above = above.parent  # a flush is a transaction too, of which nothing is told
    for each in _waiting(session):
        if above is not None:
            each.hand_on(level, above)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    """What was not committed by now never will be."""
    for each in _waiting(session):
        each.levels.pop(transaction, None)
    if transaction.parent is None:
        for each in session.info.pop(_KEY, {}).values():
            each.undo()


event.listen(Session, "before_commit", _before_commit)
event.listen(Session, "after_commit", _after_commit)
event.listen(Session, "after_transaction_end", _after_transaction_end)


def _sync_session(session: AnySession) -> Session:
    own: Session | AsyncSession
    own = session() if isinstance(session, (scoped_session, async_scoped_session)) else session
    return own if isinstance(own, Session) else own.sync_session


class SessionNotifier:
    """Notifications, messages of topics and bumps that follow the transaction of a session.

    `name` and `options` as of `pynotify.connect`.  Any number of sessions, threads, event loops and
    forked processes may use it; a session may use several.  The methods take a `Session`, an
    `AsyncSession` or what `scoped_session` and `async_scoped_session` make, and do not wait.  They
    begin the session's transaction if it has none, as `session.execute()` does.

    What is wrong with an argument (`InvalidChannelName`, `PayloadTooLong`) is told when the session
    commits, which then fails before the database has committed.
    """

    def __init__(self, name: str = "default", **options: Unpack[OpenOptions]) -> None:
        self._connections = PerProcess(
            lambda: _Connections(lambda: connect(name, **options)), lambda made: not made.closed
        )

    def _add(self, session: AnySession, action: Action) -> None:
        own = _sync_session(session)
        level = _level(own)
        notifiers = own.info.setdefault(_KEY, {})
        if self not in notifiers:
            notifiers[self] = _Waiting(self._connections)
        notifiers[self].add(level, action)

    def notify(self, session: AnySession, channel: str, payload: object = "") -> None:
        """Notify when the session's transaction commits.

        `payload`: bytes, or else what `str()` makes of it now.  Duplicates within a transaction are
        sent once, as PostgreSQL does.
        """
        data = payload if isinstance(payload, bytes) else str(payload)
        self._add(session, lambda own: own.notify(channel, data))

    def publish(self, session: AnySession, topic: str, body: str | Buffer, **options: Any) -> None:
        """Publish a message when the session's transaction commits.

        `options`: those of `Topic.publish` (`delay` in seconds, which counts from the commit,
        `ttl`, `headers`).
        """
        data = body if isinstance(body, str) else bytes(body)
        self._add(session, lambda own: own.topic(topic).publish(data, **options))

    def bump(self, session: AnySession, generation: str) -> None:
        """Advance a generation counter, on which caches depend, when the transaction commits."""
        self._add(session, lambda own: own.generation(generation).bump())

    def close(self) -> None:
        """Close the connections of this process that no commit uses; later ones make others."""
        connections = self._connections.take()
        if connections is not None:
            connections.close()
