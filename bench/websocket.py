"""One message to the WebSocket clients of four workers: pynotify's Broadcast against Redis.

`uvicorn --workers 4` with 200 clients, 50 of each worker, for each side; a client of one worker
publishes.  The sides: `pynotify.contrib.starlette.Broadcast`; redis.asyncio with one subscribed
connection of a worker, whose fan-out to its clients is the same code as ours; broadcaster with its
Redis backend; and, for scale, nothing at all between the workers, where the publisher tells each of
them.  A Redis is on a Unix socket, one for each side that has one.

* Processor time is that of the four workers and of the Redis, by the scheduler's own clock, for
  each message that a client got.  The clients' and that of uvicorn's parent are not in it.
* Every client checks that each message comes once and in order.
* Latency: from before the publisher's send until a client has the bytes.
* Memory: proportional (PSS) of the same processes, shared memory with it.
* Idle: the same processes' processor time without traffic, all sides over the same seconds.
* Killed: a worker is killed while messages go out; what the clients of the others have lost.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import pynotify
from bench.pairs import alternate
from bench.peers.redis_server import Redis
from bench.rig import Lost
from bench.settings import Settings

TOPIC = "websocket"

_WORKERS = 4
_CLIENTS = 200
_MESSAGES = 100
_INTERVAL = 0.02
_PAIRS = 21
_IDLE_SECONDS = 20.0
_IDLE_BAR = 0.2  # percent of a processor, all four workers together
_PATIENCE = 60.0
_MODULES = ("starlette", "uvicorn", "uvloop", "websockets", "broadcaster")
_PORT = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
_NAMES = {
    "redis": "redis.asyncio, one connection a worker",
    "broadcaster": "broadcaster, Redis",
    "alone": "nothing between the workers",
}


class _Pass(NamedTuple):
    """What one pass took, in microseconds."""

    cpu: float
    p50: float
    p99: float


class _Side:
    """Workers and their clients."""

    def __init__(self, directory: Path, name: str, where: str, server: int | None = None) -> None:
        self.name = name
        self._where = where
        self._server = server
        self._log = directory / f"websocket-{name}.log"

    def __enter__(self) -> Self:
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "SIDE": self.name, "WHERE": self._where, "PYTHONPATH": path}
        command = ["-m", "uvicorn", "--factory", "--workers", str(_WORKERS), "--port", "0"]
        command += ["--no-access-log", "bench.peers.websocket_app:make_app"]
        with self._log.open("wb") as log:
            self._uvicorn = subprocess.Popen(
                [sys.executable, *command], env=env, stdout=log, stderr=log
            )
        self._clients = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.websocket_clients"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.pids: list[int] = self.ask(
                "connect", port=self._port(), clients=_CLIENTS, workers=_WORKERS,
                everywhere=self.name == "alone",
            )  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def _port(self) -> int:
        deadline = time.monotonic() + _PATIENCE
        while True:
            said = self._log.read_text()
            if (found := _PORT.search(said)) and said.count("startup complete") == _WORKERS:
                return int(found[1])
            if self._uvicorn.poll() is not None or time.monotonic() > deadline:
                raise Lost(f"{self.name}: uvicorn does not start: {said[-2000:]}")
            time.sleep(0.05)

    def ask(self, what: str, **arguments: Any) -> Any:
        """Tell the clients, and wait for their answer."""
        self.tell(what, **arguments)
        return self.answer()

    def tell(self, what: str, **arguments: Any) -> None:
        assert self._clients.stdin is not None
        print(json.dumps([what, arguments]), file=self._clients.stdin, flush=True)

    def answer(self) -> Any:
        assert self._clients.stdout is not None
        said = self._clients.stdout.readline()
        if not said:
            raise Lost(f"{self.name}: the clients have ended: {self._log.read_text()[-2000:]}")
        return json.loads(said)

    @property
    def _counted(self) -> list[int]:
        """Processes whose time and memory count."""
        return self.pids if self._server is None else [*self.pids, self._server]

    def cpu_us(self) -> float:
        """Processor time that they have used."""
        return sum(map(_cpu_ns, self._counted)) / 1e3

    def memory_mib(self) -> float:
        """Their proportional set size."""
        return sum(map(_pss_kib, self._counted)) / 1024

    def load(self, messages: int) -> _Pass:
        """A pass; raises `Lost` when a message did not come once and in order."""
        before = self.cpu_us()
        got = self.ask("load", messages=messages, interval=_INTERVAL)
        used = self.cpu_us() - before
        if got["lost"] or got["wrong"] or got["gone"]:
            raise Lost(f"{self.name}: {got}")
        return _Pass(used / got["deliveries"], got["p50"], got["p99"])

    def lost_by_a_kill(self, messages: int) -> int:
        """What the other workers' clients lose or get out of order when a worker is killed."""
        self.tell("load", messages=messages, interval=_INTERVAL)
        time.sleep(messages * _INTERVAL / 2)
        os.kill(self.pids[-1], signal.SIGKILL)
        got = self.answer()
        if got["gone"] != _CLIENTS // _WORKERS:
            raise Lost(f"{self.name}: one worker was killed, and {got['gone']} clients are gone")
        return int(got["lost"] + got["wrong"])

    def __exit__(self, *_: object) -> None:
        assert self._clients.stdin is not None
        self._clients.stdin.close()
        self._uvicorn.terminate()
        for process in (self._clients, self._uvicorn):
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cpu_ns(pid: int) -> int:
    """Processor time of all threads that there are: none of these processes ends one."""
    texts = (path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(text.split()[0]) for text in texts)


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


def run(settings: Settings) -> None:
    """Nothing where something is missing."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if not Redis.available():
        missing.append("redis-server with redis-py")
    if missing:
        print(f"{TOPIC}: not measured, as there is no {', no '.join(missing)}")
        return
    segment = f"bench-websocket-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(pynotify.unlink, segment, force=True, missing_ok=True)
        sides = [_Side(settings.directory, "pynotify", segment)]
        for name in ("redis", "broadcaster"):
            server = Redis(settings.directory)
            server.prepare()
            stack.callback(server.dispose)
            url = f"unix://{server.socket}"
            sides.append(_Side(settings.directory, name, url, server.pid))
        sides.append(_Side(settings.directory, "alone", ""))
        for side in sides:
            stack.enter_context(side)
        _measure(settings, sides)


def _measure(settings: Settings, sides: list[_Side]) -> None:
    messages = settings.messages(_MESSAGES)
    passes: list[Any] = [lambda side=side: side.load(messages) for side in sides]
    values: list[list[_Pass]] = alternate(passes, settings.pairs(_PAIRS))
    for name, unit, which, bar in (
        ("processor time of a delivery", "us", "cpu", 1),
        ("publish to receive, p50", "us", "p50", None),
        ("publish to receive, p99", "us", "p99", 1),
    ):
        found = [[getattr(each, which) for each in of_side] for of_side in values]
        _compare(settings, sides, name, unit, found, bar=bar)
    memory = [[side.memory_mib()] for side in sides]
    _compare(settings, sides, "memory of the workers and the server", "MiB", memory, bar=1)
    idle = _idle(sides, 3.0 if settings.quick else _IDLE_SECONDS)
    _compare(settings, sides, "idle, a processor", "%", idle, bar=1)
    beyond = idle[0][0] - idle[-1][0]
    name = "idle, beyond what uvicorn itself uses"
    settings.alone(TOPIC, name, "%", [beyond], bar=_IDLE_BAR, at_most=True)
    lost = [[float(side.lost_by_a_kill(messages))] for side in sides[:-1]]
    name = "lost by the clients of others when a worker is killed"
    settings.alone(TOPIC, name, "messages", lost[0], bar=0, at_most=True)
    for side, value in zip(sides[1:], lost[1:], strict=False):
        settings.scale(TOPIC, name, "messages", value, _NAMES[side.name])


def _compare(
    settings: Settings,
    sides: list[_Side],
    name: str,
    unit: str,
    values: list[list[float]],
    *,
    bar: float | None,
) -> None:
    """Ours with each of the others; the last one has less to do, and no bar."""
    for side, theirs in zip(sides[1:], values[1:], strict=True):
        held = None if side.name == "alone" else bar
        settings.compare(
            TOPIC, name, unit, values[0], theirs, against=_NAMES[side.name], bar=held, at_most=True
        )


def _idle(sides: list[_Side], seconds: float) -> list[list[float]]:
    """Percent of one processor, all sides at the same time."""
    before, begin = [side.cpu_us() for side in sides], time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - begin
    return [
        [(side.cpu_us() - used) / elapsed / 1e4] for side, used in zip(sides, before, strict=True)
    ]
