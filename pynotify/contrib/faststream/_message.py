"""Messages as handlers get them, and the parsers that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.message import StreamMessage, decode_message

from pynotify.contrib.faststream._wire import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    RawMessage,
    TopicMessage,
    taken_of,
)
from pynotify.errors import MessageNotInFlight, NotOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faststream._internal.basic_types import DecodedMessage

    from pynotify.contrib.faststream._wire import ChannelMessage
    from pynotify.topics import AsyncMessage

__all__ = ["BatchParser", "Parser", "PynotifyMessage"]


class PynotifyMessage(StreamMessage[RawMessage]):
    """A message of a channel or of a topic, or a batch of a topic's.

    Answers are for messages of topics; for one of a channel they do nothing.  Given inside a
    transaction of the broker's connection an answer takes effect with its commit, and after a
    rollback the message can be answered again.  They raise `pynotify.MessageNotInFlight` and
    `pynotify.NotOwner` when the message has timed out.
    """

    #: Whether the connection has a transaction open in the running task.
    in_transaction: Callable[[], bool]

    @property
    def attempts(self) -> int:
        """How often the message was delivered, this time included; of a batch the most.

        1 for a message of a channel.
        """
        return max((taken.attempts for taken in taken_of(self.raw_message)), default=1)

    async def ack(self) -> None:
        """Finish the message."""
        if await self._answer(lambda taken: taken.finish()):
            await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Have the message delivered again, after `delay` seconds, at most 3,600; None: at once."""
        if await self._answer(lambda taken: taken.requeue(delay)):
            await super().nack()

    async def reject(self, reason: str = "rejected") -> None:
        """Give the message up: it goes to the `dead_letter` topic, or is dropped."""
        if await self._answer(lambda taken: taken.dead_letter(reason)):
            await super().reject()

    async def _answer(self, answer: Callable[[AsyncMessage], Awaitable[None]]) -> bool:
        """Whether the message is answered for good, and not only when a transaction commits."""
        if self.committed is not None:
            return False
        taken = taken_of(self.raw_message)
        for one in taken:
            before = one.answered  # in a transaction, which has ended or not
            try:
                await answer(one)
            except (MessageNotInFlight, NotOwner):
                if not before:
                    raise
        return not (taken and self.in_transaction())


class Parser:
    """FastStream's parser and decoder of single messages."""

    def __init__(self, in_transaction: Callable[[], bool] = bool) -> None:
        self._in_transaction = in_transaction

    async def parse_message(self, raw: ChannelMessage | TopicMessage) -> PynotifyMessage:
        """The message, its body not decoded yet."""
        body, headers = raw.content
        return self._made(raw, body, headers)

    async def decode_message(self, message: StreamMessage[Any]) -> DecodedMessage:
        """The body, as its content type says."""
        return decode_message(message)

    def _made(
        self, raw: RawMessage, body: Any, headers: dict[str, str], **options: Any
    ) -> PynotifyMessage:
        first = raw[0] if isinstance(raw, list) else raw
        taken = first.taken if isinstance(first, TopicMessage) else None
        message = PynotifyMessage(
            raw,
            body,
            headers=headers,
            reply_to=headers.get(REPLY_TO, ""),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=None if taken is None else taken.id,
            **options,
        )
        message.in_transaction = self._in_transaction
        return message


class BatchParser(Parser):
    """The same of batches: their headers are those of the first message."""

    async def parse_batch(self, raw: list[TopicMessage]) -> PynotifyMessage:
        """The messages as one, with a list of bodies."""
        contents = [one.content for one in raw]
        headers = [each for _, each in contents]
        return self._made(raw, [body for body, _ in contents], headers[0], batch_headers=headers)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[DecodedMessage]:
        """The bodies, each as its content type says."""
        contents = zip(message.body, message.batch_headers, strict=True)
        return [
            decode_message(
                StreamMessage(message.raw_message, body, content_type=headers.get(CONTENT_TYPE))
            )
            for body, headers in contents
        ]
