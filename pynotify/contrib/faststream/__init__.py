"""FastStream: a broker on a segment, for the services of a host.

```
from faststream import FastStream

broker = PynotifyBroker("app")
app = FastStream(broker)

@broker.subscriber(topic="mails")   # one of the workers gets it
@broker.publisher("sent")           # every subscriber gets it
async def mail(to: str) -> str: ...
```

`faststream run module:app` runs it.  A channel is a channel of notifications, a topic is work: it
is finished when its handler has returned, and that of a process which is killed comes to another
one at once.

FastStream gives brokers no public interface: this one stands on `faststream._internal`, as
FastStream's own brokers do.  It works with 0.7.6 to 0.7.8; 0.7.5 has other internals.
"""

from __future__ import annotations

from typing import Annotated

from faststream import Context

from pynotify._async_connection import AsyncConnection
from pynotify.contrib.faststream import _message
from pynotify.contrib.faststream._broker import PynotifyBroker
from pynotify.contrib.faststream._command import PynotifyPublishCommand, PynotifyResponse
from pynotify.contrib.faststream._declared import TopicSub
from pynotify.contrib.faststream._registrator import (
    PynotifyPublisher,
    PynotifyRoute,
    PynotifyRouter,
)
from pynotify.contrib.faststream._testing import TestPynotifyBroker
from pynotify.contrib.faststream._wire import ChannelMessage, TopicMessage

__all__ = [
    "ChannelMessage",
    "Connection",
    "PynotifyBroker",
    "PynotifyMessage",
    "PynotifyPublishCommand",
    "PynotifyPublisher",
    "PynotifyResponse",
    "PynotifyRoute",
    "PynotifyRouter",
    "TestPynotifyBroker",
    "TopicMessage",
    "TopicSub",
]

#: Annotations of a handler's parameters: the message, and the broker's connection.
PynotifyMessage = Annotated[_message.PynotifyMessage, Context("message")]
Connection = Annotated[AsyncConnection, Context("broker._connection")]
