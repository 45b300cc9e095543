"""A gateway against a PostgreSQL: the same clients, by the same bytes, on Unix sockets.

Throughput is pgbench's, with one process of the server on one side and one for each client on the
other; the server's processor time for each transaction stands beside it, since that is what load
from elsewhere disturbs least.  The server is started here, without fsync.  A round trip is a NOTIFY
of one client that another one hears and answers; both are this process, which writes and reads
sockets and nothing else.  Beside a thousand idle listeners it is compared with the gateway's own
without them, since PostgreSQL would need a process for each.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import pynotify
from bench.pairs import alternate
from bench.rig import pin_all_threads
from bench.server import Server, find_programs
from bench.settings import Settings
from spark_jobs.procfs import stat

TOPIC = "gateway"

_AGAINST = "PostgreSQL"
_PAIRS = 5
_SECONDS = 2.0
_ROUND_TRIPS = 2_000
_IDLE = 100
_CROWD = 1_000
_CROWD_BAR = 1.25
_CROWD_KIB_BAR = 16.0  # for each
_CROWD_CPU_BAR = 2.0  # percent of a processor
_LISTENERS = 100
_DELIVERED = 500
_CPU_BAR = 0.45
_HOP_US = 10  # a wake-up more, and a socket
_HOP_BAR = 1.5
_TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """What pgbench plays, with how many clients; the bar of the rate."""

    name: str
    script: str
    clients: int
    options: tuple[str, ...] = ()
    bar: float | None = None


LOADS = (
    Load("NOTIFY, 1 client", "NOTIFY c, 'x';", 1),
    Load("NOTIFY, 8 clients", "NOTIFY c, 'x';", 8, bar=3),
    Load("pg_notify prepared, 8 clients", "SELECT pg_notify('c', 'x');", 8, ("-M", "prepared"), 3),
    Load(
        "BEGIN, 2 NOTIFY, COMMIT, 1 client",
        "BEGIN;\nNOTIFY c, 'x';\nNOTIFY c, 'y';\nCOMMIT;",
        1,
        bar=1.8,
    ),
    Load("SELECT 1, 8 clients", "SELECT 1;", 8),
    Load("connect, NOTIFY, close", "NOTIFY c, 'x';", 1, ("-C",), 10),
)


class _Row(NamedTuple):
    """A rate, what plays it in the directory of a socket, and its bar."""

    name: str
    unit: str
    play: Callable[[Path], float]
    bar: float | None


class _Side(Protocol):
    """A server: where its socket is, and what it has used."""

    directory: Path

    def cpu_seconds(self) -> float:
        """Processor time of all its processes."""
        ...


class _Place(NamedTuple):
    """Where a gateway is, for another process."""

    segment: str
    directory: Path


class _Gateway:
    """`pynotify gateway` on a segment of its own."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bench-gw-"))
        self.segment = self.directory.name
        self._engine = pynotify.open(self.segment, max_backends=2048)
        command = [sys.executable, "-m", "pynotify", "gateway", self.segment]
        command += ["--directory", str(self.directory), "--map", "postgres=default"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        self._process.stderr.readline()

    def cpu_seconds(self) -> float:
        found = stat(self._process.pid)
        assert found is not None
        return found.own / _TICKS

    @property
    def place(self) -> _Place:
        return _Place(self.segment, self.directory)

    def memory_kib(self) -> int:
        """Resident, of its own: what no other process shares with it."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._engine.close()
        pynotify.unlink(self.segment)
        shutil.rmtree(self.directory)


class _Client:
    """A connection that is ready."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"{directory}/.s.PGSQL.5432")
        body = struct.pack("!I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
        self._socket.sendall(struct.pack("!I", len(body) + 4) + body)
        self._bytes = b""
        self.until(b"Z")

    def query(self, sql: str) -> None:
        self._socket.sendall(query(sql))
        self.until(b"Z")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, kind: bytes, count: int = 1) -> None:
        """Until so many messages of this type have come."""
        while count:
            while len(self._bytes) < 5:
                self._bytes += self._socket.recv(1 << 16)
            length = struct.unpack_from("!I", self._bytes, 1)[0] + 1
            while len(self._bytes) < length:
                self._bytes += self._socket.recv(1 << 16)
            count -= self._bytes[:1] == kind
            self._bytes = self._bytes[length:]

    def close(self) -> None:
        self._socket.close()


def query(sql: str) -> bytes:
    body = sql.encode() + b"\0"
    return b"Q" + struct.pack("!I", len(body) + 4) + body


def _pgbench(program: str, directory: Path, load: Load, seconds: float) -> float:
    """Transactions a second."""
    script = directory / f"script-{load.clients}.sql"
    script.write_text(load.script + "\n", encoding="utf-8")
    command = [program, "-n", "-h", str(directory), "-U", "postgres", "-f", str(script)]
    command += ["-c", str(load.clients), "-T", str(max(1, round(seconds))), *load.options]
    done = subprocess.run([*command, "postgres"], capture_output=True, text=True, check=True)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    assert found, done.stdout
    return float(found[1])


class _Pass:
    """A pass of one side and one load: the rate, and beside it the processor time of each."""

    def __init__(
        self, directory: Path, cpu: Callable[[], float], run: Callable[[Path], float]
    ) -> None:
        self._directory, self._cpu, self._run = directory, cpu, run
        self.cpu: list[float] = []

    def run(self) -> float:
        cpu, begun = self._cpu(), time.monotonic()
        rate = self._run(self._directory)
        count = rate * (time.monotonic() - begun)
        self.cpu.append((self._cpu() - cpu) / count * 1e6)
        return rate


def _round_trips(directory: Path, count: int, idle: int) -> float:
    """The median, in us, beside so many listeners to something else."""
    with ExitStack() as stack:
        clients = [_Client(directory) for _ in range(idle + 2)]
        for client in clients:
            stack.callback(client.close)
        for client in clients[2:]:
            client.query("LISTEN other")
        one, two = clients[:2]
        one.query("LISTEN to_one")
        two.query("LISTEN to_two")
        times = []
        for _ in range(count):
            begun = time.perf_counter_ns()
            one.send(query("NOTIFY to_two"))
            two.until(b"A")
            two.send(query("NOTIFY to_one"))
            one.until(b"A")
            times.append(time.perf_counter_ns() - begun)
            two.until(b"Z")
    return statistics.median(times) / 2e3


def _deliveries(directory: Path, count: int) -> float:
    """A second, to all listeners."""
    with ExitStack() as stack:
        clients = [_Client(directory) for _ in range(_LISTENERS + 1)]
        for client in clients:
            stack.callback(client.close)
        for client in clients[1:]:
            client.query("LISTEN c")
        begun = time.monotonic()
        for number in range(count):
            clients[0].query(f"NOTIFY c, '{number}'")
        for client in clients[1:]:
            client.until(b"A", count)
        return count * _LISTENERS / (time.monotonic() - begun)


def run(settings: Settings) -> None:
    """Nothing where there is no PostgreSQL, or no pgbench."""
    programs, pgbench = find_programs(), shutil.which("pgbench")
    if programs is None or pgbench is None:
        print("gateway: not measured, as there is no PostgreSQL server, or no pgbench")
        return
    with ExitStack() as stack:
        stack.enter_context(_many_descriptors())
        server = stack.enter_context(Server(programs))
        gateway = stack.enter_context(_Gateway())
        sides: list[_Side] = [gateway, server]
        seconds = 1.0 if settings.quick else _SECONDS
        for load in LOADS:

            def play(directory: Path, load: Load = load) -> float:
                return _pgbench(pgbench, directory, load, seconds)

            _compare(settings, sides, _Row(load.name, "transactions/s", play, load.bar))
        for idle in (0, _IDLE):
            _compare_round_trips(settings, sides, idle)

        _compare_natively(settings, gateway)
        _measure_crowd(settings, gateway)

        def deliver(directory: Path) -> float:
            return _deliveries(directory, settings.messages(_DELIVERED))

        _compare(settings, sides, _Row(f"1 to {_LISTENERS} listeners", "deliveries/s", deliver, 3))


def _answer(place: _Place, through: bool, count: int, ready: Event) -> None:
    """In a process of its own: hear, natively or as a client, and notify natively."""
    pin_all_threads(1)
    with ExitStack() as stack:
        conn = stack.enter_context(pynotify.connect(place.segment))
        client = _Client(place.directory) if through else None
        if client is not None:
            stack.callback(client.close)
            client.query("LISTEN there")
        else:
            conn.listen("there")
        ready.set()
        for _ in range(count):
            if client is not None:
                client.until(b"A")
            else:
                conn.wait()
                conn.poll()
            conn.notify("back")


@contextmanager
def _pinned() -> Iterator[None]:
    """The calling thread on the first processor of those that it may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _native_round_trips(gateway: _Gateway, through: bool, count: int) -> float:
    """The median, in us, there and back; there through the gateway, or natively too.

    Each end has a processor of its own: left to the kernel, two that wait for each other share one,
    and three may not.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=_answer, args=(gateway.place, through, count, ready))
    times = []
    with pynotify.connect(gateway.segment) as conn:
        conn.listen("back")
        other.start()
        ready.wait()
        with _pinned():
            for _ in range(count):
                begun = time.perf_counter_ns()
                conn.notify("there")
                conn.wait()
                conn.poll()
                times.append(time.perf_counter_ns() - begun)
        other.join()
    return statistics.median(times) / 1e3


def _compare_natively(settings: Settings, gateway: _Gateway) -> None:
    count = settings.messages(_ROUND_TRIPS)
    passes = [partial(_native_round_trips, gateway, through, count) for through in (True, False)]
    both, native = alternate(passes, settings.pairs(_PAIRS))
    half = [trip / 2 for trip in native]
    there = [trip - back - _HOP_US for trip, back in zip(both, half, strict=True)]
    name = f"from a native sender to a client, less {_HOP_US} us, p50"
    settings.compare(
        TOPIC, name, "us", there, half, against="native to native", bar=_HOP_BAR, at_most=True
    )


@contextmanager
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure_crowd(settings: Settings, gateway: _Gateway) -> None:
    """What a thousand idle listeners cost: others, memory, and the processor."""
    count, many = settings.messages(_ROUND_TRIPS), f"{_CROWD:,} idle listeners"
    passes = [partial(_round_trips, gateway.directory, count, idle) for idle in (_CROWD, 0)]
    values = alternate(passes, settings.pairs(_PAIRS))
    name = f"half a round trip beside {many}, p50"
    settings.compare(
        TOPIC, name, "us", *values, against="without them", bar=_CROWD_BAR, at_most=True
    )
    # A second gateway: this one keeps what it had allocated.
    with _Gateway() as fresh, ExitStack() as stack:
        before = fresh.memory_kib()
        for _ in range(_CROWD):
            client = _Client(fresh.directory)
            stack.callback(client.close)
            client.query("LISTEN other")
        memory = (fresh.memory_kib() - before) / _CROWD
        settings.alone(
            TOPIC, f"memory of {many}", "KiB each", [memory], bar=_CROWD_KIB_BAR, at_most=True
        )
        cpu, begun = fresh.cpu_seconds(), time.monotonic()
        time.sleep(1 if settings.quick else 10)
        share = (fresh.cpu_seconds() - cpu) / (time.monotonic() - begun) * 100
        settings.alone(
            TOPIC, f"processor of {many}", "%", [share], bar=_CROWD_CPU_BAR, at_most=True
        )


def _compare_round_trips(settings: Settings, sides: list[_Side], idle: int) -> None:
    count = settings.messages(_ROUND_TRIPS)
    passes = [partial(_round_trips, side.directory, count, idle) for side in sides]
    values = alternate(passes, settings.pairs(_PAIRS))
    name = f"half a round trip beside {idle} idle listeners, p50"
    settings.compare(TOPIC, name, "us", *values, against=_AGAINST, bar=0.6, at_most=True)


def _compare(settings: Settings, sides: list[_Side], row: _Row) -> None:
    passes = [_Pass(side.directory, side.cpu_seconds, row.play) for side in sides]
    ours, theirs = alternate([each.run for each in passes], settings.pairs(_PAIRS))
    settings.compare(TOPIC, row.name, row.unit, ours, theirs, against=_AGAINST, bar=row.bar)
    name, cpu = f"{row.name}, the server's processor", [each.cpu[1:] for each in passes]
    settings.compare(TOPIC, name, "us each", *cpu, against=_AGAINST, bar=_CPU_BAR, at_most=True)
