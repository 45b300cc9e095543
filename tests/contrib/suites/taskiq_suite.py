"""pytest plugin: taskiq's tests get our broker for the one in memory and for that of a queue.

Both are what the tests have for a broker and its worker in one process.  Here the tasks go by a
topic, of each broker its own, to the receiver that executes them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator
from typing import Any

import taskiq
from taskiq import AckableMessage, BrokerMessage
from taskiq.brokers import inmemory_broker
from taskiq.exceptions import UnknownTaskError

from pynotify.contrib.taskiq import PynotifyBroker
from tests import utils

_numbers = itertools.count(1)


class _Queue:
    """What waits in the topic."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    async def get(self) -> bytes:
        """The next task, acknowledged."""
        message = await anext(self._transport.listen())
        await message.ack()  # type: ignore[misc]
        return message.data


class _Transport(PynotifyBroker):
    """Connects when it is used first, and knows what is not acknowledged yet."""

    def __init__(self) -> None:
        super().__init__(os.environ["SEGMENT"], queue=f"q{next(_numbers)}")
        self._open: asyncio.Task[None] | None = None
        self.queue = _Queue(self)
        self.unfinished = 0
        self.changed = asyncio.Condition()

    async def connected(self) -> None:
        if self._open is None:
            self._open = asyncio.ensure_future(PynotifyBroker.startup(self))
        await self._open

    async def kick(self, message: BrokerMessage) -> None:
        await self.connected()
        self.unfinished += 1
        await super().kick(message)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        await self.connected()
        async for message in super().listen():
            yield AckableMessage(data=message.data, ack=self._acknowledging(message))

    def _acknowledging(self, message: AckableMessage) -> Any:
        async def acknowledge() -> None:
            await message.ack()  # type: ignore[misc]
            async with self.changed:
                self.unfinished -= 1
                self.changed.notify_all()

        return acknowledge

    async def wait_tasks(self) -> None:
        """Until all are acknowledged."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.unfinished == 0)


class InMemoryBroker(inmemory_broker.InMemoryBroker):
    """Its receiver gets the tasks from a topic; a task runs until its message is acknowledged."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transport = _Transport()
        self._worker: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()
        self._handled: dict[bytes, asyncio.Future[None]] = {}

    async def kick(self, message: BrokerMessage) -> None:
        if self.find_task(message.task_name) is None:
            raise UnknownTaskError(task_name=message.task_name)
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._work())
        handled = self._handled[message.message] = asyncio.get_running_loop().create_future()
        await self._transport.kick(message)
        if self.await_inplace:
            await handled
            return
        task = asyncio.ensure_future(self._until(handled))
        self._running_tasks.add(task)
        task.add_done_callback(self._running_tasks.discard)

    async def _until(self, handled: asyncio.Future[None]) -> None:
        await handled

    async def _work(self) -> None:
        async for message in self._transport.listen():
            task = asyncio.ensure_future(self._handle(message))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _handle(self, message: AckableMessage) -> None:
        handled = self._handled.pop(message.data)
        try:
            await self.receiver.callback(message)
            handled.set_result(None)
        except BaseException as error:
            handled.set_exception(error)
            raise


taskiq.InMemoryBroker = InMemoryBroker  # type: ignore[misc]
inmemory_broker.InMemoryBroker = InMemoryBroker  # type: ignore[misc]
utils.AsyncQueueBroker = _Transport
