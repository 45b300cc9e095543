"""Subscribers: tasks that take messages of a channel or a topic, and call handlers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from faststream import AckPolicy
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from pynotify.contrib._lasting import LOST
from pynotify.contrib.faststream._config import (
    PynotifyBrokerConfig,
    PynotifySubscriberConfig,
    PynotifySubscriberSpecificationConfig,
)
from pynotify.contrib.faststream._declared import TopicSub
from pynotify.contrib.faststream._message import BatchParser, Parser
from pynotify.contrib.faststream._publisher import ReplyPublisher
from pynotify.contrib.faststream._wire import RawMessage, taken_of
from pynotify.errors import Error, MessageNotInFlight, NotOwner, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

    from pynotify.contrib.faststream._message import PynotifyMessage
    from pynotify.contrib.faststream._session import Source

__all__ = ["Subscriber"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


def _with_prefix(source: str | TopicSub, prefix: str) -> str | TopicSub:
    return prefix + source if isinstance(source, str) else source.with_prefix(prefix)


class Specification(
    SubscriberSpecification[PynotifyBrokerConfig, PynotifySubscriberSpecificationConfig]
):
    """A subscriber in AsyncAPI."""

    @property
    def address(self) -> str:
        """The channel or topic, with the prefixes of routers."""
        source = _with_prefix(self.config.source, self._outer_config.prefix)
        return source if isinstance(source, str) else source.topic

    @property
    def channel_labels(self) -> list[str]:
        """The names AsyncAPI's channel goes under: there is one."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """The schema under its name."""
        message = Message(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        return {
            self.name: SubscriberSpec(
                address=self.address,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class Subscriber(SubscriberUsecase[RawMessage]):
    """Made by `broker.subscriber`.  `max_workers` tasks take messages and call handlers."""

    _outer_config: PynotifyBrokerConfig

    def __init__(
        self,
        config: PynotifySubscriberConfig,
        specification: Specification,
        calls: CallsCollection[RawMessage],
        max_workers: int,
    ) -> None:
        batch = isinstance(config.source, TopicSub) and config.source.batch
        if batch:
            of_batches = BatchParser(self._in_transaction)
            config.parser, config.decoder = of_batches.parse_batch, of_batches.decode_batch
        else:
            parser = Parser(self._in_transaction)
            config.parser, config.decoder = parser.parse_message, parser.decode_message
        super().__init__(config, cast("SubscriberSpecification", specification), calls)
        self._declared, self._max_workers = config.source, max_workers
        self._source: Source | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    @property
    def source(self) -> str | TopicSub:
        """The channel's name, or the topic, with the prefixes of routers."""
        return _with_prefix(self._declared, self._outer_config.prefix)

    def _in_transaction(self) -> bool:
        return self._outer_config.session.in_transaction()

    # ---- its life ------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe, and start the tasks if there are handlers.  Once more changes nothing."""
        if self._source is not None:
            return
        await super().start()
        self._source = await self._opened()
        self._stopping = asyncio.Event()
        if self.calls:
            self._tasks = [
                asyncio.create_task(self._work(self._source)) for _ in range(self._max_workers)
            ]
        self._post_start()

    async def _opened(self) -> Source:
        source, session = self.source, self._outer_config.session
        if isinstance(source, str):
            return await session.listen(source)
        least = self._max_workers * (source.max_records if source.batch else 1)
        return await session.consume(source, source.max_in_flight or least)

    async def stop(self) -> None:
        """Take no more; wait for handlers, at most the `graceful_timeout` of the broker.

        What is not answered by then goes to other processes.
        """
        self.running = False
        self._stopping.set()
        source, self._source = self._source, None
        tasks, self._tasks = self._tasks, []
        try:
            if source is not None:
                await source.drain()
            await super().stop()
        finally:
            # A handler may have raised StopConsume: then this runs in one of the tasks.
            others = [task for task in tasks if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if source is not None:
                await source.close()

    async def _work(self, source: Source) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                async with aclosing(source.messages()) as messages:
                    async for raw in messages:
                        await self.consume(raw)
                        await self._give_back(raw)
                        pause = _FIRST_PAUSE_S
                return
            except Error as error:  # no lock in time, no room for a dead letter
                said = str(error).partition("\n")[0]
                self._log(
                    logging.ERROR,
                    f"{said}; the next attempt is in {pause:g} s",
                    extra=self.get_log_context(None),
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _give_back(self, raw: RawMessage) -> None:
        """A handler that raises SkipMessage leaves its message unanswered: another one gets it."""
        if not self.running or self.ack_policy is AckPolicy.MANUAL:
            return
        for taken in taken_of(raw):
            if not taken.answered:
                with contextlib.suppress(MessageNotInFlight, NotOwner, TopicDeleted, *LOST):
                    await taken.requeue()

    # ---- without handlers ----------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> PynotifyMessage | None:
        """The next message, None: there was none for `timeout` seconds.

        It is acknowledged, unless `ack_policy` is MANUAL.  Raises AssertionError when there are
        handlers, or the subscriber was not started.
        """
        return await self._processed(await self._without_handlers().take(timeout))

    async def __aiter__(self) -> AsyncIterator[PynotifyMessage]:
        """Messages as they come, as `get_one` returns them."""
        async with aclosing(self._without_handlers().messages()) as messages:
            async for raw in messages:
                message = await self._processed(raw)
                if message is not None:
                    yield message

    def _without_handlers(self) -> Source:
        assert not self.calls, "a subscriber that has handlers gives its messages to them"
        assert self._source is not None, "the subscriber is not started"
        return self._source

    async def _processed(self, raw: RawMessage | None) -> PynotifyMessage | None:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message: Any = await process_msg(
            msg=raw,
            middlewares=(each(raw, context=context) for each in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        if message is not None and self.ack_policy is not AckPolicy.MANUAL:
            await message.ack()
        made: PynotifyMessage | None = message
        return made

    # ---- what FastStream asks for --------------------------------------------------------

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """What the columns of a line of the log show."""
        source = self.source
        return {
            "source": source if isinstance(source, str) else f"{source.topic}/{source.channel}",
            "message_id": getattr(message, "message_id", ""),
        }
