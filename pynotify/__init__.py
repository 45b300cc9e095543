"""LISTEN/NOTIFY between the processes of one host, in shared memory.

with pynotify.connect("app") as conn:
    conn.listen("jobs")
    conn.notify("jobs", "hello")
    for n in conn.notifies():
        print(n.channel, n.payload, n.pid)
"""

import logging

from pynotify._batch import NotifyBatch
from pynotify._connection import Connection
from pynotify._engine import Engine, open, segments, unlink
from pynotify._process import connect, get
from pynotify._transaction import Transaction
from pynotify._types import BackendStat, CheckReport, EngineStat, Gap, Notify, SegmentInfo
from pynotify.errors import (
    ActiveTransaction,
    ConnectionLost,
    Error,
    ForkedConnectionError,
    InFailedTransaction,
    InterfaceError,
    InvalidChannelName,
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
    Timeout,
    TooManyBackends,
    TooManyChannels,
    TopicDeleted,
    TopicFull,
)

__all__ = [
    "ActiveTransaction",
    "BackendStat",
    "CheckReport",
    "Connection",
    "ConnectionLost",
    "Engine",
    "EngineStat",
    "Error",
    "ForkedConnectionError",
    "Gap",
    "InFailedTransaction",
    "InterfaceError",
    "InvalidChannelName",
    "InvalidSavepoint",
    "InvalidTopicName",
    "LayoutMismatch",
    "LockTimeout",
    "MessageNotInFlight",
    "NoActiveTransaction",
    "NotOwner",
    "Notify",
    "NotifyBatch",
    "OperationalError",
    "OutOfOrderTransactionNesting",
    "PayloadDecodeError",
    "PayloadTooLong",
    "ProgrammingError",
    "QueueFull",
    "Rollback",
    "SegmentCorrupt",
    "SegmentFull",
    "SegmentInfo",
    "SegmentNotFound",
    "SegmentUnlinked",
    "Timeout",
    "TooManyBackends",
    "TooManyChannels",
    "TopicDeleted",
    "TopicFull",
    "Transaction",
    "connect",
    "get",
    "open",
    "segments",
    "unlink",
]

# As psycopg: warnings are shown, the rest when somebody asks for it.
_logger = logging.getLogger("pynotify")
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.WARNING)

# Users meet the names here; tracebacks, pickles and help() say so too.
for _name in __all__:
    globals()[_name].__module__ = "pynotify"
del _name
