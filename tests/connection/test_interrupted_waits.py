"""Signals that come while a call waits: for room in a full queue, or for the writer lock.

Python's handlers run while the call waits, not after it.  So they can do what it waits for, and the
call succeeds; or raise, and it ends there, having done nothing.  On a core that does not come back
to Python in between, each of these waits would end by itself first, with an error.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import pynotify
from locked import LockHolder
from pynotify._ffi import lib
from pynotify.errors import WouldWait
from receiving import payloads, wait_until
from sessions import EngineFactory, NewWorker, Worker
from victims import kill_victim

PAGE = 7999
ROOM_PATIENCE = 6.0
"""Of the segments with a full queue: longer than a signal takes on a busy machine."""


class Told(BaseException):
    """What a handler raises, as KeyboardInterrupt."""


def is_in_the_kernel(thread: int) -> bool:
    status = Path(f"/proc/self/task/{thread}/stat").read_text()
    return status.rpartition(") ")[2][0] == "S"


@contextmanager
def signalled(handler: Callable[[], object]) -> Iterator[None]:
    """SIGUSR2 for the main thread, as soon as that sleeps in the block."""
    main = os.getpid()  # Thread.native_id is that of the process that forked this one

    def send() -> None:
        begun.wait()
        wait_until(lambda: over.is_set() or is_in_the_kernel(main), "it sleeps")
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGUSR2)

    begun, over = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR2, lambda _number, _frame: handler())
    thread = threading.Thread(target=send)
    thread.start()
    begun.set()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR2, before)


def raise_told() -> None:
    raise Told


# ---- room ---------------------------------------------------------------------------------------


def fill(conn: pynotify.Connection) -> int:
    """The queue is full then; how many."""
    count = 0
    before = lib.pn_set_never_wait(1)
    with suppress(WouldWait):
        while True:
            conn.notify("c", f"{count}".ljust(PAGE))
            count += 1
    lib.pn_set_never_wait(before)
    return count


def send_one(conn: pynotify.Connection) -> None:
    conn.notify("c", "late".ljust(PAGE))


def send_many(conn: pynotify.Connection) -> None:
    assert conn.notify_many("c", ["late".ljust(PAGE)] * 3) == 1


def send_in_block(conn: pynotify.Connection) -> None:
    with conn.transaction():
        send_one(conn)


def send_prepared(conn: pynotify.Connection) -> None:
    with conn.transaction() as tx:
        send_one(conn)
        tx.prepare()


def send_explicitly(conn: pynotify.Connection) -> None:
    if not conn.in_transaction:
        conn.begin()
        send_one(conn)
    conn.commit()


def send_from_generation(conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.generation("g").bump()
        send_one(conn)


def send_with_topic(conn: pynotify.Connection) -> None:
    """What is published in a transaction takes room in the queue."""
    with conn.transaction():
        conn.topic("t").publish("late")
        send_one(conn)


SENDING = [
    send_one,
    send_many,
    send_in_block,
    send_prepared,
    send_explicitly,
    send_from_generation,
    send_with_topic,
]


def _fill_and_send(
    name: str, send: Callable[[pynotify.Connection], None], what: str
) -> list[object]:
    """In a process of its own; `what` the handler does."""
    with pynotify.connect(name) as slow, pynotify.connect(name) as conn:
        slow.listen("c")
        count = fill(conn)
        heard: list[pynotify.Notify] = []
        handler = raise_told if what == "raises" else lambda: heard.extend(slow.poll())
        story: list[object] = []
        try:
            with signalled(handler):
                send(conn)
            story.append("sent")
        except Told:
            story.append("told")
        story.append(conn.in_transaction)
        heard += slow.poll()
        story.append([text.strip() for text in payloads(heard)[count:]])
        if conn.in_transaction:
            send(conn)
        else:
            send_one(conn)  # no sender waits for a place that was given up
        story.append([text.strip() for text in payloads(slow.poll())])
        return story


@pytest.fixture
def full_name(make_engine: EngineFactory) -> str:
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=ROOM_PATIENCE)
    return make_engine.name_of(engine)


@pytest.mark.parametrize("send", SENDING)
def test_a_handler_makes_room(
    full_name: str, new_worker: NewWorker, send: Callable[[pynotify.Connection], None]
) -> None:
    """The call goes on, and sends once."""
    story = new_worker().call(_fill_and_send, full_name, send, "makes room")
    assert story == ["sent", False, ["late"], ["late"]]


@pytest.mark.parametrize("send", SENDING)
def test_a_handler_raises_while_it_waits_for_room(
    full_name: str, new_worker: NewWorker, send: Callable[[pynotify.Connection], None]
) -> None:
    """Nothing has happened.  commit() leaves its transaction open, and can be called again."""
    story = new_worker().call(_fill_and_send, full_name, send, "raises")
    assert story == ["told", send is send_explicitly, [], ["late"]]


def _roll_back_and_send(name: str) -> tuple[bool, list[str]]:
    with pynotify.connect(name) as slow, pynotify.connect(name) as conn:
        slow.listen("c")
        count = fill(conn)
        conn.begin()
        send_one(conn)
        with pytest.raises(Told), signalled(raise_told):
            conn.commit()
        conn.rollback()
        heard = slow.poll()
        conn.notify("c", "afterwards")
        heard += slow.poll()
        return conn.in_transaction, payloads(heard)[count:]


def test_rolled_back_after_it(full_name: str, new_worker: NewWorker) -> None:
    assert new_worker().call(_roll_back_and_send, full_name) == (False, ["afterwards"])


def _roll_back_in_the_handler(name: str) -> tuple[bool, list[str]]:
    with pynotify.connect(name) as slow, pynotify.connect(name) as conn:
        slow.listen("c")
        count = fill(conn)
        conn.begin()
        send_one(conn)
        with (
            pytest.raises(pynotify.ProgrammingError, match="is being committed"),
            signalled(conn.rollback),
        ):
            conn.commit()
        heard = slow.poll()
        conn.commit()
        heard += slow.poll()
        return conn.in_transaction, [text.strip() for text in payloads(heard)[count:]]


def test_a_handler_cannot_roll_back_what_is_being_committed(
    full_name: str, new_worker: NewWorker
) -> None:
    assert new_worker().call(_roll_back_in_the_handler, full_name) == (False, ["late"])


def _ticket_of_one_that_left(name: str) -> list[str]:
    """A sender that gives up waiting for room holds up none behind it."""
    with pynotify.connect(name) as slow, pynotify.connect(name) as conn:
        slow.listen("c")
        count = fill(conn)
        conn.begin()
        send_one(conn)
        with pytest.raises(Told), signalled(raise_told):
            conn.commit()
        heard = slow.poll()  # there is room, and conn is first
        with pynotify.connect(name) as another:
            another.notify("c", "behind")
        conn.commit()
        heard += slow.poll()
        return [text.strip() for text in payloads(heard)[count:]]


def test_one_that_comes_back_later(full_name: str, new_worker: NewWorker) -> None:
    """Its place holds no other up for long, and both are sent."""
    assert new_worker().call(_ticket_of_one_that_left, full_name) == ["behind", "late"]


# ---- the lock -----------------------------------------------------------------------------------


def _open(conn: pynotify.Connection) -> None:
    conn.begin()
    conn.notify("c", "x")


def _take(conn: pynotify.Connection) -> Any:
    conn.topic("t").publish("body")
    return conn.topic("t").channel("ch").consumer().get(timeout=0)


def _name_of(_conn: pynotify.Connection) -> str:
    return _names[-1]


def _consume(conn: pynotify.Connection) -> Any:
    consumer = conn.topic("t").channel("ch").consumer()
    conn.topic("t").publish("body")
    return consumer


def _run(consumer: Any) -> None:
    consumer.run(lambda _message: consumer.drain() and None)


BEFORE: dict[str, Callable[[pynotify.Connection], Any]] = {
    "commit": _open,
    "prepare": lambda conn: conn.transaction().__enter__(),
    "publish": lambda conn: conn.topic("t"),
    "publish_many": lambda conn: conn.topic("t"),
    "publish in a transaction": lambda conn: (conn.topic("t"), conn.begin())[0],
    "finish": lambda conn: (conn.topic("t").channel("ch"), _take(conn))[1],
    "requeue": lambda conn: (conn.topic("t").channel("ch"), _take(conn))[1],
    "bump": lambda conn: conn.generation("g"),
    "channel": lambda conn: conn.topic("t"),
    "consumer": lambda conn: conn.topic("t").channel("ch"),
    "get": _consume,
    "get what is there": _consume,
    "run": _consume,
    "drain": _consume,
    "pause": lambda conn: conn.topic("t"),
    "empty": lambda conn: conn.topic("t").channel("ch"),
    "delete": lambda conn: conn.topic("t"),
    "stats of a topic": lambda conn: conn.topic("t"),
    "topics": lambda conn: conn.topic("t"),
    "peek": lambda conn: conn.topic("t").channel("ch"),
    "stat": lambda conn: pynotify.open(_name_of(conn)),
    "check": lambda conn: pynotify.open(_name_of(conn)),
    "topics of an engine": lambda conn: (conn.topic("t"), pynotify.open(_name_of(conn)))[1],
    "connect": _name_of,
}
CALLS: dict[str, Callable[[pynotify.Connection, Any], Any]] = {
    "notify": lambda conn, _: conn.notify("c", "x"),
    "notify_many": lambda conn, _: conn.notify_many("c", ["x", "y"]),
    "listen": lambda conn, _: conn.listen("d"),
    "unlisten_all": lambda conn, _: conn.unlisten_all(),
    "subscribe": lambda conn, _: conn.subscribe("s"),
    "commit": lambda conn, _: conn.commit(),
    "prepare": lambda conn, tx: tx.prepare(),
    "publish": lambda conn, topic: topic.publish("x"),
    "publish_many": lambda conn, topic: topic.publish_many(["x", "y"]),
    "publish in a transaction": lambda conn, topic: topic.publish("x"),
    "finish": lambda conn, message: message.finish(),
    "requeue": lambda conn, message: message.requeue(),
    "bump": lambda conn, counter: counter.bump(),
    "generation": lambda conn, _: conn.generation("new"),
    "queue_usage": lambda conn, _: conn.queue_usage(),
    "topic": lambda conn, _: conn.topic("new"),
    "channel": lambda conn, topic: topic.channel("new"),
    "consumer": lambda conn, channel: channel.consumer(),
    "get": lambda conn, consumer: consumer.get(),
    "get what is there": lambda conn, consumer: consumer.get(timeout=0),
    "run": lambda conn, consumer: _run(consumer),
    "drain": lambda conn, consumer: consumer.drain(),
    "pause": lambda conn, topic: topic.pause(),
    "empty": lambda conn, channel: channel.empty(),
    "delete": lambda conn, topic: topic.delete(),
    "stats of a topic": lambda conn, topic: topic.stats(),
    "topics": lambda conn, _: conn.topics(),
    "peek": lambda conn, channel: channel.peek(),
    "stat": lambda conn, engine: engine.stat(),
    "check": lambda conn, engine: engine.check(),
    "topics of an engine": lambda conn, engine: engine.topics(),
    "connect": lambda conn, name: pynotify.connect(name).close(),
}


def _prepare_call(name: str, how: str) -> None:
    conn = pynotify.connect(name)
    conn.listen("c")
    _names.append(name)
    _kept[:] = [conn, BEFORE.get(how, lambda _: None)(conn)]


_kept: list[Any] = []
_names: list[str] = []


def _call(how: str, holder: int, what: str) -> str:
    """In the same process; the holder of the lock is a child of another one."""
    conn, thing = _kept
    handler = raise_told if what == "raises" else lambda: os.kill(holder, signal.SIGKILL)
    try:
        with signalled(handler):
            CALLS[how](conn, thing)
        result = "done"
    except Told:
        result = "told"
    return result


def _end_call() -> None:
    conn, _ = _kept
    if conn.in_transaction:
        for block in list(conn._transactions.values()):
            conn.link.transactions.roll_back(block)
    conn.close()
    _kept.clear()


@pytest.fixture
def crash_worker(new_worker: NewWorker) -> Worker:
    return new_worker(PYNOTIFY_CRASHPOINTS="1")


@pytest.mark.parametrize("what", ["kills the holder", "raises"])
@pytest.mark.parametrize("how", CALLS)
def test_the_lock_is_held(
    engine_name: str, lock_holder: LockHolder, crash_worker: Worker, how: str, what: str
) -> None:
    """By a process that is stopped: the handler runs all the same."""
    worker = crash_worker
    worker.call(_prepare_call, engine_name, how)
    lock_holder.hold()
    holder = lock_holder.pid
    result = worker.call(_call, how, holder, what)
    if what == "raises":
        assert result == "told"
        lock_holder.release()
    else:
        assert result == "done"
        lock_holder.pid = 0
        assert lock_holder._nursery.call(kill_victim, holder) == -signal.SIGKILL
    worker.call(_end_call)
    with pynotify.open(engine_name) as engine:
        assert engine.check().ok


def _commit_prepared(holder: int, what: str) -> tuple[str, bool, list[str]]:
    conn, tx = _kept

    def handler() -> None:
        os.kill(holder, signal.SIGKILL)
        if what == "raises":
            raise Told

    result = "done"
    try:
        with signalled(handler):
            tx.__exit__(None, None, None)
    except Told:
        result = "told"
    heard = payloads(conn.poll())
    left = conn.in_transaction
    conn.close()
    _kept.clear()
    return result, left, heard


def _prepare_to_commit(name: str) -> None:
    conn = pynotify.connect(name)
    conn.listen("c")
    tx = conn.transaction()
    tx.__enter__()
    conn.notify("c", "prepared")
    tx.prepare()
    _kept[:] = [conn, tx]


@pytest.mark.parametrize("what", ["returns", "raises"])
def test_what_is_prepared_is_committed(
    engine_name: str, lock_holder: LockHolder, crash_worker: Worker, what: str
) -> None:
    """Handlers run while it waits for the lock; what they raise comes after the commit."""
    crash_worker.call(_prepare_to_commit, engine_name)
    lock_holder.hold()
    holder, lock_holder.pid = lock_holder.pid, 0
    told = "told" if what == "raises" else "done"
    result = crash_worker.call(_commit_prepared, holder, what)
    assert result == (told, False, ["prepared"])
    assert lock_holder._nursery.call(kill_victim, holder) == -signal.SIGKILL
    with pynotify.open(engine_name) as engine:
        assert engine.check().ok


def _unlink(name: str, holder: int, what: str) -> str:
    def handler() -> None:
        os.kill(holder, signal.SIGKILL)
        if what == "raises":
            raise Told

    try:
        with signalled(handler):
            pynotify.unlink(name)
    except Told:
        return "told"
    return "done"


@pytest.mark.parametrize("what", ["returns", "raises"])
def test_unlinking(
    segment_name: str, nursery: Worker, crash_worker: Worker, tmp_path: Path, what: str
) -> None:
    """A segment whose only process stands with the lock."""
    pynotify.open(segment_name).close()
    lock_holder = LockHolder(nursery, segment_name, tmp_path / "log")
    lock_holder.hold()
    result = crash_worker.call(_unlink, segment_name, lock_holder.pid, what)
    assert nursery.call(kill_victim, lock_holder.pid) == -signal.SIGKILL
    assert result == ("told" if what == "raises" else "done")
    if what == "raises":
        pynotify.unlink(segment_name)
