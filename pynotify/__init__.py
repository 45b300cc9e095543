"""LISTEN/NOTIFY between the processes of one host, in shared memory.

with pynotify.connect("app") as conn:
    conn.listen("jobs")
    conn.notify("jobs", "hello")
    for n in conn.notifies():
        print(n.channel, n.payload, n.pid)
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from pynotify import _interpreter  # noqa: F401 - first: it refuses a sub-interpreter
from pynotify._batch import NotifyBatch
from pynotify._connect import connect, get
from pynotify._connection import Connection, Transaction
from pynotify._engine import Engine, open
from pynotify._generation import AsyncGeneration, Generation
from pynotify._segments import segments, unlink
from pynotify._subscription import Subscription
from pynotify._types import (
    BackendStat,
    CheckReport,
    EngineStat,
    Gap,
    ListenedChannel,
    Notify,
    SegmentInfo,
)
from pynotify.errors import (
    ActiveTransaction,
    ConnectionLost,
    DataDirInUse,
    DiskFull,
    Error,
    ForkedConnectionError,
    InFailedTransaction,
    InterfaceError,
    InvalidChannelName,
    InvalidPayload,
    InvalidSavepoint,
    InvalidTopicName,
    LayoutMismatch,
    LockTimeout,
    MessageNotInFlight,
    NoActiveTransaction,
    NotOwner,
    OperationalError,
    OutOfOrderTransactionNesting,
    PayloadDecodeError,
    PayloadTooLong,
    ProgrammingError,
    QueueFull,
    Rollback,
    SegmentCorrupt,
    SegmentFull,
    SegmentNotFound,
    SegmentUnlinked,
    SyncFailed,
    Timeout,
    TooManyBackends,
    TooManyChannels,
    TooManyConsumers,
    TooManyGenerations,
    TooManyTopics,
    TopicDeleted,
    TopicFull,
)
from pynotify.topics import (
    AsyncChannel,
    AsyncMessage,
    AsyncTopic,
    Channel,
    ChannelStats,
    Consumer,
    ConsumerStats,
    Message,
    MessageIds,
    PeekedMessage,
    Topic,
    TopicStats,
)

if TYPE_CHECKING:
    from pynotify._async_connection import AsyncConnection, AsyncTransaction
    from pynotify._async_subscription import AsyncSubscription
    from pynotify.pubsub import AsyncPubSub, PubSub, PubSubStats
    from pynotify.topics._async_consumer import AsyncConsumer

    __version__: str

__all__ = [
    "ActiveTransaction",
    "AsyncChannel",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncGeneration",
    "AsyncMessage",
    "AsyncPubSub",
    "AsyncSubscription",
    "AsyncTopic",
    "AsyncTransaction",
    "BackendStat",
    "Channel",
    "ChannelStats",
    "CheckReport",
    "Connection",
    "ConnectionLost",
    "Consumer",
    "ConsumerStats",
    "DataDirInUse",
    "DiskFull",
    "Engine",
    "EngineStat",
    "Error",
    "ForkedConnectionError",
    "Gap",
    "Generation",
    "InFailedTransaction",
    "InterfaceError",
    "InvalidChannelName",
    "InvalidPayload",
    "InvalidSavepoint",
    "InvalidTopicName",
    "LayoutMismatch",
    "ListenedChannel",
    "LockTimeout",
    "Message",
    "MessageIds",
    "MessageNotInFlight",
    "NoActiveTransaction",
    "NotOwner",
    "Notify",
    "NotifyBatch",
    "OperationalError",
    "OutOfOrderTransactionNesting",
    "PayloadDecodeError",
    "PayloadTooLong",
    "PeekedMessage",
    "ProgrammingError",
    "PubSub",
    "PubSubStats",
    "QueueFull",
    "Rollback",
    "SegmentCorrupt",
    "SegmentFull",
    "SegmentInfo",
    "SegmentNotFound",
    "SegmentUnlinked",
    "Subscription",
    "SyncFailed",
    "Timeout",
    "TooManyBackends",
    "TooManyChannels",
    "TooManyConsumers",
    "TooManyGenerations",
    "TooManyTopics",
    "Topic",
    "TopicDeleted",
    "TopicFull",
    "TopicStats",
    "Transaction",
    "connect",
    "get",
    "open",
    "segments",
    "unlink",
]

# As psycopg: warnings are shown, the rest when the program asks for it.
_logger = logging.getLogger("pynotify")
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)

# Users meet the names here; tracebacks, pickles and help() say so too.
for _name in __all__:
    if _name in globals():
        globals()[_name].__module__ = "pynotify"
del _name


#: What needs asyncio, which takes longer to import than all the rest, or json.
_LATER = {
    "AsyncConnection": "pynotify._async_connection",
    "AsyncConsumer": "pynotify.topics._async_consumer",
    "AsyncSubscription": "pynotify._async_subscription",
    "AsyncTransaction": "pynotify._async_connection",
    "AsyncPubSub": "pynotify.pubsub",
    "PubSub": "pynotify.pubsub",
    "PubSubStats": "pynotify.pubsub",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # the metadata's, which takes longer to import than all the rest
        return importlib.import_module("importlib.metadata").version("pynotify-ipc")
    if name not in _LATER:
        raise AttributeError(f"module 'pynotify' has no attribute {name!r}")
    found = getattr(importlib.import_module(_LATER[name]), name)
    found.__module__ = "pynotify"
    globals()[name] = found
    return found
