"""What adapters with many receivers send and receive by: order, threads, errors, dead senders."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pynotify
from pynotify.contrib import _whole
from pynotify.contrib._whole import Whole
from pynotify.pubsub._parts import PART, Room
from receiving import PATIENCE


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def test_an_object_that_its_sender_does_not_end_is_given_up(
    segment_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when nothing else comes."""
    monkeypatch.setattr(_whole, "LIFETIME", 0.05)

    async def run() -> None:
        async with pynotify.AsyncConnection.connect(segment_name) as connection:
            got: list[Any] = []
            whole = Whole(connection, got.append)
            await whole.listen("c")
            parts = next(Room(connection.link.handle).outgoing(b"%" + b"x" * 20_000).batches())
            assert parts[0].startswith(PART)
            await connection.notify("c", parts[0])
            await whole.send("c", b"after it")
            await until(lambda: got)
            assert got == [b"after it"]
            await until(lambda: not whole._assembler._unfinished)
            await whole.send("c", b"\xff" * 20_000)
            await until(lambda: len(got) == 2)
            assert got[1] == b"\xff" * 20_000
            await whole.close()

    asyncio.run(run())
    assert "an object was given up" in caplog.text


def test_what_a_thread_puts_there_comes_in_the_thread_of_the_loop_and_in_order(
    segment_name: str,
) -> None:
    async def run() -> None:
        async with pynotify.AsyncConnection.connect(segment_name) as connection:
            got: list[tuple[Any, int]] = []
            whole = Whole(connection, lambda data: got.append((data, threading.get_ident())))
            await whole.listen("c")
            with pynotify.connect(segment_name) as other:
                other.listen("d")
                for data in (b"%1", b"%2", b"%3"):
                    other.notify("d", data)
                first, second, third = other.poll()
            put = whole._inbox.put

            def in_thread(message: Any) -> None:
                thread = threading.Thread(target=put, args=(message,))
                thread.start()
                thread.join()

            in_thread(first)
            assert got == []
            put(second)
            in_thread(third)
            here = threading.get_ident()
            assert got == [(b"1", here), (b"2", here)]
            await until(lambda: len(got) == 3)
            assert got[2] == (b"3", here)
            await whole.close()

    asyncio.run(run())


def test_an_error_of_the_reader(segment_name: str) -> None:
    """It reads again; what is still wrong then is raised."""

    async def run() -> None:
        async with pynotify.AsyncConnection.connect(segment_name) as connection:
            got: list[Any] = []
            whole = Whole(connection, got.append)
            await whole.listen("c")
            running = asyncio.create_task(whole.run())
            receiver = connection.link.receiver
            receiver.stop_reading()
            receiver._fail(pynotify.OperationalError("it was nothing"))
            await until(lambda: receiver.reading)
            await whole.send("c", b"1")
            await until(lambda: got)
            pynotify.unlink(segment_name, force=True)
            with pytest.raises(pynotify.SegmentUnlinked):
                await asyncio.wait_for(running, PATIENCE)

    asyncio.run(run())


def test_closing_the_connection_ends_it(segment_name: str) -> None:
    async def run() -> None:
        connection = await pynotify.AsyncConnection.connect(segment_name)
        whole = Whole(connection, lambda _: None)
        await whole.listen("c")
        running = asyncio.create_task(whole.run())
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(pynotify.InterfaceError, match="closed"):
            await asyncio.wait_for(running, PATIENCE)
        await whole.close()

    asyncio.run(run())
