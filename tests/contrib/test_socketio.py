"""Socket.IO over four real workers: clients of all of them hear, ask and disconnect each other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE, wait_until
from requirement import require
from workers import ROOT, Workers

try:
    import aiohttp  # noqa: F401 - what the clients need
    import flask_socketio  # noqa: F401
    import simple_websocket  # noqa: F401 - what the threaded server needs
    import socketio
except ImportError as missing:
    require("socketio", str(missing))

from pynotify.contrib.socketio import AsyncPynotifyManager, PynotifyManager

WORKERS = 4
EXAMPLES = ROOT / "examples" / "adapters"
SERVERS = {
    "asyncio": [
        "uvicorn", "--workers", str(WORKERS), "--port", "0",
        "--app-dir", EXAMPLES, "socketio_chat:app",
    ],
    "threads": [
        "gunicorn", "--workers", str(WORKERS), "--threads", "6",
        "--worker-connections", "6", "--graceful-timeout", "1", "--bind", "127.0.0.1:0",
        "--chdir", EXAMPLES, "flask_chat:app",
    ],
}  # fmt: skip


@pytest.fixture(params=["asyncio", pytest.param("threads", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest, tmp_path: Path, segment_name: str) -> Iterator[Workers]:
    started = Workers(tmp_path, *SERVERS[request.param], SEGMENT=segment_name)
    yield started
    started.close()


class Client:
    """One that is connected to some worker, and does not connect again."""

    def __init__(self) -> None:
        self._client = socketio.AsyncClient(reconnection=False)
        self.said: list[str] = []
        self._changed = asyncio.Condition()
        self._welcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._client.on("welcome", self._welcomed)
        self._client.on("said", self._heard)
        self._client.on("question", lambda text: f"{text}, says {self.sid}")
        self._client.on("disconnect", lambda *_: self.gone.set())

    async def connect(self, url: str) -> Client:
        async with asyncio.timeout(PATIENCE):
            while not self._client.connected:
                try:
                    await self._client.connect(url, transports=["websocket"])
                except socketio.exceptions.ConnectionError:  # no worker listens yet
                    await asyncio.sleep(0.02)
            welcome = await self._welcome
        self.sid, self.pid = welcome["sid"], welcome["pid"]
        return self

    async def _welcomed(self, welcome: dict[str, Any]) -> None:
        self._welcome.set_result(welcome)

    async def _heard(self, text: str) -> None:
        async with self._changed:
            self.said.append(text)
            self._changed.notify_all()

    async def until_said(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: text in self.said)

    async def until_gone(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.gone.wait()

    async def emit(self, *words: Any) -> None:
        event, *data = words
        await self._client.emit(event, tuple(data))

    async def call(self, *words: Any) -> Any:
        event, *data = words
        return await self._client.call(event, tuple(data), timeout=PATIENCE)

    async def close(self) -> None:
        await self._client.disconnect()


async def connect_until(url: str, reached: Callable[[set[int]], object]) -> list[Client]:
    """Clients of workers with such pids, at most two of each."""
    clients: list[Client] = []
    async with asyncio.timeout(PATIENCE):
        while not reached({client.pid for client in clients}):
            new = await Client().connect(url)
            if sum(client.pid == new.pid for client in clients) < 2:
                clients.append(new)
            else:
                await new.close()
    return clients


def one_for_each_worker(clients: list[Client]) -> list[Client]:
    return list({client.pid: client for client in clients}.values())


async def talk_beside_a_kill(talkers: list[Client], victim: Client, all_: list[Client]) -> None:
    """Each survivor hears everything that each talker says, once and in its order."""
    half = asyncio.Event()

    async def talk(client: Client) -> None:
        for number in range(100):
            await client.call("say", f"{client.sid} {number}")  # events of a client may overtake
            if number == 50:
                half.set()

    talking = [asyncio.create_task(talk(client)) for client in talkers]
    await half.wait()
    os.kill(victim.pid, signal.SIGKILL)
    await asyncio.gather(*talking)
    for client in all_:
        if client.pid == victim.pid:
            await client.until_gone()
            continue
        for talker in talkers:
            await client.until_said(f"{talker.sid} 99")
            heard = [text for text in client.said if text.startswith(talker.sid)]
            assert heard == [f"{talker.sid} {number}" for number in range(100)]


async def together(server: Workers) -> None:
    clients = await connect_until(server.url, lambda pids: len(pids) == WORKERS)
    old = {client.pid for client in clients}
    (kicked,) = await connect_until(server.url, len)
    a, b, c, victim = one_for_each_worker(clients)
    large = "x" * 500_000
    await a.emit("say", "hello")
    await b.emit("say", large)
    for client in clients:
        await client.until_said("hello")
        await client.until_said(large)
    assert await a.call("ask", b.sid, "what?") == f"what?, says {b.sid}"
    assert await b.call("ask", a.sid, "what?") == f"what?, says {a.sid}"
    await a.emit("kick", kicked.sid)
    await kicked.until_gone()
    await a.emit("say", "they are gone")

    await talk_beside_a_kill([a, b, c], victim, clients)
    new = await connect_until(server.url, lambda pids: pids - old)  # another one took its place
    await b.emit("say", "welcome back")
    for client in (a, b, c, *new):
        await client.until_said("welcome back")
    for client in (*clients, *new):
        await client.close()


def test_four_workers_of_which_one_is_killed(server: Workers, segment_name: str) -> None:
    try:
        asyncio.run(together(server))
    except BaseException:
        print(server.said())
        raise


def test_a_process_that_is_no_server_emits(segment_name: str) -> None:
    """As a task queue's worker does: write_only, and from one event loop after another."""
    heard: list[Any] = []
    with pynotify.connect(segment_name) as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("socketio")
        manager = PynotifyManager(segment_name, write_only=True)
        manager.emit("news", {"text": "é"}, room="all")
        tasks = AsyncPynotifyManager(segment_name, write_only=True)
        for text in ("one", "two"):

            async def emit(text: str = text) -> None:
                await tasks.emit("news", text)
                await tasks.close()

            asyncio.run(emit())
        manager.close()
        pubsub.on("socketio", heard.append)
        wait_until(lambda: pubsub.run(0) * 0 + (len(heard) == 3), "all three came")
    assert ['"event": "news"' in text for text in heard] == [True] * 3


def test_a_manager_that_was_made_before_a_fork(segment_name: str) -> None:
    manager = PynotifyManager(segment_name, write_only=True)
    manager.emit("news", "parent")
    with pynotify.connect(segment_name) as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("socketio")
        child = os.fork()
        if child == 0:
            try:
                manager.emit("news", "child")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        _, message, pid = next(iter(pubsub))
        assert "child" in message
        assert pid == child
    manager.close()


GREENLETS = """
import sys
if sys.argv[2] == "patched":
    from gevent import monkey
    monkey.patch_all()
import gevent, socketio
from pynotify.contrib.socketio import PynotifyManager

manager = PynotifyManager(sys.argv[1])
server = socketio.Server(async_mode="gevent", client_manager=manager)
got = []
manager._handle_emit = lambda message: got.append(message["event"])
manager.initialize()
print("ready", flush=True)
while len(got) < 2:
    gevent.sleep(0.01)  # it returns: the hub goes round
print(*got, flush=True)
"""


@pytest.mark.parametrize("patched", ["patched", "not patched"])
def test_in_gevent_the_hub_is_not_blocked(segment_name: str, patched: str) -> None:
    command = [sys.executable, "-c", GREENLETS, segment_name, patched]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            manager = PynotifyManager(segment_name, write_only=True)
            manager.emit("one", 1)
            manager.emit("two", 2)
            manager.close()
            assert server.stdout.readline() == "one two\n"
        finally:
            server.kill()


def test_a_bad_segment_name_is_refused_at_once() -> None:
    for kind in (PynotifyManager, AsyncPynotifyManager):
        with pytest.raises(pynotify.ProgrammingError):
            kind("redis://localhost")


def test_importing_contrib_imports_no_framework() -> None:
    code = (
        "import sys, pynotify.contrib;"
        "print(sorted({'socketio', 'django', 'starlette', 'redis', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
