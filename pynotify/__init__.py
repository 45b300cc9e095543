"""LISTEN/NOTIFY between the processes of one host, in shared memory.

with pynotify.connect("app") as conn:
    conn.listen("jobs")
    conn.notify("jobs", "hello")
    for n in conn.notifies():
        print(n.channel, n.payload, n.pid)
"""

from __future__ import annotations

import sys

from pynotify import _interpreter  # noqa: F401 - first: it refuses a sub-interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pynotify._async_connection import AsyncConnection, AsyncTransaction
    from pynotify._async_subscription import AsyncSubscription
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
    from pynotify.pubsub import AsyncPubSub, PubSub, PubSubStats
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

#: Where each public name is.
_WHERE = {
    "_async_connection": ("AsyncConnection", "AsyncTransaction"),
    "_async_subscription": ("AsyncSubscription",),
    "_batch": ("NotifyBatch",),
    "_connect": ("connect", "get"),
    "_connection": ("Connection", "Transaction"),
    "_engine": ("Engine", "open"),
    "_generation": ("AsyncGeneration", "Generation"),
    "_segments": ("segments", "unlink"),
    "_subscription": ("Subscription",),
    "_types": (
        *("BackendStat", "CheckReport", "EngineStat", "Gap", "ListenedChannel", "Notify"),
        "SegmentInfo",
    ),
    "pubsub": ("AsyncPubSub", "PubSub", "PubSubStats"),
    "topics": (
        *("AsyncChannel", "AsyncMessage", "AsyncTopic", "Channel", "ChannelStats", "Consumer"),
        *("ConsumerStats", "Message", "MessageIds", "PeekedMessage", "Topic", "TopicStats"),
    ),
    "topics._async_consumer": ("AsyncConsumer",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
_MODULE_OF.update((name, "errors") for name in __all__ if name not in _MODULE_OF)
_MODULES = ("errors", "topics")


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        found = getattr(_module(_MODULE_OF[name]), name)
    elif name in _MODULES:
        found = _module(name)
    elif name == "__version__":
        found = _module("_version").version()
    else:
        raise AttributeError(f"module 'pynotify' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})


def _module(name: str) -> Any:
    full = f"pynotify.{name}"
    __import__(full)
    return sys.modules[full]


def _is_command() -> bool:
    """Is this the command line, `pynotify` or `python -m pynotify`?"""
    program: str = (getattr(sys, "argv", None) or [""])[0]
    return program == "-m" or program.rpartition("/")[2] == "pynotify"


#: What needs asyncio, which takes longer to import than all the rest, or json, is imported when it
#: is asked for.  The rest at once: a server that changes its user may not be able to read it then,
#: and what a process has before it forks is there once.  A short command imports what it uses.
_LATER = ("_async_connection", "_async_subscription", "topics._async_consumer", "pubsub")
if not _is_command():
    for _name in ("logging", "signal", "pynotify._headers"):
        __import__(_name)
    for _name, _where in _MODULE_OF.items():
        if _where not in _LATER:
            __getattr__(_name)
    del _name, _where
