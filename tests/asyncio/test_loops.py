"""Several loops, loops that end, forks, and segments that go away."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from locked import LockHolder
from programs import require_module
from receiving import PATIENCE, payloads, wait_until
from sessions import RemoteSession, Worker
from tasks import PAGE, AsyncConnections, settled, turns, waiting_threads


def in_new_loop(work: Callable[[], Any]) -> Any:
    """What the coroutine function returns, in a loop of this thread."""
    with asyncio.Runner(debug=True) as runner:
        return runner.run(work())


# ---- more than one -----------------------------------------------------------------------------


@pytest.mark.parametrize("uv", [False, True])
def test_two_loops_in_two_threads(engine_name: str, uv: bool) -> None:
    """Each has its connection; they exchange messages."""
    if uv:
        require_module("uvloop")
    results: dict[str, list[str]] = {}
    ready = threading.Barrier(2)

    async def play(me: str, other: str) -> list[str]:
        heard = []
        async with await pynotify.AsyncConnection.connect(engine_name) as conn:
            await conn.listen(me)
            ready.wait(PATIENCE)
            if me == "ping":
                await conn.notify(other, "0")
            async for message in conn.notifies(timeout=PATIENCE):
                heard.append(message.payload)
                await conn.notify(other, str(int(message.payload) + 1))
                if len(heard) == 200:
                    break
        return heard

    def run(me: str, other: str) -> None:
        factory = None
        if uv:
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            results[me] = runner.run(play(me, other))

    threads = [
        threading.Thread(target=run, args=names) for names in (("ping", "pong"), ("pong", "ping"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
    assert results["pong"] == [str(number) for number in range(0, 400, 2)]
    assert results["ping"] == [str(number) for number in range(1, 400, 2)]


async def test_two_connections_in_one_loop(kind: str, aconnect: AsyncConnections) -> None:
    one, two = await aconnect(), await aconnect()
    await one.listen("c")
    await two.listen("c")
    waiting = [asyncio.create_task(anext(conn.notifies())) for conn in (one, two)]
    await turns(3)
    await one.notify("c", "x")
    assert payloads(await asyncio.gather(*waiting)) == ["x", "x"]


def test_another_loop_may_not_use_it(engine_name: str) -> None:
    """It says so, and the connection is as it was."""

    async def misuse(conn: pynotify.AsyncConnection, sub: pynotify.AsyncSubscription) -> None:
        for call in (
            lambda: conn.notify("c"),
            lambda: conn.notify_many("c", ["x"]),
            conn.queue_usage,
            lambda: conn.listen("d"),
            lambda: conn.unlisten("c"),
            conn.unlisten_all,
            conn.listening_channels,
            conn.begin,
            conn.commit,
            conn.rollback,
            lambda: conn.savepoint("s"),
            conn.transaction().__aenter__,
            conn.poll,
            conn.poll_batch,
            lambda: conn.wait(0),
            sub.next,
            sub.close,
            lambda: conn.subscribe("x").__aenter__(),
            lambda: conn.add_listener("x", print),
            lambda: conn.remove_listener("x", print),
            conn.close,
        ):
            with pytest.raises(pynotify.InterfaceError, match="another event loop"):
                await call()
        with pytest.raises(pynotify.InterfaceError, match="another event loop"):
            conn.notifies()

    async def main() -> None:
        async with await pynotify.AsyncConnection.connect(engine_name) as conn:
            await conn.listen("c")
            sub = await conn.subscribe("c")
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, in_new_loop, lambda: misuse(conn, sub))
            await conn.notify("c", "x")
            assert payloads([await sub.next()]) == ["x"]
            assert payloads(await conn.poll()) == ["x"]
            assert await conn.listening_channels() == {"c"}

    in_new_loop(main)


# ---- loops that end ----------------------------------------------------------------------------


@pytest.mark.parametrize("close", ["close", "forget"])
def test_a_connection_may_outlive_its_loop(
    engine_name: str, engine: pynotify.Engine, close: str
) -> None:
    """Closed in another loop or forgotten, it gives its slot back."""

    async def leave_open() -> list[Any]:
        conn = await pynotify.AsyncConnection.connect(engine_name)
        await conn.listen("c")
        sub = await conn.subscribe("s")
        await conn.add_listener("l", print)
        tx = conn.transaction()
        await tx.__aenter__()
        await tx.prepare()
        waiting = asyncio.create_task(conn.wait())
        task = sub.start(print)
        await turns(3)
        return [conn, sub, task, waiting]

    left = in_new_loop(leave_open)
    conn = left[0]
    with pytest.raises(pynotify.InterfaceError, match="another event loop"):
        in_new_loop(conn.queue_usage)
    if close == "close":
        in_new_loop(conn.close)
        assert conn.closed
        in_new_loop(left[1].close)
    del conn
    left.clear()
    wait_until(lambda: gc.collect() >= 0 and not engine.stat().backends, "the slot is free")


def test_a_loop_may_end_while_a_thread_waits(
    engine_name: str,
    engine: pynotify.Engine,
    lock_holder: LockHolder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not wait for it, nothing is said afterwards, and a prepared commit is done."""
    witness = engine.connect()
    witness.listen("c")

    async def commit(conn: pynotify.AsyncConnection) -> None:
        async with conn.transaction() as tx:
            await conn.notify("c", "prepared")
            await tx.prepare()
            lock_holder.hold()

    async def main() -> pynotify.AsyncConnection:
        conn = await pynotify.AsyncConnection.connect(engine_name)
        task = asyncio.create_task(commit(conn))
        while not lock_holder.pid:
            await turns(1)
        others = [
            asyncio.create_task(call)
            for call in (
                conn.notify("c", "not prepared"),
                conn.listen("c"),
                pynotify.AsyncConnection.connect(engine_name),
            )
        ]
        await turns(10)
        assert not any(other.done() for other in (task, *others))
        return conn

    conn = in_new_loop(main)
    lock_holder.release()
    in_new_loop(conn.close)
    wait_until(lambda: not waiting_threads(), "no thread waits")
    assert payloads(witness.poll()) == ["prepared"]
    witness.close()
    gc.collect()
    assert engine.stat().backends == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_in_a_process_of_its_own_nothing_is_said(engine_name: str) -> None:
    """In development mode, warnings as errors: nothing on stderr, whatever is left open."""
    code = f"""
        import asyncio, pynotify

        async def main():
            # debug mode complains of a busy machine, too
            asyncio.get_running_loop().slow_callback_duration = {PATIENCE}
            conn = await pynotify.AsyncConnection.connect({engine_name!r})
            await conn.listen("c")
            sub = await conn.subscribe("c")
            sub.start(print)
            waiting = asyncio.create_task(conn.wait(5))
            iterating = asyncio.create_task(anext(conn.notifies()))
            await conn.add_listener("c", print)
            conn.fileno()
            await conn.begin()
            await conn.notify("c", "x")
            await asyncio.sleep(0.01)
            global left
            left = conn, sub

        asyncio.run(main(), debug=True)
        print("over")
        """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONASYNCIODEBUG": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


# ---- fork --------------------------------------------------------------------------------------


def test_fork(engine_name: str, remote: Callable[..., RemoteSession]) -> None:
    """The child is told; its closing and its end do nothing to the parent."""
    other = remote(engine_name)

    async def use(conn: pynotify.AsyncConnection, sub: pynotify.AsyncSubscription) -> str:
        for call in (
            lambda: conn.notify("c"),
            lambda: conn.listen("d"),
            conn.queue_usage,
            conn.listening_channels,
            conn.begin,
            conn.poll,
            lambda: conn.wait(0),
            lambda: sub.next(0),
            lambda: conn.add_listener("c", print),
        ):
            with pytest.raises(pynotify.ForkedConnectionError):
                await call()
        with pytest.raises(pynotify.ForkedConnectionError):
            conn.notify_nowait("c")
        with pytest.raises(pynotify.ForkedConnectionError):
            conn.transaction()
        await sub.close()
        await conn.close()
        async with await pynotify.AsyncConnection.connect(engine_name) as own:
            await own.listen("child")
            await own.notify("child", "heard")
            return str((await anext(own.notifies())).payload)

    async def main() -> None:
        async with await pynotify.AsyncConnection.connect(engine_name) as conn:
            await conn.listen("c")
            sub = await conn.subscribe("s")
            waiting = asyncio.create_task(sub.next())
            iterating = asyncio.create_task(anext(conn.notifies()))
            await settled(waiting)
            assert in_child(lambda: in_new_loop(lambda: use(conn, sub))) == "heard"
            await settled(waiting)
            other.notify("s", "still for us")
            other.notify("c", "and this")
            assert payloads(await asyncio.gather(waiting, iterating)) == [
                "still for us",
                "and this",
            ]

    in_new_loop(main)


# ---- segments that go away ---------------------------------------------------------------------


async def gone(
    conn: pynotify.AsyncConnection, sub: pynotify.AsyncSubscription, go: Callable[[], None]
) -> list[BaseException]:
    """What is raised in the tasks that wait while it goes."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    await conn.add_listener("l", print)
    tasks = [
        asyncio.create_task(conn.wait()),
        asyncio.create_task(conn.wait(PATIENCE)),
        asyncio.create_task(anext(conn.notifies())),
        asyncio.create_task(sub.next()),
        asyncio.create_task(sub.next(PATIENCE)),
        asyncio.create_task(anext(sub)),
    ]
    errors: list[Exception] = []
    started = sub.start(print, on_error=errors.append)
    await turns(5)
    go()
    raised = await asyncio.gather(*tasks, return_exceptions=True)
    await started.stop()
    assert len(errors) == 1
    assert len(complaints) == 1
    return [*raised, *errors, complaints[0]["exception"]]


async def test_unlinked(kind: str, new_name: Callable[[], str]) -> None:
    """All waiting tasks are woken with that, and all but close() raises it from there on."""
    name = new_name()
    conn = await pynotify.AsyncConnection.connect(name)
    await conn.listen("c")
    sub = await conn.subscribe("s")
    raised = await gone(conn, sub, lambda: pynotify.unlink(name, force=True))
    assert [type(error) for error in raised] == [pynotify.SegmentUnlinked] * 8
    for call in (
        conn.wait,
        conn.poll,
        lambda: conn.notify("c"),
        lambda: conn.listen("d"),
        conn.queue_usage,
        lambda: anext(conn.notifies()),
        sub.next,
        lambda: sub.next(0),
        lambda: conn.add_listener("x", print),
    ):
        with pytest.raises(pynotify.SegmentUnlinked):
            await call()
    with pytest.raises(pynotify.SegmentUnlinked):
        await sub.close()
    await conn.close()
    await sub.close()


async def test_unlinked_while_tasks_wait_for_room(kind: str, new_name: Callable[[], str]) -> None:
    name = new_name()
    options = {"queue_pages": 64, "on_full": "block", "full_timeout": 1000.0}
    async with await pynotify.AsyncConnection.connect(name, **options) as conn:
        with pynotify.connect(name) as laggard:
            laggard.listen("c")
            tasks = [asyncio.create_task(conn.notify("c", f"{n} {PAGE}")) for n in range(100)]
            await settled(tasks[-1])
            pynotify.unlink(name, force=True)
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), pynotify.SegmentUnlinked}


async def test_unlinked_while_tasks_wait_for_the_lock(
    kind: str, new_name: Callable[[], str], nursery: Worker, tmp_path: Path
) -> None:
    name = new_name()
    async with await pynotify.AsyncConnection.connect(name) as conn:
        holder = LockHolder(nursery, name, tmp_path / "log")
        holder.hold()
        tasks = [
            asyncio.create_task(conn.notify("c")),
            asyncio.create_task(conn.listen("c")),
            asyncio.create_task(conn.add_listener("c", print)),
        ]
        await settled(tasks[-1])
        pynotify.unlink(name, force=True)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        holder.release()
    assert [type(result) for result in results] == [pynotify.SegmentUnlinked] * 3


def test_corrupt(segment_name: str) -> None:
    """In a process of its own, which the test would be lost with."""

    async def main() -> list[str]:
        conn = await pynotify.AsyncConnection.connect(segment_name)
        await conn.listen("c")
        sub = await conn.subscribe("s")

        def go() -> None:
            conn.notify_nowait("c", "x")
            overwrite_the_queue(segment_name)

        raised = await gone(conn, sub, go)
        for call in (conn.poll, conn.wait, sub.next, lambda: conn.notify("c")):
            with pytest.raises(pynotify.SegmentCorrupt):
                await call()
        await conn.close()
        return [type(error).__name__ for error in raised]

    with pynotify.open(segment_name, queue_pages=64):
        assert in_child(lambda: in_new_loop(main)) == ["SegmentCorrupt"] * 8


def overwrite_the_queue(name: str) -> None:
    """It comes last of what is allocated: there are no topics."""
    descriptor = os.open(f"/dev/shm/pynotify.{os.geteuid()}.{name}", os.O_RDWR)
    size = 64 * 8192
    os.pwrite(descriptor, b"\xa5" * size, 512 * os.fstat(descriptor).st_blocks - size)
    os.close(descriptor)
