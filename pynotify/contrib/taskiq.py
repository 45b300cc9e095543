"""taskiq: tasks for the workers of a host, on a topic of a segment.

```
broker = PynotifyBroker("app")

@broker.task
async def mail(to: str) -> None: ...
```

`taskiq worker module:broker --workers 4` runs them.  A task is acknowledged when taskiq says so,
by default after it has run; that of a worker that is killed comes to another one at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from taskiq import AckableMessage, AsyncBroker

from pynotify._async_connection import AsyncConnection
from pynotify._log import logger
from pynotify._segments import check_name
from pynotify.contrib._lasting import LOST, Lasting
from pynotify.errors import InterfaceError, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Unpack

    from taskiq import BrokerMessage

    from pynotify._open_options import OpenOptions
    from pynotify.topics import AsyncMessage, AsyncTopic

__all__ = ["PynotifyBroker"]

_CHANNEL = "workers"


class PynotifyBroker(AsyncBroker):
    """The broker.  It has no result backend of its own: give it one `.with_result_backend()`.

    `queue`: the topic.  `max_in_flight`: how many tasks a worker process has at a time.
    `task_timeout`: seconds after which a task that is not acknowledged goes to another worker,
    though its worker lives.  `max_attempts`: how often a task is delivered (0: no limit), after
    which it goes to the topic `dead_letter`, if there is one.  `durable`: tasks survive a reboot;
    it needs `data_dir`.  `wakeup` and `options` as of `pynotify.connect`.

    Tasks of a segment that was removed are lost with it: the workers go on with the new one.  The
    label `delay` of a task has seconds after which it is delivered.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        queue: str = "taskiq",
        max_in_flight: int = 100,
        task_timeout: float = 86400.0,
        max_attempts: int = 5,
        dead_letter: str | None = None,
        durable: bool = False,
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        super().__init__()
        check_name(segment)
        self._segment, self._queue, self._durable = segment, queue, durable
        self._wakeup, self._options = wakeup, options
        self._consumer: dict[str, Any] = {
            "max_in_flight": max_in_flight,
            "msg_timeout": task_timeout,
            "max_msg_timeout": task_timeout,
            "max_attempts": max_attempts,
            "dead_letter": dead_letter,
        }
        self._lasting = Lasting("taskiq", self._connect, _nothing_more)

    async def _connect(self) -> AsyncConnection:
        return await AsyncConnection.connect(self._segment, wakeup=self._wakeup, **self._options)

    def _topic(self, connection: AsyncConnection) -> AsyncTopic:
        if self._durable:
            return connection.topic(self._queue, durable=True)
        return connection.topic(self._queue)

    def _check_started(self) -> None:
        if self._lasting.current is None:
            raise InterfaceError("the broker is not started", hint="Await its startup() before.")

    async def startup(self) -> None:
        """Connect, in the loop and the process that use it."""
        await super().startup()
        await self._lasting.open()

    async def shutdown(self) -> None:
        """Give the connection up; what is not acknowledged goes to other workers."""
        await super().shutdown()
        await self._lasting.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; a segment that was removed is made again.

        Raises `TopicFull`, `PayloadTooLong`.
        """
        self._check_started()
        delay = float(message.labels.get("delay") or 0)

        async def publish(connection: AsyncConnection) -> None:
            await self._topic(connection).publish(message.message, delay=delay)

        await self._lasting.call(publish)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks, as they come; of a new segment when the old one was removed."""
        self._check_started()
        while (connection := self._lasting.current) is not None:
            try:
                channel = self._topic(connection).channel(_CHANNEL)
                async with channel.consumer(**self._consumer) as consumer:
                    async for message in consumer:
                        yield AckableMessage(data=message.body, ack=partial(_finish, message))
                if self._lasting.current is connection:
                    return
            except TopicDeleted:  # by `pynotify topics delete`
                pass
            except LOST:
                if not self._lasting.is_lost(connection):
                    raise
                await self._lasting.wait_for_another(connection)


async def _finish(message: AsyncMessage) -> None:
    try:
        await message.finish()
    except (TopicDeleted, *LOST) as error:  # its segment, or its topic, was removed meanwhile
        logger.warning("taskiq: a task was done, and not there any more: %s", error)


async def _nothing_more(_connection: AsyncConnection) -> None:
    pass
