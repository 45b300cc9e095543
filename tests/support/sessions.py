"""Sessions: connections that are driven step by step, here or each in a process of its own.

A `Worker` is a real process that calls functions for the test.  `LocalSession` and
`RemoteSession` have the methods of `pynotify.Connection`; the second executes them in a worker.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pynotify
from receiving import PATIENCE, TIME_FACTOR, readable

_WORKER = Path(__file__).with_name("session_worker.py")


class WorkerError(Exception):
    """A worker raised something that has no counterpart here, died, or did not answer."""


def _rebuild(module: str, name: str, text: str, sqlstate: Any, hint: Any) -> Exception:
    kind = getattr(importlib.import_module(module), name, None)
    if module == "builtins":
        kind = getattr(builtins, name)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return WorkerError(f"{module}.{name}: {text}")
    error: Exception = kind.__new__(kind, text)
    error.args = (text,)
    for attribute, value in (("sqlstate", sqlstate), ("hint", hint)):
        if value is not None and getattr(error, attribute, None) != value:
            setattr(error, attribute, value)
    return error


class _Forked:
    """A process of `_Nest`, with what tests want of `subprocess.Popen`."""

    def __init__(self, nest: _Nest, pid: int) -> None:
        self._nest = nest
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not readable(self._pidfd, timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(self._nest.ask("reap", self.pid))
            os.close(self._pidfd)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)


class _Nest:
    """A process that has imported what workers need, and forks them: a start takes longer."""

    _all: ClassVar[dict[frozenset[tuple[str, str]], _Nest]] = {}

    @classmethod
    def of(cls, environment: dict[str, str]) -> _Nest:
        key = frozenset((k, v) for k, v in environment.items() if k != "PYTEST_CURRENT_TEST")
        if key not in cls._all:
            cls._all[key] = cls(environment)
        return cls._all[key]

    @classmethod
    def close_all(cls) -> None:
        while cls._all:
            cls._all.popitem()[1]._close()

    def __init__(self, environment: dict[str, str]) -> None:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()

    def ask(self, what: str, argument: int = 0) -> Any:
        self._pipe.send((what, argument))
        return self._answer()

    def fork(self, theirs: int) -> _Forked:
        """`theirs` is the worker's end of its pipe."""
        self._pipe.send(("fork", 0))
        send_handle(self._pipe, theirs, self._process.pid)
        return _Forked(self, self._answer())

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise WorkerError(f"process {self._process.pid}, which forks workers, does not answer")
        return self._pipe.recv()

    def _close(self) -> None:
        self._pipe.close()
        self._process.wait(PATIENCE)


class Worker:
    """A process of its own that calls functions on demand."""

    def __init__(self, **environment: str) -> None:
        self._nest = _Nest.of({**os.environ, **environment})
        self._pipe, theirs = Pipe()
        self._process = self._nest.fork(theirs.fileno())
        theirs.close()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._closed = False

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Begin a call; `result()` has its result."""
        self._pipe.send((function, arguments, options))

    def result(self, timeout: float = PATIENCE) -> Any:
        if not self._pipe.poll(timeout):
            raise WorkerError(f"process {self.pid} did not answer within {timeout} s")
        try:
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            self.join()
            raise WorkerError(f"process {self.pid} ended: {self.returncode}") from error
        if kind == "error":
            raise _rebuild(*value)
        return value

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.start(function, *arguments, **options)
        return self.result()

    @property
    def alive(self) -> bool:
        """Whether it still runs; neither reaps it nor waits."""
        return not readable(self._pidfd)

    @property
    def returncode(self) -> int | None:
        """As of `subprocess`: minus the signal's number when one ended it."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def suspend(self) -> None:
        """SIGSTOP, and wait until it stands."""
        self.signal(signal.SIGSTOP)
        self._nest.ask("await stop", self.pid)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def await_end(self, timeout: float = PATIENCE) -> None:
        """Wait until it is dead, without reaping it: it is a zombie then."""
        if not readable(self._pidfd, timeout):
            raise WorkerError(f"process {self.pid} did not end within {timeout} s")

    def join(self, timeout: float = PATIENCE) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        self.join()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pipe.close()
        try:
            self.join(5.0 * TIME_FACTOR)
        except subprocess.TimeoutExpired:
            self.kill()
        os.close(self._pidfd)


class Heard(NamedTuple):
    """A notification as plain values, so that it crosses a pipe."""

    channel: str
    payload: str
    pid: int
    backend_id: int
    seq: int
    pattern: str | None
    headers: dict[str, str]


def plain(value: Any) -> Any:
    if isinstance(value, pynotify.Notify):
        return Heard(
            value.channel,
            value.payload,
            value.pid,
            value.backend_id,
            value.seq,
            value.pattern,
            value.headers,
        )
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def connect_to(name: str, **options: Any) -> pynotify.Connection:
    """To a segment that must exist."""
    with pynotify.open(name, create=False) as engine:
        return engine.connect(**options)


class Session:
    """What the two kinds have in common: every method of a connection, as a step."""

    pid: int
    backend_id: int

    def step(self, method: str, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def attribute(self, name: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def heard(self) -> list[tuple[str, str]]:
        """What `poll()` brings, as pairs of channel and payload."""
        return [(message.channel, message.payload) for message in self.step("poll")]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self.step, method)


class LocalSession(Session):
    def __init__(self, name: str, **options: Any) -> None:
        self._conn = connect_to(name, **options)
        self.pid, self.backend_id = self._conn.pid, self._conn.backend_id

    def step(self, method: str, *arguments: Any, **options: Any) -> Any:
        return plain(getattr(self._conn, method)(*arguments, **options))

    def attribute(self, name: str) -> Any:
        return getattr(self._conn, name)

    def close(self) -> None:
        self._conn.close()


_connections: dict[int, pynotify.Connection] = {}


def _open_here(name: str, options: dict[str, Any]) -> tuple[int, int, int]:
    conn = connect_to(name, **options)
    key = max(_connections, default=0) + 1
    _connections[key] = conn
    return key, conn.pid, conn.backend_id


def _step_here(key: int, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return plain(getattr(_connections[key], method)(*arguments, **options))


def _attribute_here(key: int, name: str) -> Any:
    return getattr(_connections[key], name)


def _apply_here(key: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_connections[key], *arguments)


def _close_here(key: int) -> None:
    _connections.pop(key).close()


def close_all_here() -> None:
    """Close every connection of this process that a session opened."""
    while _connections:
        _connections.popitem()[1].close()


class RemoteSession(Session):
    def __init__(self, worker: Worker, name: str, **options: Any) -> None:
        self.worker = worker
        self._key, self.pid, self.backend_id = worker.call(_open_here, name, options)
        self._open = True

    def step(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self.worker.call(_step_here, self._key, method, arguments, options)

    def start(self, method: str, *arguments: Any, **options: Any) -> None:
        """Begin a step that may block; `worker.result()` has its result."""
        self.worker.start(_step_here, self._key, method, arguments, options)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin `function(connection, *arguments)` there; `worker.result()` has its result."""
        self.worker.start(_apply_here, self._key, function, arguments)

    def attribute(self, name: str) -> Any:
        return self.worker.call(_attribute_here, self._key, name)

    def close(self) -> None:
        if self._open and self.worker.alive:
            self.worker.call(_close_here, self._key)
        self._open = False


class WorkerPool:
    """Workers that are used again."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.close()
        return Worker()

    def give_back(self, worker: Worker) -> None:
        if worker.alive:
            try:
                worker.call(close_all_here)
            except Exception:
                worker.kill()
                worker.close()
                raise
            self._idle.append(worker)
        else:
            worker.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def end_nests() -> None:
    """The processes that fork workers stay for the next one."""
    _Nest.close_all()


class EngineFactory:
    """Makes segments with options and remembers their names."""

    def __init__(self, new_name: Callable[[], str]) -> None:
        self._new_name = new_name
        self.made: list[tuple[str, pynotify.Engine]] = []

    def __call__(self, **options: Any) -> pynotify.Engine:
        name = self._new_name()
        engine = pynotify.open(name, **options)
        self.made.append((name, engine))
        return engine

    def name_of(self, engine: pynotify.Engine) -> str:
        return next(name for name, made in self.made if made is engine)


Connect = Callable[..., pynotify.Connection]
NewWorker = Callable[..., Worker]
Sessions = Callable[..., list[Session]]
