"""The channel layer over several processes and event loops, and under four real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from receiving import PATIENCE, wait_until
from requirement import require
from workers import ROOT, Workers

try:
    import msgpack  # noqa: F401
    import websockets  # noqa: F401 - of the clients and of uvicorn
    from channels.exceptions import ChannelFull, MessageTooLarge

    from chatting import talk_beside_a_kill
    from pynotify.contrib.channels import PynotifyChannelLayer
except ImportError as missing:
    require("channels", str(missing))

EXAMPLES = ROOT / "examples" / "adapters"


@pytest.fixture
def new_layer(segment_name: str) -> Iterator[Callable[..., PynotifyChannelLayer]]:
    made: list[PynotifyChannelLayer] = []

    def make(**options: Any) -> PynotifyChannelLayer:
        made.append(PynotifyChannelLayer(segment_name, **options))
        return made[-1]

    yield make
    for layer in made:
        asyncio.run(layer.close())


async def soon(message: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(message, PATIENCE)


def test_groups_over_two_layers(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    """As two processes: a member is added here, and by the other one, whose channel it is not."""

    async def run() -> None:
        a, b = new_layer(), new_layer()
        here, there, large = await a.new_channel(), await b.new_channel(), "x" * 1_000_000
        await a.group_add("group", here)
        await a.group_add("group", there)  # b's
        await a.group_send("group", {"type": "hello", "text": large})
        for layer, channel in ((a, here), (b, there)):
            assert await soon(layer.receive(channel)) == {"type": "hello", "text": large}
        await a.group_discard("group", there)
        await a.group_send("group", {"type": "only a"})
        await a.send(there, {"type": "last"})
        assert (await soon(a.receive(here)))["type"] == "only a"
        assert (await soon(b.receive(there)))["type"] == "last"

    asyncio.run(run())


def test_a_member_in_another_process_is_one_when_group_add_returns(
    new_layer: Callable[..., PynotifyChannelLayer],
) -> None:
    async def run() -> None:
        a, b = new_layer(), new_layer()
        there = await b.new_channel()
        reading = b._hub.get()._reading
        with reading:  # b's thread reads nothing
            adding = asyncio.create_task(a.group_add("group", there))
            for _ in range(10):
                await asyncio.sleep(0)
            early = adding.done()
            if early:
                await a.group_send("group", {"type": "hello"})
        await soon(adding)
        if not early:
            await a.group_send("group", {"type": "hello"})
        assert (await soon(b.receive(there)))["type"] == "hello"

    asyncio.run(run())


def test_a_member_in_a_process_that_is_gone(
    new_layer: Callable[..., PynotifyChannelLayer],
) -> None:
    async def run() -> None:
        a, b = new_layer(), new_layer()
        there = await b.new_channel()
        await b.close()
        await soon(a.group_add("group", there))

    asyncio.run(run())


@pytest.mark.parametrize("how", ["closed", "removed"])
@pytest.mark.parametrize("kind", ["of the process", "queue"])
def test_tasks_that_wait_when_it_ends(
    new_layer: Callable[..., PynotifyChannelLayer], segment_name: str, kind: str, how: str
) -> None:
    """They are told, or a consumer would wait for ever; and the layer can be used again."""

    async def run() -> None:
        layer = new_layer()
        channel = await layer.new_channel() if kind == "of the process" else "queue"
        waiting = [asyncio.create_task(layer.receive(channel)) for _ in range(2)]
        await asyncio.sleep(0)
        if how == "closed":
            await layer.close()
        else:
            pynotify.unlink(segment_name, force=True)
        for each in waiting:
            with pytest.raises(pynotify.InterfaceError, match="was to come on this channel"):
                await soon(each)
        again = await layer.new_channel() if kind == "of the process" else "queue"
        task = asyncio.create_task(layer.receive(again))
        await asyncio.sleep(0)
        await layer.send(again, {"type": "hello"})
        assert (await soon(task))["type"] == "hello"
        assert not layer._waiting

    asyncio.run(run())


@pytest.mark.parametrize("first", ["send", "group_send", "group_add", "receive", "queue", "waits"])
def test_a_segment_that_is_removed(
    new_layer: Callable[..., PynotifyChannelLayer], segment_name: str, first: str
) -> None:
    """Whatever is called first goes on with the next segment, or tells, before the thread does."""

    async def run() -> None:
        layer = new_layer()
        old = await layer.new_channel()
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "send": lambda: layer.send("queue", {"type": "hello"}),
            "group_send": lambda: layer.group_send("group", {"type": "hello"}),
            "group_add": lambda: layer.group_add("group", old),
            "receive": lambda: layer.receive(old),
            "queue": lambda: asyncio.wait_for(layer.receive("queue"), 0.01),
            "waits": lambda: waiting,
        }
        waiting = asyncio.create_task(layer.receive("queue"))
        await asyncio.sleep(0)
        with layer._hub.get()._reading:  # its thread does not notice
            pynotify.unlink(segment_name, force=True)
            if first in {"receive", "waits"}:
                with pytest.raises(pynotify.InterfaceError, match="was to come on this channel"):
                    await soon(calls[first]())
            elif first == "queue":
                with pytest.raises(TimeoutError):
                    await calls[first]()
            else:
                await soon(calls[first]())
            new = await layer.new_channel()
            await layer.group_add("group", new)
            await layer.group_send("group", {"type": "new"})
            assert await soon(layer.receive(new)) == {"type": "new"}
            with pytest.raises(pynotify.InterfaceError):
                await soon(waiting)

    asyncio.run(run())


def test_the_thread_notices_it_when_a_task_waits_on_the_next_segment(
    new_layer: Callable[..., PynotifyChannelLayer], segment_name: str
) -> None:
    """That task waits on: what it waits for is there."""

    async def run() -> None:
        layer = new_layer()
        await layer.new_channel()
        old = layer._hub.get()
        with old._reading:  # its thread does not notice
            pynotify.unlink(segment_name, force=True)
            await layer.send("other", {"type": "hello"})
            waiting = asyncio.create_task(layer.receive("queue"))
            while not any(layer._waiting.values()):
                await asyncio.sleep(0)
        await asyncio.to_thread(old._thread.join)
        await layer.send("queue", {"type": "hello"})
        assert await soon(waiting) == {"type": "hello"}

    asyncio.run(run())


def test_a_loop_that_ended_while_another_one_waits(
    new_layer: Callable[..., PynotifyChannelLayer],
) -> None:
    """close() in one loop wakes the tasks of the others."""
    layer = new_layer()
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            asyncio.run(soon(layer.receive("queue")))
        except pynotify.InterfaceError as error:
            errors.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    wait_until(lambda: any(layer._waiting.values()), "it waits")
    asyncio.run(layer.close())
    thread.join()
    assert len(errors) == 1


def test_normal_channel_is_a_queue(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    """Each message to one task, in whichever process; one that is a member of a group as well."""

    async def run() -> None:
        a, b, name = new_layer(capacity=4), new_layer(capacity=4), "work-" + "x" * 80
        for number in range(4):
            await a.send(name, {"number": number})
        with pytest.raises(ChannelFull):
            await a.send(name, {"number": 4})
        got = [await soon(layer.receive(name)) for layer in (a, b, b, a)]
        assert [message["number"] for message in got] == [0, 1, 2, 3]
        await a.group_add("group", name)
        await b.group_add("group", name)
        await b.group_send("group", {"number": 5})
        await b.send(name, {"number": 6})
        assert [(await soon(a.receive(name)))["number"] for _ in range(2)] == [5, 6]
        await a.flush()

    asyncio.run(run())


def test_a_message_that_is_too_large(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    async def run() -> None:
        with pytest.raises(MessageTooLarge):
            await new_layer().send("queue", {"text": "x" * 2_000_000})

    asyncio.run(run())


def test_receiving_in_several_loops(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    layer = new_layer()
    names = [asyncio.run(layer.new_channel()) for _ in range(3)]
    got: dict[str, Any] = {}

    def receive(name: str) -> None:
        got[name] = asyncio.run(soon(layer.receive(name)))["to"]

    threads = [threading.Thread(target=receive, args=(name,)) for name in names]
    for thread in threads:
        thread.start()

    async def send() -> None:
        for name in names:
            await layer.send(name, {"to": name})

    asyncio.run(send())
    for thread in threads:
        thread.join()
    assert got == {name: name for name in names}


def test_cancelled_receive_loses_nothing(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    async def run() -> None:
        layer = new_layer()
        channel = await layer.new_channel()
        for number in range(50):
            task = asyncio.create_task(layer.receive(channel))
            await asyncio.sleep(0)
            await layer.send(channel, {"number": number})
            task.cancel()
            try:
                message = await task
            except asyncio.CancelledError:
                message = await soon(layer.receive(channel))
            assert message["number"] == number

    asyncio.run(run())


def test_made_before_a_fork(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    layer = new_layer()
    channel = asyncio.run(layer.new_channel())

    def send() -> str:
        asyncio.run(layer.send(channel, {"from": "child"}))
        return layer.client_prefix

    prefix = in_child(send)
    assert asyncio.run(soon(layer.receive(channel))) == {"from": "child"}
    assert prefix != layer.client_prefix


def test_members_of_a_killed_process_are_gone(
    new_layer: Callable[..., PynotifyChannelLayer], segment_name: str
) -> None:
    layer = new_layer()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:

            async def join() -> None:
                await layer.group_add("group", await layer.new_channel())

            asyncio.run(join())
            os.write(writing, b"\n")
            signal.pause()
        finally:
            os._exit(1)
    os.read(reading, 1)
    with pynotify.connect(segment_name) as conn:
        assert conn.listeners("asgi:g:group") == 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        wait_until(lambda: conn.channels("asgi:g:") == {}, "its slot is free")
    os.close(reading)
    os.close(writing)


def test_names_are_checked(new_layer: Callable[..., PynotifyChannelLayer]) -> None:
    async def run() -> None:
        layer = new_layer()
        for name in ("", "a b", "x" * 100):
            with pytest.raises(TypeError):
                await layer.send(name, {})
            with pytest.raises(TypeError):
                await layer.group_send(name, {})
        with pytest.raises(AssertionError):
            await layer.receive("specific.other!x")

    asyncio.run(run())


def test_in_a_segment_with_short_names(segment_name: str) -> None:
    """The application has made it, with other options; long names of groups do as well."""

    async def run() -> None:
        with pynotify.connect(segment_name):
            layer = PynotifyChannelLayer(segment_name)
            channel, group = await layer.new_channel(), "g" * 99
            await layer.group_add(group, channel)
            await layer.group_send(group, {"type": "x"})
            assert await soon(layer.receive(channel)) == {"type": "x"}
            with pytest.raises(TypeError, match="max_channel_name=255"):
                await layer.group_add(group, "n" * 99)
            await layer.close()

    asyncio.run(run())


# ---- the example -------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, segment_name: str) -> Iterator[Workers]:
    started = Workers(
        tmp_path, "uvicorn", "--workers", "4", "--port", "0", "--app-dir", EXAMPLES,
        "django_chat:application", SEGMENT=segment_name, DATA=str(tmp_path / "data"),
    )  # fmt: skip
    yield started
    started.close()


def title(url: str, new: bytes | None = None) -> tuple[bytes, str | None]:
    request = urllib.request.Request(f"{url}/title", new, method="PUT" if new else "GET")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read(), answer.headers["Worker"]


def test_four_workers_of_which_one_is_killed(server: Workers) -> None:
    try:
        url = server.url
        asyncio.run(talk_beside_a_kill(f"ws{url.removeprefix('http')}/chat", 4))
        for text in (b"one", b"two", b"three"):
            title(url, text)
            answers = {title(url) for _ in range(40)}  # not one stale
            assert {answer for answer, _ in answers} == {text}
    except BaseException:
        print(server.said())
        raise
