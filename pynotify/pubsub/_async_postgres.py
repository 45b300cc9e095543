"""PubSub over a psycopg 3 AsyncConnection; what _postgres.py says holds here, for tasks.

1. Statements go through psycopg's own waiting, with the connection's lock held over all segments of
   an object; so whatever loop psycopg works in will do.
2. psycopg puts a reader of its own on the socket while it waits, in the place of any other.  So
   a task that waits for notifications watches a duplicate of the descriptor, and takes its reader
   away as soon as that is readable: the task that has the lock may be the one to read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import generators, pq

from pynotify.errors import ConnectionLost, ProgrammingError
from pynotify.pubsub._arrays import portable
from pynotify.pubsub._format import POSTGRES_LIMIT, segments
from pynotify.pubsub._postgres import (
    BasePostgresTransport,
    check_channel,
    listen_statement,
    lost,
    question_after,
    refuse_headers,
    why_segments,
)

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from pynotify._headers import Taken
    from pynotify.pubsub._postgres import AsyncPostgresConnection

_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class AsyncPostgresTransport(BasePostgresTransport):
    """Over a psycopg `AsyncConnection` in autocommit."""

    def __init__(
        self,
        connection: AsyncPostgresConnection,
        *,
        skip_self: bool,
        interval: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection, skip_self=skip_self, interval=interval, clock=clock)
        self.connection = connection
        self._bell = asyncio.Event()
        self._watched = -1
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._hub.join(self, connection)

    async def open(self) -> None:
        """Nothing is to be done."""

    async def send_object(self, channel: str, obj: Any, headers: Taken | None = None) -> None:
        """Each of its segments in a transaction of its own."""
        refuse_headers(headers)
        await self.send(channel, segments(portable(obj), POSTGRES_LIMIT))

    # ---- statements ------------------------------------------------------------------------

    async def _execute(self, statement: bytes, *values: bytes) -> pq.abc.PGresult:
        """Execute with the connection's lock held."""
        try:
            self._pgconn.send_query_params(statement, list(values))
            results = await self.connection.wait(generators.execute(self._pgconn))
        except psycopg.OperationalError as error:
            raise lost(error) from error
        self._collect()
        result: pq.abc.PGresult = results[-1]
        if result.status not in _GOOD:
            failure = psycopg.errors.error_from_result(result, encoding="utf-8")
            if self._pgconn.status == pq.ConnStatus.BAD:
                raise lost(failure) from failure
            raise failure
        return result

    async def listen(self, channel: str) -> None:
        """LISTEN to the channel."""
        name = check_channel(channel)
        hub = self._hub
        async with hub.tasks:
            if channel in self._channels:
                return
            if not hub.listeners[channel]:
                await self._statement("subscribe", b"LISTEN ", name)
            hub.listeners[channel] += 1
            self._channels.add(channel)

    async def unlisten(self, channel: str) -> None:
        """UNLISTEN the channel."""
        hub = self._hub
        async with hub.tasks:
            if channel not in self._channels:
                return
            if hub.listeners[channel] == 1:
                await self._statement("unsubscribe", b"UNLISTEN ", check_channel(channel))
            hub.listeners[channel] -= 1
            self._channels.discard(channel)
            self._without(channel)

    async def _statement(self, what: str, verb: bytes, name: bytes) -> None:
        async with self.connection.lock:
            self._refuse_transaction(what, why="it would happen at its commit only")
            await self._execute(listen_statement(verb, name))

    async def send(self, channel: str, payloads: Sequence[bytes]) -> None:
        """Each in a transaction of its own, unless it is the only one."""
        name = check_channel(channel)
        async with self.connection.lock:
            self._refuse_transaction(
                "publish", why=why_segments(len(payloads)), single=len(payloads) == 1
            )
            for payload in payloads:
                await self._execute(b"SELECT pg_notify($1, $2)", name, payload)

    # ---- receiving -------------------------------------------------------------------------

    def _ring(self) -> None:
        self._bell.set()

    async def receive(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        deadline = None if timeout is None else self._loop.time() + timeout
        while not self._interrupted:
            self._bell.clear()
            await self._read(deadline)
            await self._check_when_due()
            left = None if deadline is None else deadline - self._loop.time()
            if self._arrived or self._interrupted or (left is not None and left <= 0):
                break
            await self._sleep(left)
        self._take(came)

    async def _sleep(self, timeout: float | None) -> None:
        """Wait until the socket or the bell has something, or a check is due."""
        if self._interval is not None:
            due = max(0.0, self._checked + self._interval - self._clock())
            timeout = due if timeout is None else min(due, timeout)
        self._watch()
        try:
            async with asyncio.timeout(timeout):
                await self._bell.wait()
        except TimeoutError:
            pass
        finally:
            self._unwatch()

    def _watch(self) -> None:
        try:
            self._watched = os.dup(self._pgconn.socket)
        except (psycopg.OperationalError, OSError) as error:
            raise lost(error) from error
        self._loop.add_reader(self._watched, self._readable)

    def _readable(self) -> None:
        self._loop.remove_reader(self._watched)
        self._bell.set()

    def _unwatch(self) -> None:
        if self._watched >= 0:
            self._loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = -1

    async def _read(self, deadline: float | None) -> None:
        """What has come, without waiting for more; for another task's statement one waits."""
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline + 0.001):
                await self.connection.lock.acquire()
        except TimeoutError:
            return
        try:
            if self.connection.closed:
                raise lost("the connection is closed")
            self._pgconn.consume_input()
            self._collect()
        except psycopg.OperationalError as error:
            self._collect()
            raise lost(error) from error
        finally:
            self.connection.lock.release()

    # ---- is it still there? ------------------------------------------------------------------

    async def _check_when_due(self) -> None:
        if not self._is_due():
            return
        asked = set(self.unfinished())
        text, values = question_after(asked)
        async with self.connection.lock:
            if self._may_check():
                self._learn(asked, await self._execute(text, *values))

    async def probe(self) -> None:
        """Raises `ConnectionLost` when that can be known without asking the server."""
        await self._read(self._loop.time())

    async def close(self, *, with_connection: bool) -> None:
        """Stop receiving, and close the connection if asked to."""
        if self._closed:
            return
        self._closed = self._interrupted = True
        self._bell.set()
        try:
            with contextlib.suppress(ConnectionLost, ProgrammingError):
                for channel in tuple(self._channels):
                    await self.unlisten(channel)
        finally:
            self._hub.leave(self, self.connection)
            self._channels.clear()
            if with_connection:
                await self.connection.close()
