"""The tree of errors, their SQLSTATEs, and what a closed object says."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable

import pytest

import pynotify
from sessions import Connect, EngineFactory

TREE = {
    "InterfaceError": "Error",
    "ForkedConnectionError": "InterfaceError",
    "ProgrammingError": "Error",
    "InvalidChannelName": "ProgrammingError",
    "InvalidTopicName": "ProgrammingError",
    "PayloadTooLong": "ProgrammingError",
    "ActiveTransaction": "ProgrammingError",
    "NoActiveTransaction": "ProgrammingError",
    "InFailedTransaction": "ProgrammingError",
    "InvalidSavepoint": "ProgrammingError",
    "OutOfOrderTransactionNesting": "ProgrammingError",
    "PayloadDecodeError": "ProgrammingError",
    "OperationalError": "Error",
    "QueueFull": "OperationalError",
    "TopicFull": "OperationalError",
    "TooManyBackends": "OperationalError",
    "TooManyChannels": "OperationalError",
    "LayoutMismatch": "OperationalError",
    "SegmentCorrupt": "OperationalError",
    "SegmentNotFound": "OperationalError",
    "SegmentUnlinked": "OperationalError",
    "SegmentFull": "OperationalError",
    "LockTimeout": "OperationalError",
    "MessageNotInFlight": "OperationalError",
    "NotOwner": "OperationalError",
    "SyncFailed": "OperationalError",
    "DataDirInUse": "OperationalError",
    "DiskFull": "OperationalError",
    "TopicDeleted": "OperationalError",
    "ConnectionLost": "OperationalError",
    "Timeout": "Error",
}
SQLSTATES = {
    "InvalidChannelName": "22023",
    "PayloadTooLong": "22023",
    "ActiveTransaction": "25001",
    "SyncFailed": "58030",
    "DataDirInUse": "55006",
    "DiskFull": "53100",
    "NoActiveTransaction": "25P01",
    "InFailedTransaction": "25P02",
    "InvalidSavepoint": "3B001",
    "QueueFull": "54000",
    "TopicFull": "54000",
    "TooManyBackends": "53300",
    "TooManyChannels": "53200",
}


@pytest.mark.parametrize("name", list(TREE))
def test_tree(name: str) -> None:
    assert getattr(pynotify, TREE[name]) in getattr(pynotify, name).__bases__


def test_bases() -> None:
    assert issubclass(pynotify.Error, Exception)
    assert issubclass(pynotify.Timeout, TimeoutError)
    assert issubclass(pynotify.PayloadDecodeError, ValueError)
    assert issubclass(pynotify.Rollback, Exception)
    assert not issubclass(pynotify.Rollback, pynotify.Error)


@pytest.mark.parametrize("name", list(TREE))
def test_sqlstates(name: str) -> None:
    """PostgreSQL's where it has one, else None."""
    assert getattr(pynotify, name).sqlstate == SQLSTATES.get(name)


@pytest.mark.parametrize(
    "name",
    ["Engine", "Connection", "Notify", "Gap", "NotifyBatch", "EngineStat", "BackendStat",
     "CheckReport", "SegmentInfo", "open", "connect", "get", "unlink", "segments", "Rollback",
     *TREE],
)  # fmt: skip
def test_exported(name: str) -> None:
    assert name in pynotify.__all__
    assert hasattr(pynotify, name)


CLOSED_USES: dict[str, Callable[[pynotify.Connection], object]] = {
    "listen": lambda conn: conn.listen("c"),
    "unlisten": lambda conn: conn.unlisten("c"),
    "unlisten_all": lambda conn: conn.unlisten_all(),
    "listening_channels": lambda conn: conn.listening_channels(),
    "notify": lambda conn: conn.notify("c"),
    "notify_many": lambda conn: conn.notify_many("c", ["x"]),
    "queue_usage": lambda conn: conn.queue_usage(),
    "transaction": lambda conn: conn.transaction().__enter__(),
    "begin": lambda conn: conn.begin(),
    "poll": lambda conn: conn.poll(),
    "poll_batch": lambda conn: conn.poll_batch(),
    "wait": lambda conn: conn.wait(0),
    "notifies": lambda conn: next(conn.notifies(timeout=0)),
    "fileno": lambda conn: conn.fileno(),
}


@pytest.mark.parametrize("name", list(CLOSED_USES))
def test_use_of_a_closed_connection(connect: Connect, name: str) -> None:
    """InterfaceError, that is not the one about forks."""
    conn = connect()
    conn.close()
    with pytest.raises(pynotify.InterfaceError) as caught:
        CLOSED_USES[name](conn)
    assert not isinstance(caught.value, pynotify.ForkedConnectionError)
    assert "closed" in str(caught.value)


@pytest.mark.parametrize("name", ["connect", "stat", "check"])
def test_use_of_a_closed_engine(segment_name: str, name: str) -> None:
    engine = pynotify.open(segment_name)
    engine.close()
    with pytest.raises(pynotify.InterfaceError):
        getattr(engine, name)()


def test_properties_of_a_closed_connection(connect: Connect) -> None:
    """What it was can still be asked."""
    conn = connect(database="db")
    pid = conn.pid
    conn.close()
    assert (conn.closed, conn.database, conn.pid) == (True, "db", pid)
    assert not conn.in_transaction


def test_what_to_do_follows_the_message(conn: pynotify.Connection) -> None:
    """After a newline, and in `hint`."""
    with pytest.raises(pynotify.InvalidChannelName) as caught:
        conn.listen("x" * 100)
    message, newline, advice = str(caught.value).partition("\n")
    assert message == "channel name too long"
    assert newline
    assert caught.value.hint == advice


def test_a_name_that_is_too_long_says_what_would_take_it(
    make_engine: EngineFactory, connect: Connect
) -> None:
    """The advice is followed as it is written."""
    with pytest.raises(pynotify.InvalidChannelName) as caught:
        connect().listen("x" * 255)
    option = re.search(r'PYNOTIFY_NAME="(\w+)=(\d+)"', caught.value.hint or "")
    assert option is not None
    connect(to=make_engine(**{option[1]: int(option[2])})).listen("x" * 255)


def test_message_of_a_transaction_that_is_open(conn: pynotify.Connection) -> None:
    conn.begin()
    conn.rollback()
    with pytest.raises(pynotify.NoActiveTransaction) as caught:
        conn.rollback()
    assert str(caught.value).split("\n")[0] == "there is no transaction in progress"


def test_errors_survive_pickle(conn: pynotify.Connection) -> None:
    """They cross process boundaries in pools."""
    with pytest.raises(pynotify.PayloadTooLong) as caught:
        conn.notify("c", "x" * 9000)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is pynotify.PayloadTooLong
    assert (str(copy), copy.sqlstate, copy.hint) == (
        str(caught.value),
        "22023",
        caught.value.hint,
    )


def test_rollback_without_a_transaction(conn: pynotify.Connection) -> None:
    """It is an ordinary exception outside."""
    with pytest.raises(pynotify.Rollback):
        raise pynotify.Rollback
    assert not conn.in_transaction


@pytest.mark.parametrize("method", ["poll", "poll_batch"])
@pytest.mark.parametrize("bad", ["1", 1.5, -1])
def test_bad_max(conn: pynotify.Connection, method: str, bad: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        getattr(conn, method)(max=bad)
