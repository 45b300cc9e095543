"""Where subscribers and publishers are declared: brokers and routers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError

from pynotify.contrib.faststream import _publisher, _subscriber
from pynotify.contrib.faststream._config import (
    PynotifyBrokerConfig,
    PynotifyPublisherConfig,
    PynotifyPublisherSpecificationConfig,
    PynotifySubscriberConfig,
    PynotifySubscriberSpecificationConfig,
)
from pynotify.contrib.faststream._declared import TopicSub, destination_of
from pynotify.contrib.faststream._wire import RawMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

__all__ = ["PynotifyPublisher", "PynotifyRegistrator", "PynotifyRoute", "PynotifyRouter"]


class PynotifyRegistrator(Registrator[RawMessage, PynotifyBrokerConfig]):
    """What `PynotifyBroker` and `PynotifyRouter` have in common."""

    def subscriber(  # type: ignore[override]
        self,
        channel: str | None = None,
        *,
        topic: str | TopicSub | None = None,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> _subscriber.Subscriber:
        """Subscribe to a channel or to a topic; the result decorates handlers.

        Each subscriber of a `channel`, in all processes, gets each message.  A message of a `topic`
        goes to one subscriber of each of the topic's channels (`TopicSub`).  `max_workers`: how
        many messages are handled at a time.  `ack_policy` is for topics; by default a message whose
        handler raises is rejected.  The further ones are those of FastStream's other brokers.
        Raises SetupError unless one of `channel` and `topic` is given.
        """
        declared = None if topic is None else TopicSub.of(topic)
        name, is_topic = destination_of(channel, None if declared is None else declared.topic)
        source = declared or name
        if max_workers < 1:
            raise SetupError(f"max_workers must be at least 1, is {max_workers}")
        if not is_topic and ack_policy is not EMPTY:
            warnings.warn(
                "ack_policy is for topics: messages of a channel are not answered",
                RuntimeWarning,
                stacklevel=2,
            )
        outer = cast("PynotifyBrokerConfig", self.config)
        calls: CallsCollection[RawMessage] = CallsCollection()
        specification = _subscriber.Specification(
            outer,
            PynotifySubscriberSpecificationConfig(
                source=source,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
            calls,
        )
        config = PynotifySubscriberConfig(
            source=source, no_reply=no_reply, _outer_config=outer, _ack_policy=ack_policy
        )
        made = _subscriber.Subscriber(config, specification, calls, max_workers)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        channel: str | None = None,
        *,
        topic: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> _publisher.Publisher:
        """A publisher to a channel or to a topic; it decorates handlers, whose results it sends.

        `headers` are those of each message, `reply_to` the channel that a reply goes to.
        Raises SetupError unless one of `channel` and `topic` is given.
        """
        destination, is_topic = destination_of(channel, topic)
        outer = cast("PynotifyBrokerConfig", self.config)
        specification = _publisher.Specification(
            outer,
            PynotifyPublisherSpecificationConfig(
                destination=destination,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        config = PynotifyPublisherConfig(
            destination=destination,
            is_topic=is_topic,
            headers=headers or {},
            reply_to=reply_to,
            _outer_config=outer,
        )
        made = _publisher.Publisher(config, specification)
        super().publisher(made, persistent=persistent)
        return made

    def include_router(
        self,
        router: Registrator[RawMessage, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[RawMessage]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take a `PynotifyRouter` in, `prefix` before its own.  Raises SetupError for another."""
        if not isinstance(router, PynotifyRegistrator):
            raise SetupError(f"a PynotifyRouter can be included, not a {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


class PynotifyPublisher(ArgsContainer):
    """A publisher of a `PynotifyRoute`; it takes what `PynotifyBroker.publisher` takes."""


class PynotifyRoute(SubscriberRoute):
    """A handler for `PynotifyRouter(handlers=)`.

    After the handler, and `publishers`, it takes what `PynotifyBroker.subscriber` takes.
    """


class PynotifyRouter(PynotifyRegistrator, BrokerRouter[RawMessage, PynotifyBrokerConfig]):
    """Subscribers and publishers, to be included in a broker or another router.

    `prefix` stands before the names of its channels and topics.  The further ones are those of
    FastStream's other routers.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[PynotifyRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[PynotifyRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=PynotifyBrokerConfig(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
            ),
        )
