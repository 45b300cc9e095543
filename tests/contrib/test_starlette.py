"""Broadcast: groups, presence, replay and slow clients, and four workers of which one is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import pynotify
from receiving import PATIENCE, wait_until
from requirement import require
from workers import ROOT, Workers

try:
    import websockets  # noqa: F401 - of the clients and of uvicorn
    from starlette.requests import Request

    from chatting import connect_until, talk_beside_a_kill
    from pynotify.contrib.starlette import Broadcast, Member, Message
except ImportError as missing:
    require("starlette", str(missing))

EXAMPLES = ROOT / "examples" / "adapters"


async def take(member: Member, count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        found = [await member.next() for _ in range(count)]
    return [each.data if isinstance(each, Message) else each for each in found]


def test_groups_and_data_of_any_kind(segment_name: str) -> None:
    async def run() -> None:
        async with Broadcast(segment_name) as a, Broadcast(segment_name) as b:
            async with a.join("x", "y") as one, b.join("y") as two:
                sent = ["é\n|", b"\xff\x00", {"a": [1, None]}, "x" * 2_000_000]
                await b.publish("x", "only one")
                for data in sent:
                    await a.publish("y", data)
                await a.publish("z" * 300, "none")
                assert await take(one, 5) == ["only one", *sent]
                assert await take(two, 4) == sent
                assert await a.count("y") == 2
            assert await a.count("y") == 0

    asyncio.run(run())


def test_presence_over_workers(segment_name: str) -> None:
    async def run() -> None:
        async with Broadcast(segment_name) as a, Broadcast(segment_name) as b:
            async with a.join("room", identity="ann"), b.join("room", identity="bob"):
                async with b.join("room", "hall", identity="ann"):
                    assert await a.present("room") == ["ann", "bob"]
                    assert await a.present("hall") == ["ann"]
                assert await b.present("room") == ["ann", "bob"]
                assert await b.present("hall") == []
            assert await a.present("room") == []

    asyncio.run(run())


def test_presence_of_a_killed_worker(segment_name: str) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:

            async def be_present() -> None:
                async with Broadcast(segment_name) as worker, worker.join("room", identity="ann"):
                    os.write(writing, b"\n")
                    await asyncio.Event().wait()

            asyncio.run(be_present())
        finally:
            os._exit(1)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)

    async def run() -> None:
        async with Broadcast(segment_name) as worker, asyncio.timeout(PATIENCE):
            assert await worker.present("room") == ["ann"]
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while await worker.present("room"):
                await asyncio.sleep(0.002)

    asyncio.run(run())


def test_a_slow_client_gets_a_gap_and_what_is_newest(segment_name: str) -> None:
    async def run() -> None:
        broadcast = Broadcast(segment_name, maxlen=3)
        async with broadcast, broadcast.join("c") as slow, broadcast.join("c") as fast:
            for number in range(10):
                await broadcast.publish("c", number)
                assert await take(fast, 1) == [number]
            gap, *rest = await take(slow, 4)
            assert (gap.missed, gap.reason) == (7, "overflow")
            assert rest == [7, 8, 9]

    asyncio.run(run())


def test_replay(segment_name: str) -> None:
    """From any worker, also one that has started since, and nothing twice."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=4) as a:
            ids = [await a.publish("c", number) for number in range(6)]
            async with Broadcast(segment_name, replay=4) as b:
                async with b.join("c", last_id=ids[3]) as back:
                    await a.publish("c", 6)
                    assert await take(back, 3) == [4, 5, 6]
                async with b.join("c", last_id=ids[0]) as late:
                    gap, *rest = await take(late, 5)
                    assert gap.reason == "not kept"
                    assert rest == [3, 4, 5, 6]
                async with b.join("c") as new:
                    await b.publish("c", 7)
                    assert await take(new, 1) == [7]

    asyncio.run(run())


def test_cancelling_and_leaving(segment_name: str) -> None:
    async def run() -> None:
        async with Broadcast(segment_name) as broadcast:
            async with broadcast.join("c") as member:
                waiting = asyncio.create_task(member.next())
                await asyncio.sleep(0)
                await broadcast.publish("c", 1)
                waiting.cancel()
                got = await asyncio.gather(waiting, return_exceptions=True)
                if isinstance(got[0], asyncio.CancelledError):
                    assert await take(member, 1) == [1]
                rest = asyncio.create_task(_all(member))
                await asyncio.sleep(0)
            assert await rest == []
            with pytest.raises(pynotify.InterfaceError, match="open already"):
                await broadcast.__aenter__()
        with pytest.raises(pynotify.InterfaceError, match="lifespan"):
            await broadcast.publish("c", 1)

    asyncio.run(run())


async def _all(member: Member) -> list[Any]:
    return [each async for each in member]


@pytest.mark.parametrize("replay", [0, 10])
def test_a_segment_that_is_removed(segment_name: str, replay: int) -> None:
    """Members stay, in the next one, and are told; members also leave and join meanwhile."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=replay) as a, Broadcast(segment_name) as b:
            async with a.join("x", "y", identity="ann") as one:
                async with b.join("x", identity="bob") as two:
                    pynotify.unlink(segment_name, force=True)
                    pynotify.open(segment_name).close()
                    await a.publish("x", 1)
                    (gap,) = await take(one, 1)
                    assert (gap.reason, gap.missed) == ("reconnected", None)
                    assert await take(one, 1) == [1]
                    # The other worker hears of it by itself, or from the segment.
                    (gap,) = await take(two, 1)
                    assert gap.reason == "reconnected"
                    async with asyncio.timeout(PATIENCE):
                        while await a.present("x") != ["ann", "bob"]:
                            await asyncio.sleep(0.002)
                    await a.publish("x", 2)
                    assert await take(one, 1) == [2]
                    while await take(two, 1) != [2]:
                        pass
                    pynotify.unlink(segment_name, force=True)
                async with a.join("z") as three, asyncio.timeout(PATIENCE):
                    while await b.count("z") != 1:
                        await asyncio.sleep(0.002)
                    await b.publish("z", 3)
                    assert await take(three, 1) == [3]
                    assert await b.present("x") == ["ann"]
            assert await b.count("x") == 0

    asyncio.run(run())


def test_a_segment_that_is_removed_and_clients_that_come_back(segment_name: str) -> None:
    """What was kept is gone with it: they are told."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=10) as broadcast:
            last = await broadcast.publish("c", 1)
            pynotify.unlink(segment_name, force=True)
            async with broadcast.join("c", last_id=last) as member:
                await broadcast.publish("c", 2)
                gap, data = await take(member, 2)
                assert (gap.reason, data) == ("not kept", 2)

    asyncio.run(run())


def test_several_tasks_wait_for_one_member(segment_name: str) -> None:
    """Each message comes to one of them; what a cancelled one was woken for, to another."""

    async def run() -> None:
        async with Broadcast(segment_name) as broadcast, broadcast.join("c") as member:
            first, second, third = (asyncio.create_task(member.next()) for _ in range(3))
            await asyncio.sleep(0)
            member.put(Message("c", "1", 1), 1, 10)  # it wakes the first
            first.cancel()
            async with asyncio.timeout(PATIENCE):
                assert (await second) == Message("c", "1", 1)
                with pytest.raises(asyncio.CancelledError):
                    await first
                await broadcast.publish("c", 2)
                message = await third
                assert isinstance(message, Message)
                assert message.data == 2
                rest = [asyncio.create_task(member.next()) for _ in range(2)]
                await asyncio.sleep(0)
                member.end()
                for each in rest:
                    with pytest.raises(pynotify.InterfaceError, match="left its groups"):
                        await each

    asyncio.run(run())


def test_what_cannot_be_read_is_left_out(
    segment_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with (
            Broadcast(segment_name) as broadcast,
            broadcast.join("c") as member,
            pynotify.AsyncConnection.connect(segment_name) as connection,
            pynotify.pubsub.AsyncPubSub(connection) as other,
        ):
            for data in (b"no head", "no bytes", None, [1], b"000003[1]x"):
                await other.publish("b:broadcast:c", data)
            await broadcast.publish("c", 1)
            assert await take(member, 1) == [1]

    asyncio.run(run())
    assert "was left out" in caplog.text


def test_small_ones_and_those_in_parts_come_in_one_order(segment_name: str) -> None:
    async def run() -> None:
        options: Any = {"queue_pages": 64}
        async with (
            Broadcast(segment_name, **options) as a,
            Broadcast(segment_name) as b,
            a.join("c") as one,
            b.join("c") as two,
        ):
            for number in range(3):
                await a.publish("c", f"{number}" * 700_000)  # more than the ring has
                await a.publish("c", number)
                await a.publish("c", "\u00e9" * 10_000)
                want = [f"{number}" * 700_000, number, "\u00e9" * 10_000]
                assert await take(one, 3) == want
                assert await take(two, 3) == want

    asyncio.run(run())


def test_closing_ends_members(segment_name: str) -> None:
    async def run() -> None:
        broadcast = Broadcast(segment_name)
        async with broadcast:
            member = await broadcast.join("c", identity="ann").__aenter__()
            rest = asyncio.create_task(_all(member))
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            assert await rest == []
        async with broadcast, broadcast.join("c", identity="ann"):
            await member.__aexit__()  # of the former life, and takes nothing from this one
            assert await broadcast.present("c") == ["ann"]

    asyncio.run(run())


# ---- what an adversary does --------------------------------------------------------------------


def test_a_group_that_begins_with_the_name_of_another(segment_name: str) -> None:
    async def run() -> None:
        async with (
            Broadcast(segment_name) as a,
            a.join("room", identity="ann"),
            a.join("room/2", identity="bob"),
            a.join("room/2/x", identity="c/d"),
        ):
            assert await a.present("room") == ["ann"]
            assert await a.present("room/2") == ["bob"]
            assert await a.present("room/2/x") == ["c/d"]

    asyncio.run(run())


@pytest.mark.parametrize("group", ["\u00e9", "a b", "x" * 100, "", "a/b", "\u0660", "a\n"])
def test_replay_in_a_group_of_any_name(segment_name: str, group: str) -> None:
    async def run() -> None:
        async with Broadcast(segment_name, replay=2) as broadcast:
            first = await broadcast.publish(group, 1)
            await broadcast.publish(group, 2)
            async with broadcast.join(group, last_id=first) as member:
                assert await take(member, 1) == [2]

    asyncio.run(run())


def test_the_size_of_what_is_kept(segment_name: str) -> None:
    """The segment's largest message of a topic, which is told."""

    async def run() -> None:
        broadcast = Broadcast(segment_name, replay=2, max_body=2 << 20)
        async with broadcast, broadcast.join("c") as member:
            large = "x" * 2_000_000
            await broadcast.publish("c", "first")
            await broadcast.publish("c", large)
            with pytest.raises(pynotify.PayloadTooLong, match="max_body"):
                await broadcast.publish("c", large * 2)
            await broadcast.publish("c", "last")
            assert await take(member, 3) == ["first", large, "last"]
            async with broadcast.join("c", last_id="unknown") as late:
                assert await take(late, 3) == [pynotify.Gap(0, "not kept"), large, "last"]

    asyncio.run(run())


def test_replay_of_several_groups(segment_name: str) -> None:
    """Nothing twice, in the order in which it was published, and a Gap where something is gone."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=4) as broadcast:
            ids = [
                await broadcast.publish(group, f"{group}{number}")
                for number in range(3)
                for group in "xyz"
            ]
            async with broadcast.join("x", "y", "z", last_id=ids[4]) as member:
                await broadcast.publish("y", "end")
                assert await take(member, 5) == ["z1", "x2", "y2", "z2", "end"]
            for number in range(4):
                await broadcast.publish("z", number)
            async with broadcast.join("x", "z", last_id=ids[0]) as member:
                gap, *rest = await take(member, 7)
                assert gap.reason == "not kept"
                assert rest == ["x1", "x2", 0, 1, 2, 3]

    asyncio.run(run())


def test_replay_beside_what_comes_at_the_same_time(segment_name: str) -> None:
    """More than is kept comes between joining and looking: all of it is there, and in order."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=2) as a, Broadcast(segment_name, replay=2) as b:
            last = await a.publish("c", 0)
            look = b._since

            async def late(*arguments: Any) -> Any:
                async with b.join("c") as other:
                    for number in range(1, 7):
                        await a.publish("c", number)
                    await take(other, 6)
                return await look(*arguments)

            b._since = late  # type: ignore[method-assign]
            async with b.join("c", last_id=last) as member:
                found = await take(member, 7)
            assert [each for each in found if isinstance(each, int)] == [1, 2, 3, 4, 5, 6]

    asyncio.run(run())


def test_replay_of_what_the_worker_has_not_read_yet(segment_name: str) -> None:
    """It is kept already, and comes as well."""

    async def run() -> None:
        async with Broadcast(segment_name, replay=9) as a, Broadcast(segment_name, replay=9) as b:
            last = await a.publish("c", 0)
            look = b._since

            async def late(*arguments: Any) -> Any:
                await a.publish("c", 1)  # the loop has no turn between these
                return await look(*arguments)

            b._since = late  # type: ignore[method-assign]
            async with b.join("c", last_id=last) as member:
                await a.publish("c", 2)
                assert await take(member, 2) == [1, 2]

    asyncio.run(run())


def test_a_join_that_fails_leaves_nothing(segment_name: str) -> None:
    async def run() -> None:
        async with Broadcast(segment_name, replay=1, max_topics=1) as a:
            await a.publish("c", 1)  # the one topic
            async with Broadcast(segment_name) as b:
                for identity, groups in (("ann", ["d"]), ("bob", ["c", "d"]), ("i" * 250, ["c"])):
                    with pytest.raises((pynotify.Error, ValueError)):
                        async with a.join(*groups, identity=identity, last_id="x"):
                            pass
                    assert [await b.present(group) for group in groups] == [[]] * len(groups)
                    assert [await b.count(group) for group in groups] == [0] * len(groups)

    asyncio.run(run())


def test_leaving_goes_on_when_it_is_cancelled_again(segment_name: str) -> None:
    """As anyio does it to an SSE stream whose client is gone, while another client joins."""

    async def run() -> None:
        async with Broadcast(segment_name) as broadcast:
            joined = asyncio.Event()

            async def stream() -> None:
                async with broadcast.join("c", identity="ann") as member:
                    joined.set()
                    await member.next()

            client = asyncio.create_task(stream())
            await joined.wait()
            async with broadcast._changing:
                while not client.done():
                    client.cancel()
                    await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE):
                while await broadcast.present("c") or await broadcast.count("c"):
                    await asyncio.sleep(0.002)
            async with broadcast.join("c", identity="ann"):
                assert await broadcast.present("c") == ["ann"]

    asyncio.run(run())


def test_events_of_a_gap_and_of_lines(segment_name: str) -> None:
    async def run() -> list[str]:
        async with Broadcast(segment_name, maxlen=1) as broadcast:
            scope = {"type": "http", "headers": []}
            response = broadcast.events(Request(scope), "c", ping=0.01)
            stream = response.body_iterator
            found = [str(await anext(stream)), str(await anext(stream))]
            for text in ("lost", "two\nlines"):
                await broadcast.publish("c", text)
            async with asyncio.timeout(PATIENCE):
                async for each in stream:
                    found.append(str(each))
                    if "lines" in found[-1]:
                        break
            await stream.aclose()  # type: ignore[attr-defined]
        return found

    connected, ping, *rest = asyncio.run(run())
    assert connected == ": connected\n\n"
    assert ping == ": ping\n\n"
    rest = [each for each in rest if each != ": ping\n\n"]
    assert rest[-1].startswith("id: ")
    assert rest[-1].endswith("\ndata: two\ndata: lines\n\n")


def test_events_by_sse_starlette(segment_name: str) -> None:
    """Its response sends what a member gets, and a member is gone with its client."""
    try:
        import sse_starlette as sse
    except ImportError as missing:
        require("sse-starlette", str(missing))

    async def run() -> list[bytes]:
        async with Broadcast(segment_name) as broadcast:
            joined, sent = asyncio.Event(), asyncio.Queue[dict[str, Any]]()

            async def stream() -> AsyncIterator[dict[str, str]]:
                async with broadcast.join("c", identity="ann") as member:
                    joined.set()
                    async for message in member:
                        assert not isinstance(message, pynotify.Gap)
                        yield {"id": message.id, "data": message.data}

            gone = asyncio.Event()

            async def receive() -> dict[str, str]:
                await gone.wait()
                return {"type": "http.disconnect"}

            response = sse.EventSourceResponse(stream(), ping=3600)
            scope = {"type": "http", "method": "GET", "headers": []}
            serving = asyncio.create_task(response(scope, receive, sent.put))
            async with asyncio.timeout(PATIENCE):
                await joined.wait()
                for text in ("one", "two\nlines"):
                    await broadcast.publish("c", text)
                found = [await sent.get() for _ in range(3)]
                gone.set()
                await serving
                while await broadcast.present("c"):
                    await asyncio.sleep(0.002)
        return [each["body"] for each in found[1:]]

    first, second = asyncio.run(run())
    assert first.startswith(b"id: ")
    assert first.endswith(b"\r\ndata: one\r\n\r\n")
    assert second.endswith(b"\r\ndata: two\r\ndata: lines\r\n\r\n")


def test_bad_arguments(segment_name: str) -> None:
    with pytest.raises(pynotify.ProgrammingError):
        Broadcast("redis://localhost")
    with pytest.raises(ValueError, match="maxlen"):
        Broadcast(segment_name, maxlen=0)
    with pytest.raises(TypeError):
        Broadcast(segment_name).join()

    async def run() -> None:
        with pynotify.connect(segment_name):  # of the application, with names of 63 bytes
            async with Broadcast(segment_name) as broadcast:
                with pytest.raises(ValueError, match="max_channel_name=255"):
                    async with broadcast.join("c", identity="i" * 100):
                        pass
                async with broadcast.join("g" * 200) as member:
                    await broadcast.publish("g" * 200, 1)
                    assert await take(member, 1) == [1]

    asyncio.run(run())


# ---- the example ---------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path, segment_name: str) -> Iterator[Workers]:
    started = Workers(
        tmp_path, "uvicorn", "--workers", "4", "--port", "0", "--app-dir", EXAMPLES,
        "--timeout-graceful-shutdown", "2", "starlette_chat:app", SEGMENT=segment_name,
    )  # fmt: skip
    yield started
    started.close()


class Events:
    """A client of /events."""

    def __init__(self, url: str, last_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        headers = {"Last-Event-ID": last_id} if last_id else {}
        self._connection.request("GET", "/events", headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.headers["Content-Type"].startswith("text/event-stream")
        assert self.next() == {}  # connected

    def next(self) -> dict[str, str]:
        lines = iter(self._response.readline, b"\n")
        words = (line.decode().rstrip("\n").partition(": ") for line in lines)
        return {name: value for name, _, value in words if name}

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def say(url: str, text: str) -> str:
    with urllib.request.urlopen(f"{url}/say", text.encode(), timeout=PATIENCE) as answer:
        return str(json.load(answer)["id"])


def present(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/present", timeout=PATIENCE) as answer:
        return list(json.load(answer)["present"])


def test_four_workers_of_which_one_is_killed(server: Workers) -> None:
    try:
        url = server.url
        asyncio.run(talk_beside_a_kill(f"ws{url.removeprefix('http')}/chat", 4))
        wait_until(lambda: present(url) == [], "none is present any more")
        check_events(url)
        asyncio.run(check_presence(url))
    except BaseException:
        print(server.said())
        raise


def check_events(url: str) -> None:
    """A client that comes back, to whichever worker, gets what it has missed."""
    first = Events(url)
    ids = [say(url, "one"), say(url, "two")]
    assert [first.next(), first.next()] == [
        {"id": ids[0], "data": "one"},
        {"id": ids[1], "data": "two"},
    ]
    first.close()
    missed = [say(url, text) for text in ("three", "four")]
    for _ in range(8):
        back = Events(url, ids[1])
        assert [back.next(), back.next()] == [
            {"id": missed[0], "data": "three"},
            {"id": missed[1], "data": "four"},
        ]
        back.close()


async def check_presence(url: str) -> None:
    clients = await connect_until(f"ws{url.removeprefix('http')}/chat", lambda pids: len(pids) == 4)
    names = sorted(client.name for client in clients)
    wait_until(lambda: present(url) == names, "all are present")
    victim = clients[0].pid
    os.kill(victim, signal.SIGKILL)
    left = sorted(client.name for client in clients if client.pid != victim)
    for client in clients:
        if client.pid == victim:
            await client.until_gone()
    await asyncio.to_thread(wait_until, lambda: present(url) == left, "those of the dead are gone")
    for client in clients:
        await client.close()
