"""FastAPI: subscribers of a segment in an application, with FastAPI's dependencies.

```
from fastapi import Depends, FastAPI

from pynotify.contrib.faststream.fastapi import PynotifyRouter

router = PynotifyRouter("app")
app = FastAPI()

@router.subscriber(topic="mails")
async def mail(to: str, session: Session = Depends(session)) -> None: ...

@router.post("/mails")
async def later(to: str) -> None:
    await router.broker.publish(to, topic="mails")

app.include_router(router)
```

The broker starts and stops with the application, in each of its processes.  It stands on
`faststream._internal.fastapi`, as the routers of FastStream's own brokers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi.datastructures import Default
from faststream._internal.constants import EMPTY
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from pynotify._async_connection import AsyncConnection
from pynotify.contrib.faststream import _broker, _message
from pynotify.contrib.faststream._wire import RawMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import params
    from fastapi.types import IncEx
    from faststream import AckPolicy
    from faststream._internal.context import ContextRepo as Repo
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

    from pynotify.contrib.faststream._declared import TopicSub
    from pynotify.contrib.faststream._publisher import Publisher
    from pynotify.contrib.faststream._subscriber import Subscriber

#: FastAPI takes the annotation of what a handler returns.
_ANNOTATED: Any = Default(None)

__all__ = [
    "Connection",
    "Context",
    "ContextRepo",
    "Logger",
    "PynotifyBroker",
    "PynotifyMessage",
    "PynotifyRouter",
]

#: Annotations of a handler's parameters, as those of `pynotify.contrib.faststream`, which FastAPI
#: does not know.
PynotifyMessage = Annotated[_message.PynotifyMessage, Context("message")]
PynotifyBroker = Annotated[_broker.PynotifyBroker, Context("broker")]
Connection = Annotated[AsyncConnection, Context("broker._connection")]


class PynotifyRouter(StreamRouter[RawMessage]):
    """A router of FastAPI that has a broker on a segment, and starts it with the application.

    `options` are those of `PynotifyBroker`, of `pynotify.connect`, and of FastAPI's APIRouter:
    `prefix`, `dependencies` and `tags` are FastAPI's, `specification_tags` AsyncAPI's.
    `schema_url`: where AsyncAPI's pages are, None: nowhere.  `setup_state`: the broker is in the
    state of the application's lifespan.
    """

    broker_class = _broker.PynotifyBroker
    broker: _broker.PynotifyBroker

    def __init__(
        self, segment: str = "default", *, context: Repo | None = None, **options: Any
    ) -> None:
        super().__init__(segment, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        channel: str | None = None,
        *,
        topic: str | TopicSub | None = None,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[params.Depends] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        response_model: Any = _ANNOTATED,
        response_model_include: IncEx | None = None,
        response_model_exclude: IncEx | None = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
    ) -> Subscriber:
        """`PynotifyBroker.subscriber`, whose handlers have parameters as those of FastAPI's routes.

        `dependencies` and `response_model` and its like are FastAPI's.
        """
        made = super().subscriber(
            channel,  # type: ignore[arg-type]
            topic=topic,
            max_workers=max_workers,
            ack_policy=ack_policy,
            no_reply=no_reply,
            dependencies=dependencies,
            parser=parser,
            decoder=decoder,
            codec=codec,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
        )
        return cast("Subscriber", made)

    def publisher(
        self,
        channel: str | None = None,
        *,
        topic: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> Publisher:
        """`PynotifyBroker.publisher`: what it decorates is sent to that channel or topic."""
        return self.broker.publisher(
            channel,
            topic=topic,
            headers=headers,
            reply_to=reply_to,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
