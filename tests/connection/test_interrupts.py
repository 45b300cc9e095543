"""Signal handlers of Python that interrupt a receiver: they raise (Ctrl-C), or receive themselves.

An interrupted thread has read for others as well.  Nothing of that may be lost, nothing may come
twice, and a thread must look out for those that go on waiting.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import pynotify
from interrupting import PACKAGE, At, Interruption
from receiving import PATIENCE, drain, payloads, shown, wait_until
from sessions import Connect, EngineFactory, NewWorker
from waiting import Call, await_waiting

Message = pynotify.Notify | pynotify.Gap


def nobody_waits(conn: pynotify.Connection) -> bool:
    return not (
        conn.link.receiver.election.occupied
        or conn.link.receiver.election.followers
        or conn.link.receiver.inboxes.main.waiters
        or any(inbox.waiters for inbox in conn.link.receiver.inboxes.all)
    )


MAIN: dict[str, Callable[[pynotify.Connection], Any]] = {
    "poll": lambda conn: conn.poll(),
    "poll(1)": lambda conn: conn.poll(max=1),
    "poll_batch": lambda conn: conn.poll_batch(),
    "notifies": lambda conn: [next(conn.notifies())],
    "wait": lambda conn: conn.wait() and None,
    "wait(0)": lambda conn: conn.wait(0) and None,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestEveryPlace:
    """One after the other, until the call comes through without having reached the place."""

    @pytest.mark.parametrize("handled", [False, True], ids=["", "with a notify handler"])
    @pytest.mark.parametrize("how", MAIN)
    def test_alone(
        self, conn: pynotify.Connection, connect: Connect, how: str, handled: bool
    ) -> None:
        other = connect()
        conn.listen("m")
        if handled:
            conn.add_notify_handler(lambda message: None)
        for place in range(1, 1000):
            sent = [f"{place} {number}" for number in range(3)]
            other.notify_many("m", sent)
            at = At(place)
            heard = payloads(at.attempt(lambda: MAIN[how](conn)) or [])
            assert nobody_waits(conn)
            assert heard + payloads(conn.poll()) == sent
            if not at.reached:
                break
        # poll() is one call of C, at whose begin and end a signal handler may raise.
        assert place > (2 if how.startswith("poll") and not handled else 5)

    @pytest.mark.parametrize("size", [10, 3000])
    @pytest.mark.parametrize("how", ["poll", "poll_batch"])
    def test_a_large_backlog(self, conn: pynotify.Connection, how: str, size: int) -> None:
        """It is read in pieces; the limit is between two of them, and inside of one."""
        conn.listen("m")
        number = 1_000_000 // size if size > 1000 else 5_000
        sent = [f"{i:0{size}}" for i in range(number)]
        limit = number // 2
        receive = getattr(conn, how)
        for place in range(1, 1000):
            conn.notify_many("m", sent)
            at = At(place)
            first = list(at.attempt(lambda: receive(limit)) or [])
            assert len(first) == (0 if at.reached else limit)
            assert payloads(first) + payloads(conn.poll()) == sent, place
            if not at.reached:
                break

    @pytest.mark.parametrize("how", [*MAIN, "next", "next(0)"])
    def test_with_subscriptions(
        self, conn: pynotify.Connection, connect: Connect, how: str
    ) -> None:
        """For each of them, whatever its overflow does with it, as if nothing had happened."""
        other = connect()
        conn.listen("m")
        ours, theirs = conn.subscribe("s", "m"), conn.subscribe("s")
        oldest = conn.subscribe("s", maxlen=1)
        newest = conn.subscribe("s", maxlen=1, overflow="drop-newest")
        for place in range(1, 1000):
            sent = [f"{place} {number}" for number in range(3)]
            with other.transaction():
                for name in sent:
                    other.notify("s", name)
                    other.notify("m", name)
            at = At(place)
            if how in MAIN:
                main, mine = payloads(at.attempt(lambda: MAIN[how](conn)) or []), []
            else:
                timeout = 0 if how == "next(0)" else PATIENCE
                message = at.attempt(lambda timeout=timeout: ours.next(timeout))
                main, mine = [], [message.payload] if message else []
            assert nobody_waits(conn)
            assert mine + shown(drain(ours)) == [name for name in sent for _ in "sm"]
            assert shown(drain(theirs)) == sent
            assert shown(drain(oldest)) == [2, sent[2]]
            assert shown(drain(newest)) == [sent[0], 2]
            assert oldest.dropped == newest.dropped == 2 * place
            assert main + payloads(conn.poll()) == sent
            if not at.reached:
                break
        assert place > 50

    @pytest.mark.parametrize("role", ["leading", "following"])
    @pytest.mark.parametrize("how", ["wait", "next"])
    def test_while_another_thread_waits(
        self, conn: pynotify.Connection, connect: Connect, how: str, role: str
    ) -> None:
        """It gets what is its own at once, whether we have read for it, or it for us."""
        other = connect()
        conn.listen("m")
        ours, theirs = conn.subscribe("s", maxlen=None), conn.subscribe("t", maxlen=None)
        for place in range(1, 1000):
            over = threading.Event()
            another = Call(theirs.next) if role == "following" else None
            if another is not None:
                await_waiting(conn, 1)
            director = Call(send_when_both_wait, conn, other, theirs, another, over)
            at = At(place)
            message = at.attempt(
                (lambda: ours.next(PATIENCE)) if how == "next" else lambda: conn.wait(PATIENCE)
            )
            over.set()
            assert director.result().result().payload == "theirs"
            if how == "wait" or message is None:
                message = ours.next(PATIENCE)
            assert message.payload == "ours"
            assert payloads(conn.poll()) == ["main"]
            assert nobody_waits(conn)
            if not at.reached:
                break
        assert place > 20

    @pytest.mark.parametrize("how", ["poll", "wait(0)", "next(0)"])
    def test_while_another_thread_sleeps_in_the_core(
        self, conn: pynotify.Connection, connect: Connect, how: str
    ) -> None:
        """Its message is in our hands, and it would sleep on.

        Now and then it reads for us instead: so all places, also when one was not reached.  A
        forgotten thread goes on when the slow timer ticks, after about a second.
        """
        other = connect()
        conn.listen("m")
        ours, theirs = conn.subscribe("s"), conn.subscribe("t")
        late = 0
        for place in range(1, 100):
            call = Call(theirs.next)
            await_waiting(conn, 1)
            send_all(other)
            at = At(place)
            if how == "next(0)":
                message = at.attempt(lambda: ours.next(0))
            else:
                main = payloads(at.attempt(lambda: MAIN[how](conn)) or [])
                message = None
            began = time.monotonic()
            assert call.result().payload == "theirs"
            late += time.monotonic() - began > 0.5
            assert nobody_waits(conn)
            assert (message or ours.next(0)).payload == "ours"
            assert (main if how == "poll" else []) + payloads(conn.poll()) == ["main"]
        assert late < 5


def send_all(other: pynotify.Connection) -> None:
    with other.transaction():
        other.notify("t", "theirs")
        other.notify("s", "ours")
        other.notify("m", "main")


def send_when_both_wait(
    conn: pynotify.Connection,
    other: pynotify.Connection,
    theirs: pynotify.Subscription,
    another: Call | None,
    over: threading.Event,
) -> Call:
    """Start the other thread, if there is none, as soon as the interrupted one leads."""
    election = conn.link.receiver.election

    def waiting(threads: int) -> bool:
        leader = election.leader
        in_core = leader is not None and leader.in_core
        return in_core and (over.is_set() or len(election.followers) == threads - 1)

    if another is None:
        wait_until(lambda: over.is_set() or waiting(1), "one waits")
        another = Call(theirs.next)
    wait_until(lambda: waiting(2), "both wait")
    send_all(other)
    return another


# ---- real signals, in a process of its own: handlers run in its main thread --------------------


def _in_the_main_thread(name: str, part: Callable[..., Any], *arguments: Any) -> Any:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pynotify.connect(name) as conn, pynotify.connect(name) as other:
        return part(conn, other, *arguments)


def _when_waiting(conn: pynotify.Connection, threads: int, number: int) -> Call:
    """Signal this process as soon as so many threads wait."""

    def send() -> None:
        await_waiting(conn, threads)
        os.kill(os.getpid(), number)

    return Call(send)


def _ctrl_c(
    conn: pynotify.Connection, other: pynotify.Connection, how: str, leads: bool
) -> list[str]:
    """Three others wait; what they and we get afterwards."""
    conn.listen("m")
    subs = [conn.subscribe(str(number)) for number in range(4)]

    def start() -> list[Call]:
        if leads:
            await_waiting(conn, 1)
        return [Call(sub.next) for sub in subs[1:]]

    starter = Call(start)
    if not leads:
        starter.result()
        await_waiting(conn, 3)
    killer = _when_waiting(conn, 4, signal.SIGINT)
    heard = []
    try:
        subs[0].next() if how == "next" else conn.wait()
    except KeyboardInterrupt:
        heard.append("interrupted")
    killer.result()
    await_waiting(conn, 3)
    for number in range(4):
        other.notify(str(number), str(number))
    other.notify("m", "m")
    heard += [call.result().payload for call in starter.result()]
    return [*heard, subs[0].next().payload, *payloads(conn.poll())]


@pytest.mark.parametrize("leads", [True, False], ids=["leading", "following"])
@pytest.mark.parametrize("how", ["next", "wait"])
def test_ctrl_c_while_others_wait(
    make_engine: EngineFactory,
    engine: pynotify.Engine,
    new_worker: NewWorker,
    how: str,
    leads: bool,
) -> None:
    """They go on, and nothing is lost."""
    result = new_worker().call(
        _in_the_main_thread, make_engine.name_of(engine), _ctrl_c, how, leads
    )
    assert result == ["interrupted", "1", "2", "3", "0", "m"]


def _handler_that_receives(
    conn: pynotify.Connection, other: pynotify.Connection, leads: bool
) -> tuple[list[str], list[str], list[str]]:
    """The handler takes what is there for poll(), and for another subscription."""
    conn.listen("m")
    ours, theirs, third = (conn.subscribe(name) for name in ("ours", "theirs", "third"))
    taken: list[str] = []

    def handler(_number: int, _frame: object) -> None:
        other.notify("m", "1")
        other.notify("third", "2")
        assert conn.wait(0)
        taken.extend(payloads(conn.poll()))
        taken.append(third.next(0).payload)
        assert not conn.wait(0)
        assert not conn.wait(0.01)
        other.notify("third", "3")
        taken.append(third.next(PATIENCE).payload)

    def follow() -> pynotify.Notify:
        if leads:
            await_waiting(conn, 1)
        return theirs.next()

    signal.signal(signal.SIGUSR2, handler)
    follower = Call(follow)
    if not leads:
        await_waiting(conn, 1)

    def send() -> None:
        _when_waiting(conn, 2, signal.SIGUSR2).result()
        wait_until(lambda: len(taken) == 3, "the handler has run")
        await_waiting(conn, 2)
        other.notify("theirs", "x")
        other.notify("ours", "y")

    sender = Call(send)
    heard = [ours.next().payload]
    sender.result()
    return taken, [follower.result().payload], heard


@pytest.mark.parametrize("leads", [True, False], ids=["leading", "following"])
def test_a_handler_that_receives(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker, leads: bool
) -> None:
    """By every method, on the connection on which the interrupted thread waits."""
    result = new_worker().call(
        _in_the_main_thread, make_engine.name_of(engine), _handler_that_receives, leads
    )
    assert result == (["1", "2", "3"], ["x"], ["y"])


def _handler_that_takes_over(conn: pynotify.Connection, other: pynotify.Connection) -> list[str]:
    """The interrupted thread follows; then the leader gives up, and only the handler can lead."""
    ours, theirs, urgent = (conn.subscribe(name) for name in ("ours", "theirs", "urgent"))
    heard: list[str] = []
    leader = theirs.start(print)
    await_waiting(conn, 1)

    def handler(_number: int, _frame: object) -> None:
        heard.append(urgent.next(PATIENCE).payload)

    def direct() -> None:
        _when_waiting(conn, 2, signal.SIGUSR2).result()
        wait_until(lambda: urgent._inbox.waiters, "the handler waits")
        leader.stop()
        await_waiting(conn, 1)
        other.notify("ours", "for us")
        wait_until(lambda: ours._inbox._latest is not None, "it was read, and is ours")
        other.notify("urgent", "for the handler")

    signal.signal(signal.SIGUSR2, handler)
    director = Call(direct)
    heard.append(ours.next(PATIENCE).payload)
    director.result()
    return heard


def test_a_handler_that_waits_leads_when_it_must(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
) -> None:
    result = new_worker().call(
        _in_the_main_thread, make_engine.name_of(engine), _handler_that_takes_over
    )
    assert result == ["for the handler", "for us"]


ENOUGH = 10


def _under_a_storm(
    conn: pynotify.Connection, other: pynotify.Connection, total: int, merciless: bool
) -> tuple[int, list[list[str]]]:
    """Signals at random, whose handler raises wherever it interrupts the package.

    The merciless one does so also while the earlier exception is still on its way out.
    """
    ours, theirs = conn.subscribe("c", maxlen=None), conn.subscribe("c", maxlen=None)
    conn.listen("c")
    interruptions = 0
    # Payloads are looked at in the end: that, too, happens inside of the package.
    got: list[list[Message]] = [[], [], []]

    def handler(_number: int, frame: FrameType | None) -> None:
        nonlocal interruptions
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            if not merciless:
                signal.setitimer(signal.ITIMER_REAL, 0)
            interruptions += 1
            raise Interruption

    def send() -> None:
        for number in range(total):
            other.notify("c", str(number))
            if number % 7 == 0:
                other.queue_usage()

    thread = theirs.start(got[1].append)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0003)
    sender = Call(send)
    complete = (got[1],) if merciless else (got[0], got[2])
    while min(map(len, complete)) < total or interruptions <= ENOUGH:
        try:
            if len(got[0]) < total:
                message = ours.next(0.1)
                got[0].append(message)
            got[2] += conn.poll()
        except pynotify.Timeout:
            continue
        except Interruption:
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    sender.result()
    wait_until(lambda: len(got[1]) == total, "the other thread has everything")
    thread.stop()
    return interruptions, [payloads(part) for part in got]


@pytest.mark.parametrize("merciless", [False, True], ids=["one at a time", "merciless"])
def test_a_storm_of_exceptions(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker, merciless: bool
) -> None:
    """Each thread gets everything, once and in order.

    A thread that is interrupted again during an interruption may lose what was in its own hands.
    """
    total = 15_000
    interruptions, got = new_worker().call(
        _in_the_main_thread, make_engine.name_of(engine), _under_a_storm, total, merciless
    )
    assert interruptions > ENOUGH
    expected = [str(number) for number in range(total)]
    assert got[1] == expected
    if not merciless:
        assert got[0] == got[2] == expected


# ---- sending ------------------------------------------------------------------------------------

SENDING: dict[str, Callable[[pynotify.Connection], object]] = {
    "notify": lambda conn: conn.notify("m", "x"),
    "notify_many": lambda conn: conn.notify_many("m", ["x", "y"]),
    "listen": lambda conn: conn.listen("other"),
    "unlisten": lambda conn: conn.unlisten("other"),
    "commit": lambda conn: conn.commit(),
    "prepared": lambda conn: conn.commit(),
}


@pytest.mark.parametrize("how", SENDING)
def test_an_interrupted_sender(make_engine: EngineFactory, connect: Connect, how: str) -> None:
    """All of it has happened or nothing, and nothing stays reserved."""
    engine = make_engine(queue_pages=64)
    listener = engine.connect()
    listener.listen("m")
    for place in range(1, 1000):
        conn = engine.connect()
        if how in ("commit", "prepared"):
            conn.begin()
            conn.notify("m", "x")
            conn.notify("m", "y" * 5000)
            if how == "prepared":
                next(iter(conn._transactions.values())).prepare()
        at = At(place)
        at.attempt(lambda conn=conn: SENDING[how](conn))
        if conn.in_transaction:  # it had not come to anything
            assert listener.poll() == []
            conn.rollback()
        assert len(listener.poll()) in (0, 1 if how == "notify" else 2)
        conn.notify("m", "on it goes")
        assert payloads(listener.poll()) == ["on it goes"]
        # Half of the queue, which what is still reserved would not leave for long.
        assert conn.notify_many("m", [str(number) * 2000 for number in range(100)]) == 100
        assert len(listener.poll()) == 100
        conn.close()
        del conn
        assert len(engine.stat().backends) == 1
        if not at.reached:
            break
    assert place > (0 if how in ("notify", "notify_many") else 3)  # these are one call of C
    listener.close()
    assert engine.check().ok


def _with_a_backlog(engine: pynotify.Engine) -> pynotify.Connection:
    """Listens to a and b; m0 of a is read, and m1 (b) to m7 (b) are read ahead."""
    conn = engine.connect()
    conn.listen("a")
    conn.listen("b")
    for number in range(8):
        conn.notify("ab"[number % 2], f"m{number}")
    assert next(conn.notifies()).payload == "m0"
    return conn


def test_an_interrupted_unlisten_loses_nothing(engine: pynotify.Engine) -> None:
    """What was read ahead of other channels is there, wherever the exception comes."""
    for place in range(1, 1000):
        conn = _with_a_backlog(engine)
        at = At(place)
        at.attempt(lambda conn=conn: conn.unlisten("b"))
        received = conn.poll()
        assert [got.payload for got in received if got.channel == "a"] == ["m2", "m4", "m6"]
        conn.close()
        if not at.reached:
            break
    assert received == [got for got in received if got.channel == "a"]
    assert place > 20


def test_poll_while_the_thread_unlistens(engine: pynotify.Engine) -> None:
    """It gets what was read ahead, before what came later."""
    conn = _with_a_backlog(engine)
    conn.notify("a", "later")
    received: list[pynotify.Notify] = []
    Interrupting("call", "owes", lambda: received.extend(conn.poll())).during(
        lambda: conn.unlisten("b")
    )
    received += conn.poll()
    assert [got.payload for got in received if got.channel == "a"] == ["m2", "m4", "m6", "later"]
    conn.close()


class Interrupting:
    """Calls a function where a function of the core, or of the package, is done or begins."""

    def __init__(self, event: str, name: str, handler: Callable[[], object]) -> None:
        self._where = event, name
        self._handler = handler

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "") if event.startswith("c_") else ""
        if self._where == (event, name or frame.f_code.co_name):
            sys.setprofile(None)
            self._handler()

    def during(self, call: Callable[[], Any]) -> Any:
        sys.setprofile(self)
        try:
            return call()
        finally:
            sys.setprofile(None)


def test_notify_while_the_thread_commits(conn: pynotify.Connection) -> None:
    """It is refused for what it is, and the commit goes on."""
    errors: list[pynotify.Error] = []

    def handler() -> None:
        try:
            conn.notify("m", "from a handler")
        except pynotify.Error as error:
            errors.append(error)

    conn.listen("m")
    for event in ("c_call", "c_return"):
        conn.begin()
        conn.notify("m", event)
        Interrupting(event, "pn_txn_commit_owned", handler).during(conn.commit)
        assert payloads(conn.poll()) == [event]
    assert [str(error).partition("\n")[0] for error in errors] == [
        "the transaction is being committed"
    ] * 2
    conn.notify("m", "afterwards")
    assert payloads(conn.poll()) == ["afterwards"]


def test_get_in_a_handler_that_interrupts_get(segment_name: str) -> None:
    """Both have the same connection, and no other one is left."""
    inner: list[pynotify.Connection] = []
    outer = Interrupting(
        "call", "connect", lambda: inner.append(pynotify.get(segment_name))
    ).during(lambda: pynotify.get(segment_name))
    assert inner == [outer]
    assert outer.closed is False
    with pynotify.open(segment_name) as engine:
        assert len(engine.stat().backends) == 1
    outer.close()


def test_a_handler_that_raises_in_open(segment_name: str) -> None:
    """Its TimeoutError, which is an OSError, is its own."""

    def expire() -> None:
        raise TimeoutError("of a signal handler")

    at = Interrupting("call", "_open_file", expire)
    with pytest.raises(TimeoutError, match="of a signal handler"):
        at.during(lambda: pynotify.open(segment_name))
    at = Interrupting("c_return", "fstat", expire)
    pynotify.open(segment_name).close()
    with pytest.raises(TimeoutError, match="of a signal handler"):
        at.during(lambda: pynotify.open(segment_name))


#: The calls of C by which what there is to receive comes to Python, and what makes each.
CALLS: dict[str, tuple[str, Callable[[pynotify.Connection], Any]]] = {
    "poll": ("take", lambda conn: conn.poll()),
    "poll(1)": ("take", lambda conn: conn.poll(1)),
    "poll with a notify handler": ("read", lambda conn: conn.poll()),
    "poll of what is there already": ("read", lambda conn: conn.poll()),
    "poll_batch": ("read_columns", lambda conn: list(conn.poll_batch())),
    "notifies": ("read", lambda conn: list(conn.notifies(timeout=0))),
}


@pytest.mark.parametrize("how", CALLS)
def test_a_handler_that_polls_when_a_call_has_read(conn: pynotify.Connection, how: str) -> None:
    """What the call has read is not the handler's as well."""
    call, receive = CALLS[how]
    conn.listen("m")
    if "handler" in how:
        conn.add_notify_handler(lambda message: None)
    for number in range(20):
        conn.notify_many("m", [f"{number} first", f"{number} second"])
        if "already" in how:
            next(conn.notifies())
        inner: list[Message] = []
        outer = Interrupting(
            "c_return", call, lambda inner=inner: inner.extend(conn.poll())
        ).during(lambda: receive(conn))
        received = payloads(outer) + payloads(inner) + payloads(conn.poll())
        assert sorted(received) == [f"{number} first", f"{number} second"]["already" in how :]


def test_a_handler_that_polls_for_less(conn: pynotify.Connection) -> None:
    """The call has read on a channel that is new to it, and will ask for its name."""
    for number in range(20):
        channel = f"new {number}"
        conn.listen(channel)
        conn.notify_many(channel, ["first", "second", "third"])
        inner: list[Message] = []
        outer = Interrupting(
            "c_return", "take", lambda inner=inner: inner.extend(conn.poll(1))
        ).during(conn.poll)
        assert (payloads(inner), payloads(outer)) == (["first"], ["second", "third"])


def test_no_stack_left_for_the_core(conn: pynotify.Connection) -> None:
    """A RecursionError just before it reads does not bring back what it has read before."""
    conn.listen("m")
    conn.notify("m", "1")
    conn.notify("m", "2")
    assert payloads(conn.poll(max=1)) == ["1"]

    def fail() -> None:
        raise RecursionError

    with pytest.raises(RecursionError):
        Interrupting("c_call", "take", fail).during(conn.poll)
    assert payloads(conn.poll()) == ["2"]
    assert conn.poll() == []
