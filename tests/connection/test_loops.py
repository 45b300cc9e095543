"""`fileno()` in every kind of loop: the examples as processes, and what their loops rely on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import select
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import pynotify
from programs import ROOT, Program, require_loop
from receiving import PATIENCE, payloads, readable, wait_until
from sessions import Connect, Worker

EXAMPLES = ROOT / "examples" / "loops"
DOCUMENT = ROOT / "docs" / "loops.md"

#: uvloop.run() is no help: from Python 3.12 on it calls asyncio.run().
_ON_UVLOOP = """
import asyncio, runpy, sys, uvloop
def run(main):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
asyncio.run = run
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: What the interpreter is told: the example, perhaps by way of another program.
COMMANDS = {
    "select": ["select_loop.py"],
    "selectors": ["selectors_loop.py"],
    "epoll": ["epoll_loop.py"],
    "gevent": ["gevent_loop.py"],
    "trio": ["trio_loop.py"],
    "asyncio": ["asyncio_loop.py"],
    "uvloop": ["-c", _ON_UVLOOP, "asyncio_loop.py"],
    "gevent, patched": ["-m", "gevent.monkey", "gevent_loop.py"],
    "select, patched": ["-m", "gevent.monkey", "select_loop.py"],
    "selectors, patched": ["-m", "gevent.monkey", "selectors_loop.py"],
}


# ---- the examples --------------------------------------------------------------------------------


@pytest.fixture
def example(engine: pynotify.Engine, engine_name: str) -> Iterator[Callable[[str, int], Program]]:
    """Starts one, and returns when it listens and sleeps; it wants to receive `count` messages."""
    with contextlib.ExitStack() as stack:

        def run(loop: str, count: int) -> Program:
            require_loop(loop)
            *options, script = COMMANDS[loop]
            program = Program(*options, str(EXAMPLES / script), engine_name, str(count))
            stack.enter_context(program)

            def sleeps() -> bool:
                rows = engine.stat().backends
                return any(row.pid == program.pid and row.channels and row.asleep for row in rows)

            wait_until(lambda: sleeps() or program.ended, "it listens")
            return program

        yield run


def cpu_ns(pid: int) -> int:
    """The processor time of all its threads: clock_getcpuclockid(3), which Python has not."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def switches(pid: int) -> int:
    """How often its threads went to sleep."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        match = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
        assert match
        total += int(match[1])
    return total


def others_are_busy(conn: pynotify.Connection) -> int:
    """Work of other people, by which an idle time is measured; the processor time it took."""
    me = os.getpid()
    began = cpu_ns(me)
    while cpu_ns(me) - began < 200_000_000:
        for number in range(100):
            conn.notify("not listened to", str(number))
    return cpu_ns(me) - began


def assert_it_sleeps(program: Program, engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    """Neither spinning nor looking at intervals: only the slow timer comes, every two seconds."""
    pid = program.pid
    cpu, slept, signals = cpu_ns(pid), switches(pid), engine.stat().signals_sent
    ours = others_are_busy(conn)
    assert cpu_ns(pid) - cpu < ours / 10
    assert switches(pid) - slept <= 10
    assert engine.stat().signals_sent == signals


@pytest.mark.parametrize("loop", COMMANDS)
def test_example_receives_everything_and_sleeps_between(
    loop: str,
    example: Callable[[str, int], Program],
    engine: pynotify.Engine,
    conn: pynotify.Connection,
) -> None:
    """Singly, in bursts, in transactions; in order; and one wake-up for a message or a burst."""
    singles, bursts, burst = 40, 5, 400
    program = example(loop, 1 + singles + bursts * burst + 3)
    conn.notify("jobs", "by now its loop runs")
    assert program.lines(1) == ["by now its loop runs"]
    assert_it_sleeps(program, engine, conn)

    before = engine.stat()
    for number in range(singles):
        conn.notify("jobs", f"single {number}")
        assert program.lines(1) == [f"single {number}"]
    for number in range(bursts):
        sent = [f"burst {number} {index}" for index in range(burst)]
        if number % 2:
            for payload in sent:
                conn.notify("jobs", payload)
        else:
            conn.notify_many("jobs", sent)
        assert program.lines(burst) == sent
    after = engine.stat()
    assert after.wakeups_useless - before.wakeups_useless <= 5
    # a burst of single notifies may be read in pieces
    assert after.wakeups_useful - before.wakeups_useful <= singles + 3 + 2 * burst
    assert after.signals_sent - before.signals_sent <= singles + 3 + 2 * burst

    assert_it_sleeps(program, engine, conn)
    with conn.transaction():
        conn.notify_many("jobs", ["a", "b"])
        with conn.transaction():
            conn.notify("jobs", "rolled back")
            raise pynotify.Rollback
        conn.notify("jobs", "c")
    assert program.end() == "a\nb\nc\n"


@pytest.mark.parametrize("loop", ["select", "gevent", "trio"])
def test_example_that_is_killed_leaves_nothing(
    loop: str,
    example: Callable[[str, int], Program],
    engine: pynotify.Engine,
    conn: pynotify.Connection,
) -> None:
    program = example(loop, 10)
    program.kill()
    conn.notify("jobs", "no reader is there")
    wait_until(lambda: [row.pid for row in engine.stat().backends] == [conn.pid], "it is reaped")


EXCERPT = re.compile(r"^```py\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def without_comments(line: str) -> str:
    return line.partition("  #")[0].strip()


def test_excerpts_of_the_document_stand_in_the_examples() -> None:
    """Blocks in "python" run by themselves, as in all documents; those in "py" are from here."""
    examples = [
        "\n".join(without_comments(line) for line in path.read_text().splitlines())
        for path in EXAMPLES.glob("*.py")
    ]
    excerpts = EXCERPT.findall(DOCUMENT.read_text())
    assert excerpts
    for excerpt in excerpts:
        lines = "\n".join(line.strip() for line in excerpt.splitlines())
        assert [text for text in examples if lines in text], excerpt


def test_every_example_stands_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert [
        path.name for path in EXAMPLES.glob("*.py") if f"examples/loops/{path.name}" not in text
    ] == []


# ---- one message at a time, in loops that are closed and made again -----------------------------
#
# Each function receives exactly `count` messages in a loop of its own, at most `limit` for each
# time that the descriptor was readable, and says how often it was readable for nothing.

Message = pynotify.Notify | pynotify.Gap


class Reading:
    """What has been received by now, and how often there was nothing."""

    def __init__(self, conn: pynotify.Connection, count: int, limit: int | None) -> None:
        self._conn, self._count, self._limit = conn, count, limit
        self.heard: list[str] = []
        self.in_vain = 0

    @property
    def goes_on(self) -> bool:
        return len(self.heard) < self._count

    def step(self) -> bool:
        """What belongs to one time of being readable; whether something came."""
        new = payloads(self._conn.poll(max=self._limit))
        self.heard += new
        self.in_vain += not new
        return bool(new)


def with_select(reading: Reading, conn: pynotify.Connection) -> None:
    while reading.goes_on:
        select.select([conn], [], [])
        reading.step()


def with_poll(reading: Reading, conn: pynotify.Connection) -> None:
    poller = select.poll()
    poller.register(conn, select.POLLIN)
    while reading.goes_on:
        poller.poll()
        reading.step()


def with_selectors(reading: Reading, conn: pynotify.Connection) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(conn, selectors.EVENT_READ)
        while reading.goes_on:
            selector.select()
            reading.step()


def with_epoll(reading: Reading, conn: pynotify.Connection) -> None:
    with select.epoll() as epoll:
        epoll.register(conn, select.EPOLLIN)
        while reading.goes_on:
            epoll.poll()
            reading.step()


def with_edge_triggered_epoll(reading: Reading, conn: pynotify.Connection) -> None:
    with select.epoll() as epoll:
        epoll.register(conn, select.EPOLLIN | select.EPOLLET)
        while reading.goes_on:
            epoll.poll()
            while reading.step() and reading.goes_on:
                pass


def with_gevent(reading: Reading, conn: pynotify.Connection) -> None:
    import gevent
    from gevent.socket import wait_read

    def receive() -> None:
        while reading.goes_on:
            wait_read(conn.fileno())
            reading.step()

    gevent.spawn(receive).get()
    gevent.get_hub().destroy(destroy_loop=True)


def with_gevent_select(reading: Reading, conn: pynotify.Connection) -> None:
    from gevent import select as cooperative

    while reading.goes_on:
        cooperative.select([conn], [], [])
        reading.step()


def with_gevent_watcher(reading: Reading, conn: pynotify.Connection) -> None:
    """A callback of the hub, for each time that the descriptor is readable."""
    import gevent
    from gevent.event import Event

    done = Event()

    def ready() -> None:
        reading.step()
        if not reading.goes_on:
            watcher.stop()
            done.set()

    watcher = gevent.get_hub().loop.io(conn.fileno(), 1)
    watcher.start(ready)
    done.wait()
    watcher.close()


def with_trio(reading: Reading, conn: pynotify.Connection) -> None:
    import trio

    async def receive() -> None:
        while reading.goes_on:
            await trio.lowlevel.wait_readable(conn)
            reading.step()

    trio.run(receive)


async def _receive_by_add_reader(reading: Reading, conn: pynotify.Connection) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def ready() -> None:
        reading.step()
        if not reading.goes_on:
            loop.remove_reader(conn)
            done.set()

    loop.add_reader(conn, ready)
    await done.wait()


def with_asyncio(reading: Reading, conn: pynotify.Connection) -> None:
    asyncio.run(_receive_by_add_reader(reading, conn))


def with_uvloop(reading: Reading, conn: pynotify.Connection) -> None:
    import uvloop

    uvloop.run(_receive_by_add_reader(reading, conn))


KINDS: dict[str, Callable[[Reading, pynotify.Connection], None]] = {
    "select": with_select,
    "poll": with_poll,
    "selectors": with_selectors,
    "epoll": with_epoll,
    "epoll, EPOLLET": with_edge_triggered_epoll,
    "gevent": with_gevent,
    "gevent.select": with_gevent_select,
    "gevent watcher": with_gevent_watcher,
    "trio": with_trio,
    "asyncio": with_asyncio,
    "uvloop": with_uvloop,
}


def receive_in_loops(
    kind: str, segment: str, loops: int, count: int, limit: int | None
) -> tuple[list[list[str]], int]:
    """What each of `loops` loops after another got, and how often one was readable for nothing."""
    parts, in_vain = [], 0
    with pynotify.connect(segment) as conn:
        conn.listen("jobs")
        for _ in range(loops):
            reading = Reading(conn, count, limit)
            KINDS[kind](reading, conn)
            parts.append(reading.heard)
            in_vain += reading.in_vain
        assert not readable(conn.fileno()) or conn.poll() == []
    return parts, in_vain


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_loop_leaves_the_next_one_gets(
    kind: str,
    engine: pynotify.Engine,
    engine_name: str,
    conn: pynotify.Connection,
    worker: Worker,
) -> None:
    """Level-triggered: with poll(max=1) it stays readable, also for a loop that is made later."""
    require_loop(kind)
    loops, count = 4, 25
    worker.start(receive_in_loops, kind, engine_name, loops, count, 1)
    wait_until(lambda: engine.stat().subscriptions == 1, "it listens")
    sent = [str(number) for number in range(loops * count)]
    half = len(sent) // 2
    conn.notify_many("jobs", sent[:half])
    for payload in sent[half:]:
        conn.notify("jobs", payload)
    parts, in_vain = worker.result()
    assert parts == [sent[at : at + count] for at in range(0, len(sent), count)]
    assert in_vain <= 5


# ---- what an epoll loop may rely on -------------------------------------------------------------


def send(segment: str, count: int) -> None:
    with pynotify.connect(segment) as conn:
        for number in range(count):
            conn.notify("jobs", str(number))


@pytest.mark.parametrize("wakeup", [None, "poll"])
@pytest.mark.parametrize("limit", [None, 1, 7])
def test_edge_triggered_epoll(
    wakeup: str | None,
    limit: int | None,
    engine_name: str,
    connect: Connect,
    worker: Worker,
) -> None:
    """Polling at each edge until nothing comes misses none, whatever the edge was made by."""
    conn = connect(wakeup=wakeup)
    conn.listen("jobs")
    count = 1500
    worker.start(send, engine_name, count)
    reading = Reading(conn, count, limit)
    with_edge_triggered_epoll(reading, conn)
    assert reading.heard == [str(number) for number in range(count)]
    worker.result()


def test_the_poll_in_vain_is_what_starts_the_slow_timer_again(conn: pynotify.Connection) -> None:
    """Why once is not enough at an edge: the timer's own edges would end, and with them its help
    for a process whose handler was taken away."""
    conn.listen("jobs")
    assert readable(conn.fileno(), PATIENCE)  # it has ticked
    conn.notify("jobs", "x")
    assert payloads(conn.poll()) == ["x"]
    assert readable(conn.fileno())
    assert conn.poll() == []
    wait_until(lambda: not readable(conn.fileno()) or conn.poll(), "it is quiet")


def test_one_shot_epoll(conn: pynotify.Connection) -> None:
    conn.listen("jobs")
    with select.epoll() as epoll:
        epoll.register(conn, select.EPOLLIN | select.EPOLLONESHOT)
        conn.notify_many("jobs", ["a", "b", "c"])
        heard: list[str] = []
        while len(heard) < 3:
            assert epoll.poll(PATIENCE)
            assert epoll.poll(0) == []  # disabled until it is armed again
            heard += payloads(conn.poll(max=1))
            epoll.modify(conn, select.EPOLLIN | select.EPOLLONESHOT)
        assert heard == ["a", "b", "c"]


def test_exclusive_epoll_refuses_it(conn: pynotify.Connection) -> None:
    """The kernel's rule for epoll descriptors inside of others: `docs/loops.md` says so."""
    with select.epoll() as epoll:
        with pytest.raises(OSError) as caught:
            epoll.register(conn, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        assert caught.value.errno == errno.EINVAL


def test_several_loops_watch_one_connection(conn: pynotify.Connection, connect: Connect) -> None:
    """Each message goes to one of them, and none of them is left asleep."""
    conn.listen("jobs")
    sender = connect()
    loops, total = 4, 400
    heard: list[list[str]] = [[] for _ in range(loops)]

    def receive(mine: list[str]) -> None:
        with select.epoll() as epoll:
            epoll.register(conn, select.EPOLLIN)
            while mine[-1:] != ["end"]:
                epoll.poll()
                mine += payloads(conn.poll(max=1))

    threads = [threading.Thread(target=receive, args=(mine,)) for mine in heard]
    for thread in threads:
        thread.start()
    for number in range(total):
        sender.notify("jobs", str(number))
    sender.notify_many("jobs", ["end"] * loops, dedup=False)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    received = [payload for mine in heard for payload in mine[:-1]]
    assert sorted(received, key=int) == [str(number) for number in range(total)]
    for mine in heard:
        assert mine[:-1] == sorted(mine[:-1], key=int)


def test_unregister_comes_before_close(connect: Connect) -> None:
    conn = connect()
    with selectors.DefaultSelector() as selector:
        selector.register(conn, selectors.EVENT_READ)
        conn.close()
        with pytest.raises(pynotify.InterfaceError):
            selector.unregister(conn)
        selector.select(0)


# ---- subscriptions of a connection whose descriptor is watched ----------------------------------


def turns(descriptor: int, conn: pynotify.Connection, most: int = 200) -> tuple[list[str], int]:
    """What a loop gets until it would sleep, and how often it turned; `most` is too often."""
    heard: list[str] = []
    for number in range(most):
        if not readable(descriptor):
            return heard, number
        heard += payloads(conn.poll(max=1))
    return heard, most


def test_with_subscriptions_it_is_readable_until_all_is_returned(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """poll() reads for all at once; what it keeps for the next poll() counts."""
    descriptor = conn.fileno()
    conn.listen("jobs")
    with conn.subscribe("news") as sub, connect() as sender:
        for number in range(3):
            sender.notify_many("jobs", ["a", "b", "c"])
            sender.notify("news", str(number))
            heard, count = turns(descriptor, conn)
            assert heard == ["a", "b", "c"]
            assert count <= 8
            assert sub.next(0).payload == str(number)


def test_what_a_thread_reads_for_the_loop_makes_it_readable(
    conn: pynotify.Connection, connect: Connect
) -> None:
    descriptor, sender = conn.fileno(), connect()
    conn.listen("jobs")
    news: list[str] = []
    with conn.subscribe("news") as sub:
        thread = sub.start(lambda message: news.append(message.payload))
        for number in range(30):
            sender.notify("jobs", str(number))
            assert readable(descriptor, PATIENCE)
            heard: list[str] = []
            while not heard:
                assert readable(descriptor, PATIENCE)
                heard = payloads(conn.poll())
            assert heard == [str(number)]
            sender.notify("news", str(number))
            wait_until(lambda number=number: len(news) > number, "the thread got its own")
        thread.stop()


def test_full_subscription_that_blocks_keeps_the_loop_asleep(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """There is nothing that poll() might return, until a reader makes room."""
    descriptor, sender = conn.fileno(), connect()
    conn.listen("jobs")
    with conn.subscribe("news", maxlen=2, overflow="block") as sub:
        sender.notify_many("news", ["1", "2", "3"])
        sender.notify("jobs", "behind it")
        heard, count = turns(descriptor, conn)
        assert (heard, sub.pending) == ([], 2)
        assert count <= 8
        sender.notify("jobs", "the next")
        assert turns(descriptor, conn)[1] <= 8
        assert [sub.next(0).payload for _ in range(2)] == ["1", "2"]
        assert readable(descriptor, PATIENCE)
        heard, count = turns(descriptor, conn)
        assert heard == ["behind it", "the next"]
        assert count <= 8
        assert sub.next(0).payload == "3"


def test_descriptor_is_quiet_after_a_thread_has_waited(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """In next(), in wait(), or in vain: it leaves nothing behind that would turn the loop."""
    descriptor, sender = conn.fileno(), connect()
    conn.listen("jobs")
    with conn.subscribe("news") as sub:
        for number in range(10):
            waiting = threading.Thread(target=sub.next, args=(PATIENCE,))
            waiting.start()
            wait_until(partial(sleeps, waiting), "it sleeps")
            sender.notify("news", str(number))
            waiting.join(PATIENCE)
            assert turns(descriptor, conn)[1] <= 8
        with pytest.raises(pynotify.Timeout):
            sub.next(0.001)
        assert turns(descriptor, conn)[1] <= 8
        assert not conn.wait(0.001)
        assert turns(descriptor, conn)[1] <= 8


def sleeps(thread: threading.Thread) -> bool:
    """Mostly in the core, now and then for the interpreter's lock."""
    return ") S " in Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
