"""pynotify.compat.redis: what redis-py's pub/sub does, in processes and event loops."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from forking import in_child
from programs import output_of_example
from pynotify import AsyncPubSub
from receiving import PATIENCE, wait_until
from requirement import require
from workers import ROOT

try:
    import redis as redis_py
    import redis.asyncio as redis_asyncio
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError

    from pynotify.compat import redis
    from pynotify.compat.redis import asyncio as tasks
    from pynotify.compat.redis._session import matcher
except ImportError as missing:
    require("redis", str(missing))


@pytest.fixture
def client(segment_name: str) -> Iterator[redis.Redis]:
    with redis.Redis(segment_name) as made:
        yield made
    made.connection_pool.disconnect()


def of_a_pool(url: str) -> redis.Redis:
    return redis.Redis.from_pool(redis.ConnectionPool.from_url(url))


def test_messages_are_those_of_redis(client: redis.Redis) -> None:
    with client.pubsub() as p:
        p.subscribe("foo", b"\x80")
        p.psubscribe("f?o")
        assert [p.get_message(timeout=PATIENCE)["data"] for _ in range(3)] == [1, 2, 3]
        large = bytes(range(256)) * 4000
        assert client.publish("foo", large) == 2
        assert client.publish(b"\x80", "é") == 1
        assert client.publish("nothing", "") == 0
        expected = [
            {"type": "message", "pattern": None, "channel": b"foo", "data": large},
            {"type": "pmessage", "pattern": b"f?o", "channel": b"foo", "data": large},
            {"type": "message", "pattern": None, "channel": b"\x80", "data": "é".encode()},
        ]
        assert [p.get_message(timeout=PATIENCE) for _ in range(3)] == expected
        assert p.get_message() is None


def test_objects_of_other_programs(client: redis.Redis, segment_name: str) -> None:
    """They are text, or JSON; none ends a client."""
    with client.pubsub() as p, pynotify.PubSub(lambda: pynotify.connect(segment_name)) as other:
        p.subscribe("foo")
        p.psubscribe("f*")
        assert [p.get_message(timeout=PATIENCE)["data"] for _ in range(2)] == [1, 2]
        for obj in ("é", {"a": 1}, 3, None, b"x"):
            other.publish("redis:c:foo", obj)
        other.publish("redis:p:f*", "no message of a pattern")
        client.publish("foo", "last")
        got = [p.get_message(timeout=PATIENCE)["data"] for _ in range(7)]
        assert got == ["é".encode(), b'{"a": 1}', b"3", b"", b"x", b"last", b"last"]


def test_objects_of_other_programs_for_tasks(segment_name: str) -> None:
    async def run() -> list[Any]:
        client = tasks.Redis(segment_name)
        async with client, client.pubsub(ignore_subscribe_messages=True) as p:
            await p.subscribe("foo")
            with pynotify.PubSub(lambda: pynotify.connect(segment_name)) as other:
                other.publish("redis:c:foo", {"a": 1})
            await client.publish("foo", "last")
            got: list[Any] = []
            async with asyncio.timeout(PATIENCE):
                while len(got) < 2:
                    if (message := await p.get_message(timeout=PATIENCE)) is not None:
                        got.append(message["data"])
        return got

    assert asyncio.run(run()) == [b'{"a": 1}', b"last"]


@pytest.mark.parametrize("command", ["subscribe", "psubscribe"])
def test_a_reply_comes_when_the_subscription_is_there_for_tasks(
    segment_name: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What a task publishes after it has read the reply is received."""
    made = AsyncPubSub.subscribe
    published: list[int] = []

    async def run() -> list[Any]:
        client, readers = tasks.Redis(segment_name), set()

        async def answer(p: Any) -> Any:
            async with asyncio.timeout(PATIENCE):
                while not await p.get_message(timeout=PATIENCE):
                    pass
                published.append(await client.publish("foo", "x"))
                return await p.get_message(timeout=PATIENCE)

        async def subscribe(pubsub: AsyncPubSub, *channels: str) -> None:
            readers.add(asyncio.create_task(answer(p)))
            for _ in range(200):
                await asyncio.sleep(0)
            await made(pubsub, *channels)

        monkeypatch.setattr(AsyncPubSub, "subscribe", subscribe)
        async with client, client.pubsub() as p:
            await getattr(p, command)("foo")
            return [(await each)["data"] for each in readers]

    assert asyncio.run(run()) == [b"x"]
    assert published == [1]


def test_a_reply_comes_when_the_subscription_is_there(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of a thread that reads while another one subscribes."""
    made, seen = pynotify.PubSub.subscribe, []

    def subscribe(pubsub: pynotify.PubSub, *channels: str) -> None:
        seen.append(p.parse_response(block=False))  # nothing yet
        made(pubsub, *channels)

    monkeypatch.setattr(pynotify.PubSub, "subscribe", subscribe)
    with client.pubsub() as p:
        p.subscribe("foo")
        assert seen == [None]
        assert p.get_message(timeout=PATIENCE)["data"] == 1


def test_a_thread_with_handlers(client: redis.Redis) -> None:
    heard: list[Any] = []
    p = client.pubsub(ignore_subscribe_messages=True)
    p.subscribe(c=lambda message: heard.append(message["data"]))
    thread = p.run_in_thread(sleep_time=0.01)
    try:
        for number in range(20):
            client.publish("c", number)
        wait_until(lambda: len(heard) == 20, "the handler was called")
    finally:
        thread.stop()
        thread.join()
    assert heard == [str(number).encode() for number in range(20)]


@pytest.mark.parametrize("limit", [PATIENCE, 1e10])
def test_subscribing_while_another_thread_waits(client: redis.Redis, limit: float) -> None:
    got: list[Any] = []
    with client.pubsub() as p:
        p.subscribe("a")
        assert p.get_message(timeout=PATIENCE)["channel"] == b"a"
        thread = threading.Thread(target=lambda: got.append(p.get_message(timeout=limit)))
        thread.start()
        p.subscribe("b")
        thread.join()
    assert got[0]["channel"] == b"b"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get("key"),
        lambda client: client.set("key", 1),
        lambda client: client.client_list(),
        lambda client: client.lpush("key", 1),
    ],
    ids=["GET", "SET", "CLIENT", "LPUSH"],
)
def test_what_is_no_pubsub_raises_with_its_name(
    client: redis.Redis, call: Any, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    with pytest.raises(redis.NotPubSub, match=rf"^{name}.*pub/sub"):
        call(client)
    with pytest.raises(ResponseError):  # as a Redis refuses what it does not know
        call(client)
    assert client.ping()


def test_pipelines_are_refused(client: redis.Redis) -> None:
    with pytest.raises(redis.NotPubSub, match="pipeline"), client.pipeline() as pipeline:
        pipeline.publish("c", "x")
        pipeline.execute()


def test_subcommands_count_connections_of_all_processes(
    client: redis.Redis, segment_name: str
) -> None:
    with client.pubsub() as p, client.pubsub() as q:
        p.subscribe("foo", "bar")
        p.ssubscribe("foo")
        q.subscribe("foo")
        q.psubscribe("x*", "y*")
        p.psubscribe("x*")

        def count() -> Any:
            other = redis.Redis(segment_name)
            return (
                sorted(other.pubsub_channels()),
                other.pubsub_channels("b*"),
                other.pubsub_numsub("foo", "bar", "baz"),
                other.pubsub_numpat(),
                other.pubsub_shardchannels(),
                other.publish("foo", "1"),
                other.spublish("foo", "1"),
                other.publish("xy", "1"),
            )

        assert in_child(count) == (
            [b"bar", b"foo"], [b"bar"], [(b"foo", 2), (b"bar", 1), (b"baz", 0)], 2, [b"foo"],
            2, 1, 2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["", "a", "a\nb"], []),
        ("h?llo", ["hello", "h\nllo"], ["hllo", "heello"]),
        ("h[ae]llo", ["hallo"], ["hillo", "h[llo"]),
        ("h[^e]llo", ["hallo"], ["hello"]),
        ("h[a-c]llo", ["hbllo"], ["hdllo"]),
        (r"h\*llo", ["h*llo"], ["hello"]),
        (r"h[\]", [], ["h]"]),
        ("a.b(c", ["a.b(c"], ["axb(c"]),
        ("[unclosed", ["[unclosed"], ["u"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    found = matcher(pattern.encode())
    assert [each for each in matching if not found.fullmatch(each.encode())] == []
    assert [each for each in others if found.fullmatch(each.encode())] == []


def test_long_names(client: redis.Redis, new_name: Any) -> None:
    long = "n" * 1000
    with client.pubsub() as p:
        p.subscribe(long)
        assert p.get_message(timeout=PATIENCE)["channel"] == long.encode()
        assert client.publish(long, "x") == 1
        assert p.get_message(timeout=PATIENCE)["channel"] == long.encode()
        with pytest.raises(ResponseError, match="max_channel_name=255"):
            p.psubscribe(long)


def test_the_segment_is_gone(client: redis.Redis, segment_name: str) -> None:
    with client.pubsub() as p:
        p.subscribe("c")
        pynotify.unlink(segment_name, force=True)
        with pytest.raises(RedisConnectionError):
            for _ in range(100):
                p.get_message(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(redis, redis_py), (tasks, redis_asyncio)], ids=["", "asyncio"]
)
def test_what_programs_name_beside_the_client(ours: Any, theirs: Any) -> None:
    """`except redis.ConnectionError`, `p: redis.client.PubSub`."""
    errors = {name for name in theirs.__all__ if name.endswith(("Error", "Exception"))}
    assert {"ConnectionError", "TimeoutError", "PubSubError"} < errors
    for name in (*errors, "Subscription", "client"):
        assert getattr(ours, name) is getattr(theirs, name)
    assert ours.StrictRedis is ours.Redis


def test_health_is_not_asked_for(client: redis.Redis, segment_name: str) -> None:
    """Each look for a message would send a PING, and find the answer in the place of a message."""

    async def run() -> Any:
        other = tasks.Redis(segment_name, health_check_interval=1)
        async with other, other.pubsub() as p:
            await p.subscribe("c")
            await other.publish("c", "x")
            return [(await p.get_message(timeout=PATIENCE))["type"] for _ in range(2)]

    assert asyncio.run(run()) == ["subscribe", "message"]
    asking = redis.Redis(segment_name, health_check_interval=1)
    with asking, asking.pubsub() as p:
        p.subscribe("c")
        client.publish("c", "x")
        got = [p.get_message(timeout=PATIENCE)["type"] for _ in range(2)]
    assert got == ["subscribe", "message"]


@pytest.mark.parametrize("make", [redis.from_url, redis.Redis.from_url, of_a_pool])
def test_urls(segment_name: str, make: Callable[[str], redis.Redis]) -> None:
    client = make(f"pynotify://{segment_name}?decode_responses=1")
    with client, client.pubsub() as p:
        p.subscribe("c")
        assert p.get_message(timeout=PATIENCE)["channel"] == "c"
    with pytest.raises(ValueError, match="pynotify://SEGMENT"):
        make("redis://localhost")
    with pytest.raises(pynotify.ProgrammingError):
        redis.Redis("a/b")


def test_asyncio(segment_name: str) -> None:
    async def run() -> list[Any]:
        client = tasks.from_url(f"pynotify://{segment_name}?decode_responses=true")
        async with client, client.pubsub() as p, client.pubsub() as q:
            await p.subscribe("foo")
            await q.psubscribe("f*")
            assert await client.publish("foo", "x" * 100_000) == 2
            assert await client.pubsub_numsub("foo") == [("foo", 1)]
            got = []
            for each in (p, p, q, q):
                got.append(await each.get_message(timeout=PATIENCE))
            with pytest.raises(tasks.NotPubSub, match=r"^GET"):
                await client.get("key")
            await p.unsubscribe()
            assert (await p.get_message(timeout=PATIENCE))["type"] == "unsubscribe"
        return got

    got = asyncio.run(run())
    assert [each["type"] for each in got] == ["subscribe", "message", "psubscribe", "pmessage"]
    assert got[1]["data"] == got[3]["data"] == "x" * 100_000


def test_subscribing_again_after_a_cancelled_attempt(
    segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was noted, and subscribed to nothing."""

    async def cancelled(*_channels: str) -> None:
        raise asyncio.CancelledError

    async def run() -> dict[str, Any]:
        client = tasks.Redis(segment_name)
        async with client, client.pubsub() as p:
            await p.subscribe("first")
            with monkeypatch.context() as patched:
                patched.setattr(p.connection._link.pubsub, "subscribe", cancelled)
                with pytest.raises(asyncio.CancelledError):
                    await p.subscribe("foo")
            await p.subscribe("foo")
            assert await client.publish("foo", "1") == 1
            while (got := await p.get_message(timeout=PATIENCE))["type"] != "message":
                pass
        return got

    assert asyncio.run(run())["data"] == b"1"


# ---- processes -----------------------------------------------------------------------------------


def test_four_processes_of_which_one_is_killed(client: redis.Redis, segment_name: str) -> None:
    """The three others hear every message once and in order, and the count goes down to three."""
    code = (
        "import os, sys; from pynotify.compat import redis;"
        "p = redis.Redis(sys.argv[1], decode_responses=True).pubsub();"
        "p.psubscribe('n*');"
        "[print(m['data'], flush=True) for m in p.listen() if m['type'] == 'pmessage']"
    )
    command = [sys.executable, "-c", code, segment_name]
    workers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        wait_until(lambda: client.publish("n", "begin") == 4, "all four listen")
        for number in range(2000):
            client.publish("number", number)
            if number == 1000:
                workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        wait_until(lambda: client.publish("n", "end") == 3, "its slot is free")
        for worker in workers[1:]:
            assert worker.stdout is not None
            heard = [text.strip() for text in iter(worker.stdout.readline, "end\n")]
            numbers = [text for text in heard if text.isdecimal()]
            assert numbers == [str(number) for number in range(2000)]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_the_example(segment_name: str) -> None:
    output = output_of_example("adapters/redis_clients.py", segment_name)
    lines = sorted(line.partition(" ")[2] for line in output)
    assert lines == ["by 4 4"] + ["news hello"] * 4 + ["sport.chess 1-0"] * 4
