"""Greenlets and trio's tasks: whose a transaction is, and what stops the others."""

from __future__ import annotations

import textwrap

import pytest

import pynotify
from programs import Program, require_loop, require_module, said_by

PATCHES = {
    "not patched": ("", ""),
    "patched": ("from gevent import monkey; monkey.patch_all()", ""),
    "patched after the import": ("", "from gevent import monkey; monkey.patch_all()"),
}

_TWO_GREENLETS = """
    {}
    import json, sys
    import pynotify
    {}
    import gevent

    seen = []

    def first(conn):
        conn.begin()
        conn.notify("c", "first, uncommitted")
        gevent.sleep(0)
        seen.append(conn.in_transaction)
        conn.rollback()

    def second(conn):
        seen.append(conn.in_transaction)
        conn.notify("c", "second")

    with pynotify.connect(sys.argv[1]) as conn:
        conn.listen("c")
        gevent.joinall([gevent.spawn(first, conn), gevent.spawn(second, conn)], raise_error=True)
        print(json.dumps([seen, [note.payload for note in conn.poll()]]))
"""


@pytest.mark.parametrize("patches", PATCHES)
def test_gevent_whose_transaction_it_is(patches: str, engine_name: str) -> None:
    """The greenlet's when everything was patched first, otherwise that of the whole thread."""
    require_module("gevent")
    seen, heard = said_by(_TWO_GREENLETS.format(*PATCHES[patches]), engine_name)
    if patches == "patched":
        assert seen == [False, True]
        assert heard == ["second"]
    else:
        assert seen == [True, True]
        assert heard == [], "it joined the transaction that the other greenlet then rolled back"


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_gevent_transaction_of_a_greenlet_that_ends(how: str, engine_name: str) -> None:
    """Patched: rolled back, like that of a thread; and its id may be that of the next greenlet."""
    require_module("gevent")
    program = """
        from gevent import monkey; monkey.patch_all()
        import json, sys
        import gevent
        import pynotify

        def leave(conn):
            conn.begin()
            conn.notify("c", "never committed")
            if sys.argv[2] == "is killed":
                gevent.sleep(1000)

        def send(conn, number):
            assert not conn.in_transaction
            conn.notify("c", str(number))

        with pynotify.connect(sys.argv[1]) as conn, pynotify.open(sys.argv[1]) as engine:
            conn.listen("c")
            for number in range(50):
                greenlet = gevent.spawn(leave, conn)
                gevent.sleep(0)
                greenlet.kill()
                gevent.spawn(send, conn, number).get()
            del greenlet
            gevent.sleep(0)
            print(json.dumps([conn.in_transaction, engine.stat().backends[0].in_transaction,
                              [note.payload for note in conn.poll()]]))
    """
    mine, anybodys, heard = said_by(program, engine_name, how)
    assert (mine, anybodys) == (False, False)
    assert heard == [str(number) for number in range(50)]


@pytest.mark.parametrize("patches", PATCHES)
def test_gevent_wait_stops_all_greenlets(patches: str, engine_name: str) -> None:
    """Why the descriptor is to be waited for; in a thread of the hub's pool wait() does no harm."""
    require_module("gevent")
    program = """
        {}
        import contextlib, json, sys
        import pynotify
        {}
        import gevent

        turns = 0

        def turn():
            global turns
            while True:
                turns += 1
                gevent.sleep(0)

        with pynotify.connect(sys.argv[1]) as conn:
            conn.listen("c")
            turning = gevent.spawn(turn)
            gevent.sleep(0)
            before = turns
            conn.wait(0.02)
            list(conn.notifies(timeout=0.02))
            with conn.subscribe("d") as sub, contextlib.suppress(pynotify.Timeout):
                sub.next(0.02)
            while_waiting = turns - before
            waiter = gevent.get_hub().threadpool.spawn(conn.wait)
            before = turns
            while turns < before + 100:
                gevent.sleep(0)
            conn.notify("c", "x")
            print(json.dumps([while_waiting, waiter.get(), [n.payload for n in conn.poll()]]))
            turning.kill()
    """
    assert said_by(program.format(*PATCHES[patches]), engine_name) == [0, True, ["x"]]


_MEANWHILE = {
    "gevent": """
        {}
        import gevent, sys, pynotify
        from gevent.os import nb_read, make_nonblocking
        from gevent.socket import wait_read

        def echo():
            make_nonblocking(0)
            while data := nb_read(0, 100):
                print("echo", data.decode().strip(), flush=True)

        with pynotify.connect(sys.argv[1]) as conn:
            conn.listen("jobs")
            other = gevent.spawn(echo)
            gevent.sleep(0)
            wait_read(conn.fileno())
            print("heard", conn.poll()[0].payload, flush=True)
            other.join()
    """,
    "trio": """
        import sys, trio, pynotify

        async def echo():
            async with trio.lowlevel.FdStream(0) as stream:
                async for data in stream:
                    print("echo", data.decode().strip(), flush=True)

        async def main(segment):
            with pynotify.connect(segment) as conn:
                conn.listen("jobs")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(echo)
                    await trio.lowlevel.wait_readable(conn)
                    print("heard", conn.poll()[0].payload, flush=True)

        trio.run(main, sys.argv[1])
    """,
}


@pytest.mark.parametrize("loop", ["gevent", "gevent, patched", "trio"])
def test_others_run_while_one_waits(loop: str, engine_name: str, conn: pynotify.Connection) -> None:
    require_loop(loop)
    name, _, patched = loop.partition(", ")
    first_line = PATCHES[patched or "not patched"][0]
    text = textwrap.dedent(_MEANWHILE[name]).format(first_line)
    with Program("-c", text, engine_name) as program:
        for number in range(3):
            program.write(str(number))
            assert program.lines(1) == [f"echo {number}"]
        conn.notify("jobs", "x")
        assert program.lines(1) == ["heard x"]
        assert program.end() == ""


def test_trio_cancelling_a_wait_loses_nothing(engine_name: str) -> None:
    """Cancelled at every turn, and other messages meanwhile: the next wait finds them."""
    require_module("trio")
    program = """
        import json, sys
        import pynotify
        import trio

        async def main(segment):
            heard = []
            with pynotify.connect(segment) as conn, pynotify.connect(segment) as sender:
                conn.listen("jobs")
                for number in range(50):
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await trio.lowlevel.wait_readable(conn)
                    sender.notify("jobs", str(number))
                    if number % 3 == 0:
                        await trio.lowlevel.wait_readable(conn)
                        heard += [note.payload for note in conn.poll()]
                await trio.lowlevel.wait_readable(conn)
                heard += [note.payload for note in conn.poll()]
            print(json.dumps(heard))

        trio.run(main, sys.argv[1])
    """
    assert said_by(program, engine_name) == [str(number) for number in range(50)]


def test_trio_lets_one_task_wait_and_shares_a_transaction(engine_name: str) -> None:
    """`docs/loops.md` says so."""
    require_module("trio")
    program = """
        import json, sys
        import pynotify
        import trio

        seen = []

        async def receive(conn):
            try:
                await trio.lowlevel.wait_readable(conn)
                seen.append([note.payload for note in conn.poll()])
            except trio.BusyResourceError:
                seen.append(conn.in_transaction)
                conn.rollback()
                conn.notify("jobs", "x")

        async def main(segment):
            with pynotify.connect(segment) as conn:
                conn.listen("jobs")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive, conn)
                    await trio.testing.wait_all_tasks_blocked()
                    conn.begin()
                    nursery.start_soon(receive, conn)
            print(json.dumps(seen))

        import trio.testing
        trio.run(main, sys.argv[1])
    """
    assert said_by(program, engine_name) == [True, ["x"]]
