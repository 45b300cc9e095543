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
   That is done where the commit begins, and again, if more was asked for in its flush or by other
   handlers, when the session's connection is about to commit.  After the database has committed
   that transaction is committed, which does not fail for want of room.  What remains is a process
   that dies between the two: its rows are there, and nothing was sent.
3. A commit on its way has a connection of its own, which is kept for the next one.  So tasks of
   `AsyncSession`, which share a thread, do not meet in one transaction.
4. Sessions that do not ask for anything are only noted with their connections.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pynotify._connect import connect, is_gone
from pynotify._finalizing import WeakKeyDictionary
from pynotify._locks import Lock
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from sqlalchemy import Connection as Database
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import SessionTransaction
    from typing_extensions import Buffer

    from pynotify._connection import Connection, Transaction
    from pynotify._open_options import OpenOptions

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]
    Action = Callable[[Connection], object]

__all__ = ["SessionNotifier"]

_KEY = "pynotify.contrib.sqlalchemy"


class _Connections:
    """A process's connections that no commit uses."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._lock = Lock()
        self._idle: list[Connection] = []
        self.closed = False

    def take(self) -> Connection:
        with self._lock:
            while self._idle:
                own = self._idle.pop()
                if not (own.closed or is_gone(own)):
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
        #: By the id of each, which so does not keep the session.
        self.levels: dict[int, list[Action]] = {}
        self._prepared: tuple[_Connections, Connection, Transaction] | None = None
        #: How many of the actions that has.
        self._has = 0

    def add(self, level: SessionTransaction, action: Action) -> None:
        self.levels.setdefault(id(level), []).append(action)

    def hand_on(self, level: SessionTransaction, above: SessionTransaction) -> None:
        actions = self.levels.pop(id(level), [])
        if actions:
            self.levels.setdefault(id(above), []).extend(actions)

    def prepare(self) -> None:
        """Reserve room for all of it, unless that was done."""
        actions = [action for of_level in self.levels.values() for action in of_level]
        if self._has == len(actions):
            return
        self.undo()
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
        self._prepared, self._has = (connections, own, transaction), len(actions)

    def commit(self) -> None:
        """The database has committed, or there was nothing that it had to."""
        self.prepare()
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
        prepared, self._prepared, self._has = self._prepared, None, 0
        if prepared is not None:
            prepared[1].close()


class _Session:
    """The connections of a session's transaction, and what it waits for."""

    def __init__(self) -> None:
        self._listened: dict[Database, Callable[[Database], None]] = {}
        self._begun: list[Database] = []
        self.waiting: dict[SessionNotifier, _Waiting] = {}

    def begun(self, connection: Database) -> None:
        self._begun.append(connection)
        if self.waiting:
            self.listen()

    def listen(self) -> None:
        """Prepare when a connection is about to commit: everything was flushed by then."""
        for connection in self._begun:
            if connection not in self._listened:
                self._listened[connection] = self.prepare
                for what in _ABOUT_TO_COMMIT:
                    event.listen(connection, what, self.prepare)

    def prepare(self, *_of_connection: object) -> None:
        for each in self.waiting.values():
            each.prepare()

    def end(self) -> None:
        for connection in self._listened:
            for what in _ABOUT_TO_COMMIT:
                event.remove(connection, what, self.prepare)
        for each in self.waiting.values():
            each.undo()


_ABOUT_TO_COMMIT = ("commit", "prepare_twophase")
_sessions: WeakKeyDictionary[Session, _Session] = WeakKeyDictionary()


def _after_begin(session: Session, _transaction: object, connection: Database) -> None:
    _of(session).begun(connection)


def _of(session: Session) -> _Session:
    found = _sessions.get(session)
    if found is None:
        found = _sessions[session] = _Session()
    return found


def _level(session: Session) -> SessionTransaction:
    """The innermost SAVEPOINT, or the transaction, which begins if there is none."""
    return session.get_nested_transaction() or session.get_transaction() or session.begin()


def _before_commit(session: Session) -> None:
    own = _sessions.get(session)
    if own is not None and session.get_nested_transaction() is None:
        own.prepare()


def _after_commit(session: Session) -> None:
    own = _sessions.get(session)
    if own is None:
        return
    level = session.get_nested_transaction()
    if level is None:
        with contextlib.ExitStack() as all_of_them:
            for each in own.waiting.values():
                all_of_them.callback(each.commit)
        return
    above = level.parent
    while above is not None and not above.nested and above.parent is not None:
        above = above.parent  # a flush is a transaction too, of which nothing is told
    for each in own.waiting.values():
        if above is not None:
            each.hand_on(level, above)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    """What was not committed by now never will be."""
    own = _sessions.get(session)
    if own is None:
        return
    for each in own.waiting.values():
        each.levels.pop(id(transaction), None)
    if transaction.parent is None:
        del _sessions[session]
        own.end()


event.listen(Session, "after_begin", _after_begin)
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
        synchronous = _sync_session(session)
        level = _level(synchronous)
        own = _of(synchronous)
        if self not in own.waiting:
            own.waiting[self] = _Waiting(self._connections)
            own.listen()
        own.waiting[self].add(level, action)

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
