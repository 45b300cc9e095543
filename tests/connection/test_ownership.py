"""What is closed or garbage is never used again, in whatever order it goes.

Each test runs in a process of its own, which use after free ends, or makes say something else than
that the connection is closed.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from crowd import switching
from pynotify import _hot
from pynotify._ffi import lib
from sessions import EngineFactory, Worker

PACKAGE = str(Path(pynotify.__file__).parent)


@pytest.fixture(params=["0", "165"], ids=["as it is", "overwritten"])
def wary(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """What is in freed memory."""
    worker = Worker(MALLOC_PERTURB_=request.param)
    yield worker
    worker.close()


@pytest.fixture
def overwriting() -> Iterator[Worker]:
    worker = Worker(MALLOC_PERTURB_="165")
    yield worker
    worker.close()


class Owner:
    """Whose parts are objects of the API, all in one reference cycle."""

    def __init__(self, name: str) -> None:
        self.conn = pynotify.connect(name)
        self.parts: list[object] = []
        self.callbacks = [self.batch]  # as in any class that registers its own methods

    def transaction(self) -> object:
        block = self.conn.transaction()
        block.__enter__()
        self.conn.notify("c", "never")
        return block

    def prepared(self) -> object:
        block = self.conn.transaction()
        block.__enter__()
        self.conn.listen("c")
        block.prepare()
        return block

    def consumer(self) -> pynotify.Consumer:
        return self.conn.topic("t").channel("c").consumer()

    def message(self) -> pynotify.Message:
        topic = self.conn.topic("u")
        consumer = topic.channel("c").consumer()
        topic.publish(b"x")
        return consumer.get()

    def batch(self) -> pynotify.NotifyBatch:
        self.conn.listen("b")
        self.conn.notify("b")
        return self.conn.poll_batch()

    def generation(self) -> pynotify.Generation:
        generation = self.conn.generation("g")
        generation.bump()
        return generation

    def handler(self) -> object:
        self.conn.add_notify_handler(self.parts.append)
        return self.conn.notifies()


PARTS: dict[str, Callable[[Owner], object]] = {
    "subscription": lambda owner: owner.conn.subscribe("s"),
    "batch": Owner.batch,
    "generation": Owner.generation,
    "consumer": Owner.consumer,
    "message": Owner.message,
    "pubsub": lambda owner: pynotify.PubSub(owner.conn).subscribe("p"),
    "descriptor": lambda owner: owner.conn.fileno(),
    "handler": Owner.handler,
    "transaction": Owner.transaction,
    "prepared": Owner.prepared,
}


def _drop_pairs(name: str, first: str) -> list[str]:
    gc.disable()
    told = []
    for second, count in itertools.product(PARTS, (1, 2, 3)):
        if {first, second} == {"transaction", "prepared"}:
            continue  # a thread has one
        for _ in range(count):
            owner = Owner(name)
            # A transaction last: subscribing and receiving is not done in one.
            kinds = sorted({first, second}, key=list(PARTS).index)
            owner.parts = [PARTS[kind](owner) for kind in kinds]
        del owner
        gc.collect()
        with pynotify.open(name) as engine:  # not before: its mapping would hide the end of theirs
            left, problems = engine.stat().backends, engine.check().problems
        if left or problems:
            told.append(f"{first} and {second}: {len(left)} slots left, {problems}")
    return told


@pytest.mark.parametrize("first", PARTS)
def test_garbage_cycles(
    make_engine: EngineFactory, engine: pynotify.Engine, wary: Worker, first: str
) -> None:
    """Of each two objects, with their connection."""
    assert wary.call(_drop_pairs, make_engine.name_of(engine), first) == []


class Finalized(Owner):
    """The collector may have come to its parts before it."""

    said: list[str]

    def __del__(self) -> None:
        for use in (
            lambda: self.conn.notify("c", "from a finalizer"),
            self.conn.poll,
            self.conn.queue_usage,
            self.engine.stat,
            self.gen.bump,
            lambda: self.said.append(f"{self.gen.value > 0}"),
            self.mine.stats,
            self.got.finish,
            lambda: self.open.__exit__(None, None, None),
            lambda: self.mine.get(0),
            self.mine.close,
            self.conn.close,
            lambda: self.conn.notify("c", "too late"),
        ):
            try:
                use()
            except (pynotify.InterfaceError, pynotify.Timeout) as error:
                self.said.append(type(error).__name__)

    engine: pynotify.Engine
    gen: pynotify.Generation
    mine: pynotify.Consumer
    got: pynotify.Message
    open: Any


def _finalize(name: str) -> tuple[list[str], int, list[str]]:
    gc.disable()
    said: list[str] = []
    for _ in range(3):
        parts = Owner(name)
        owner = Finalized.__new__(Finalized)  # after its parts: the collector goes by age
        owner.said, owner.conn, owner.callbacks = said, parts.conn, [owner.batch]
        owner.engine = pynotify.open(name)
        owner.gen, owner.got = parts.generation(), parts.message()
        owner.mine = owner.got._consumer
        owner.conn.poll_batch()
        owner.open = parts.transaction()
        del parts, owner
    gc.collect()
    engine = pynotify.open(name)
    return said, len(engine.stat().backends), engine.check().problems


def test_finalizers_in_a_garbage_cycle(
    make_engine: EngineFactory, engine: pynotify.Engine, wary: Worker
) -> None:
    """All that the cycle holds can be used by them."""
    said, backends, problems = wary.call(_finalize, make_engine.name_of(engine))
    assert (backends, problems) == (0, [])
    assert said.count("True") == 3
    assert said.count("InterfaceError") == 3, "what comes after close()"


def _take_apart(name: str) -> list[int]:
    """What each handle answers in the middle of a collection, after every `__del__`."""
    found: list[int] = []

    def look(*_warning: object) -> None:
        handles = [each for each in gc.get_objects() if isinstance(each, _hot.Port)]
        others = [pynotify.connect(name) for _ in range(4)]  # in the memory that was freed
        found.extend(_hot.wait(each, 0) for each in handles)
        del others

    warnings.simplefilter("always", ResourceWarning)
    warnings.showwarning = look
    gc.disable()
    conn = pynotify.connect(name)
    # The collector goes by age.  It does not know the iterator, which warns as it dies.
    dies_next: list[Any] = [os.scandir()]
    dies_last: list[Any] = [conn, conn._handle, dies_next]
    dies_last.append(dies_last)
    del conn, dies_next, dies_last
    gc.collect()
    return found


def test_a_handle_that_the_collector_has_cleared(
    make_engine: EngineFactory, engine: pynotify.Engine, overwriting: Worker
) -> None:
    """What looks at all objects, as a debugger does, finds it closed, and no other connection in
    its place.
    """
    found = overwriting.call(_take_apart, make_engine.name_of(engine))
    assert found == [-lib.PN_ECLOSED]


# ---- closing at every step -----------------------------------------------------------------------


def _in_block(conn: pynotify.Connection) -> None:
    with conn.transaction() as tx:
        conn.notify("b", "x")
        with conn.transaction():
            conn.listen("q")
        tx.prepare()


def _explicitly(conn: pynotify.Connection) -> None:
    conn.begin()
    conn.notify("b", "x")
    conn.savepoint("one")
    conn.unlisten("x")
    conn.rollback_to("one")
    conn.release("one")
    conn.commit()


def _consume(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    channel = topic.channel("c")
    topic.publish("one")
    topic.publish_many(["two", "three"])
    with channel.consumer(max_in_flight=3) as consumer:
        consumer.get().finish()
        with conn.transaction():
            topic.publish("four")
            topic.publish_many(["five", "six"])
            conn.notify("b", "x")
        with consumer.get():
            consumer.stats()
        consumer.get(0).requeue()
        message = consumer.get(0)
        with conn.transaction():
            message.finish()
        consumer.drain()
    channel.stats()
    topic.stats()


def _subscribed(conn: pynotify.Connection) -> None:
    for overflow in ("drop-oldest", "drop-newest"):
        with conn.subscribe("s", maxlen=2, overflow=overflow) as sub:
            conn.notify_many("s", ["1", "2", "3", "4"])
            sub.next()
            sub.next(0)
            conn.poll()


def _received(conn: pynotify.Connection, receive: Callable[[], object]) -> None:
    conn.notify_many("x", ["1", "2", "3"])
    receive()


METHODS: dict[str, Callable[[pynotify.Connection], object]] = {
    "listen": lambda conn: conn.listen("a", "b"),
    "unlisten": lambda conn: conn.unlisten("x"),
    "unlisten_all": lambda conn: conn.unlisten_all(),
    "listening_channels": lambda conn: conn.listening_channels(),
    "notify": lambda conn: conn.notify("b", "x"),
    "notify_many": lambda conn: conn.notify_many("b", ["x", "y"]),
    "queue_usage": lambda conn: conn.queue_usage(),
    "generation": lambda conn: conn.generation("g").bump(),
    "fileno": lambda conn: conn.fileno(),
    "block": _in_block,
    "begin": _explicitly,
    "poll": lambda conn: _received(conn, conn.poll),
    "poll_batch": lambda conn: _received(conn, conn.poll_batch),
    "notifies": lambda conn: _received(conn, lambda: list(conn.notifies(timeout=0))),
    "wait": lambda conn: _received(conn, conn.wait),
    "wait(0)": lambda conn: _received(conn, lambda: conn.wait(0)),
    "subscribe": _subscribed,
    "topics": _consume,
    "pubsub": lambda conn: pynotify.PubSub(conn).publish("p", {"x": 1}),
}


class ClosingAt:
    """Closes the connection at the n-th place at which a signal handler may run."""

    def __init__(self, conn: pynotify.Connection, place: int) -> None:
        self._conn = conn
        self._left = place
        self.reached = False

    def __call__(self, frame: Any, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            self._left -= 1
            if self._left == 0:
                self.reached = True
                sys.setprofile(None)
                self._conn.close()


def _close_at_every_place(name: str, method: str) -> tuple[int, list[str]]:
    engine = pynotify.open(name)
    told = []
    for place in range(1, 5000):
        conn = engine.connect()
        conn.listen("x")
        at = ClosingAt(conn, place)
        sys.setprofile(at)
        try:
            METHODS[method](conn)
        except pynotify.InterfaceError as error:
            if not any(word in str(error) for word in ("closed", "drained")):
                told.append(f"{place}: {error!r}")
        except BaseException as error:
            told.append(f"{place}: {error!r}")
        finally:
            sys.setprofile(None)
        conn.close()
        del conn
        backends, problems = engine.stat().backends, engine.check().problems
        if backends or problems:
            told.append(f"{place}: {len(backends)} slots left, {problems}")
        if not at.reached or len(told) > 5:
            break
    return place, told


@pytest.mark.parametrize("method", METHODS)
def test_a_signal_handler_closes(
    make_engine: EngineFactory, engine: pynotify.Engine, overwriting: Worker, method: str
) -> None:
    """Whatever it interrupts says that the connection is closed, or is done."""
    places, told = overwriting.call(_close_at_every_place, make_engine.name_of(engine), method)
    assert told == []
    assert places > (0 if method in ("notify", "notify_many") else 3)  # one call of C each


def _close_meanwhile(name: str, method: str, rounds: int) -> list[str]:
    engine = pynotify.open(name)
    told: list[str] = []
    for number in range(rounds):
        conn = engine.connect()
        conn.listen("x")
        begun = threading.Event()

        def work(conn: pynotify.Connection = conn, begun: threading.Event = begun) -> None:
            begun.set()
            try:
                while True:
                    METHODS[method](conn)
            except pynotify.InterfaceError as error:
                if not any(word in str(error) for word in ("closed", "drained")):
                    told.append(repr(error))
            except BaseException as error:
                told.append(repr(error))

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(number % 7):
            engine.stat()
        conn.close()
        thread.join()
        del conn, work
        backends, problems = engine.stat().backends, engine.check().problems
        if backends or problems:
            told.append(f"round {number}: {len(backends)} slots left, {problems}")
        if told:
            break
    return told


def _close_meanwhile_switching(name: str, method: str, interval: float | None) -> list[str]:
    with switching(interval):
        return _close_meanwhile(name, method, 15)


@pytest.mark.parametrize("interval", [None, 1e-5], ids=["usual", "hectic"])
@pytest.mark.parametrize("method", METHODS)
def test_another_thread_closes(
    make_engine: EngineFactory,
    engine: pynotify.Engine,
    overwriting: Worker,
    method: str,
    interval: float | None,
) -> None:
    assert (
        overwriting.call(_close_meanwhile_switching, make_engine.name_of(engine), method, interval)
        == []
    )
