"""A gateway: PostgreSQL's wire protocol on a segment, for drivers of every language.

Clients LISTEN and NOTIFY as with a PostgreSQL; there are no tables.  docs/gateway.md has what they
may say.  The protocol is spoken in C by one thread, the one that calls `Gateway.run`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynotify._closing import ClosedByWith
from pynotify._ffi import ffi, lib
from pynotify._locks import RLock
from pynotify._segments import map_segment
from pynotify.errors import InterfaceError, OperationalError, SegmentUnlinked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from pynotify._open_options import OpenOptions

__all__ = ["DEFAULT_PORT", "Gateway", "GatewayStat"]

DEFAULT_PORT = 5432
_SAID = 1024  # bytes of a message


@dataclass(frozen=True, slots=True)
class GatewayStat:
    """What a gateway has done, and for how many clients."""

    accepted: int  #: connections, ever
    refused: int  #: of these: by user, database, protocol, or since no slot was free
    clients: int  #: connected now
    received: int  #: notifications from clients, committed or not
    delivered: int  #: notifications to clients
    unreadable: int  #: left out, since their payload is no UTF-8 text
    slow: int  #: clients that do not read what waits for them, now
    listens: int  #: channels that clients listen to, each for each client, now


class Gateway(ClosedByWith):
    """Speak PostgreSQL's protocol on segment `name`, which is made if need be (`options`).

    The socket is `directory`/.s.PGSQL.`port`, so that PGHOST is the directory; without one it is
    a directory of this user under XDG_RUNTIME_DIR, or the one for temporary files.  `tcp`: also
    on 127.0.0.1 at `port`.  Only users of the segment's user may connect, and `allow_uids` and
    `allow_gids`.

    `databases` are the databases of the segment that clients may ask for; "*" stands for all.
    `maps` gives others than their own names to some: {"postgres": "default"}.  `latency_log` is a
    directory for latency logs.  `authentication_timeout`: seconds, 1 to 600, that a client has for
    its startup message.  `busy_poll`: microseconds, 0 to 1,000, that it looks for the next
    statement before it sleeps, while clients send one soon after another.

    Raises `OperationalError` when a server listens there already, or the directory is not safe.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        directory: str | os.PathLike[str] | None = None,
        port: int = DEFAULT_PORT,
        tcp: bool = False,
        databases: Iterable[str] = ("default",),
        maps: Mapping[str, str] | None = None,
        allow_uids: Iterable[int] = (),
        allow_gids: Iterable[int] = (),
        latency_log: str | os.PathLike[str] | None = None,
        authentication_timeout: int = 60,
        busy_poll: int = 50,
        **options: Unpack[OpenOptions],
    ) -> None:
        wanted = _Options()
        wanted.native.directory = wanted.path(directory or default_directory())
        wanted.native.port = port
        wanted.native.tcp = tcp
        wanted.native.databases, wanted.native.ndatabases = wanted.texts(databases)
        pairs = [f"{key}={value}" for key, value in (maps or {}).items()]
        wanted.native.maps, wanted.native.nmaps = wanted.texts(pairs)
        wanted.native.uids, wanted.native.nuids = wanted.numbers(allow_uids)
        wanted.native.gids, wanted.native.ngids = wanted.numbers(allow_gids)
        if latency_log is not None:
            wanted.native.latency_log = wanted.path(latency_log)
        if not 1 <= authentication_timeout <= 600:  # as in PostgreSQL
            raise ValueError(
                f"authentication_timeout is 1 to 600 seconds, not {authentication_timeout}"
            )
        wanted.native.authentication_timeout = authentication_timeout
        if not 0 <= busy_poll <= 1000:
            raise ValueError(f"busy_poll is 0 to 1000 microseconds, not {busy_poll}")
        wanted.native.busy_poll = busy_poll or -1
        self.name = name
        self._pid = os.getpid()
        self._running = False
        self._lock = RLock()  # a signal handler may be in it, too
        with contextlib.ExitStack() as undo:
            self._mapping = undo.enter_context(map_segment(name, create=True, options=options))
            self._wakeup = undo.enter_context(contextlib.closing(_Wakeup()))
            wanted.native.interruptible, wanted.native.wake_fd = 1, self._wakeup.read_fd
            self._native: Any = self._open(wanted.native)
            undo.pop_all()
        self.path = Path(os.fsdecode(ffi.string(lib.pn_gateway_path(self._native))))

    def _open(self, options: Any) -> Any:
        out, said = ffi.new("pn_gateway **"), ffi.new("char[]", _SAID)
        result = lib.pn_gateway_open(self._mapping.usable(), options, said, _SAID, out)
        if result < 0:
            raise _error(result, said)
        return out[0]

    def run(self) -> None:
        """Serve clients until `stop`, in this thread.

        Signal handlers run in between.  Clients are told at the end.  Raises `SegmentUnlinked`
        when the segment is removed.
        """
        if os.getpid() != self._pid:
            raise InterfaceError(
                "the gateway belongs to another process", hint="Make one in each process."
            )
        with self._lock:
            native = self._usable()
            if self._running:
                raise InterfaceError("the gateway runs already")
            self._running = True
        try:
            with self._wakeup.of_signals():
                while (result := lib.pn_gateway_run(native)) == -errno.EINTR:
                    pass
        finally:
            self._running = False
        if result < 0:
            raise _error(result, lib.pn_gateway_error(native))

    def stop(self) -> None:
        """Make `run` return, now or as soon as it is called; from any thread or signal handler."""
        native = self._native
        if native is not None and os.getpid() == self._pid:
            lib.pn_gateway_stop(native)

    def stat(self) -> GatewayStat:
        """Figures of this moment; from any thread."""
        out = ffi.new("pn_gateway_stat *")
        with self._lock:  # else close() could free it meanwhile
            lib.pn_gateway_get_stat(self._usable(), out)
        return GatewayStat(
            accepted=out.accepted,
            refused=out.refused,
            clients=out.clients,
            received=out.received,
            delivered=out.delivered,
            unreadable=out.unreadable,
            slow=out.slow,
            listens=out.listens,
        )

    def close(self) -> None:
        """Remove the socket.  Raises `InterfaceError` while `run` is under way: `stop` it first.

        In a forked child nothing is done: the sockets are the parent's.
        """
        if os.getpid() != self._pid:
            self._native = None
            return
        with self._lock:
            if self._running:
                raise InterfaceError("the gateway runs", hint="Call stop(), and close it then.")
            native, self._native = self._native, None
        if native is not None:
            lib.pn_gateway_close(native)
            self._mapping.close()
            self._wakeup.close()

    def _usable(self) -> Any:
        if self._native is None:
            raise InterfaceError("the gateway is closed")
        return self._native


def default_directory() -> Path:
    """Where the socket is when no directory is named; made, for this user alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        directory = Path(runtime) / "pynotify"
    else:
        directory = Path(tempfile.gettempdir()) / f"pynotify-{os.geteuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


class _Wakeup:
    """A pipe that makes `run` come back to Python, whose signal handlers then run.

    A signal that comes when the thread is not asleep interrupts nothing: without the byte that
    Python's own handler writes, the thread would fall asleep right after it.
    """

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @contextlib.contextmanager
    def of_signals(self) -> Iterator[None]:
        """In the main thread, the only one that runs handlers; others have nothing to do."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self._write_fd)


class _Options:
    """The C structure, and what it points to."""

    def __init__(self) -> None:
        self.native = ffi.new("pn_gateway_options *")
        self._kept: list[Any] = []

    def path(self, path: str | os.PathLike[str]) -> Any:
        return self._text(os.fsencode(path))

    def texts(self, texts: Iterable[str]) -> tuple[Any, int]:
        pointers = [self._text(text.encode()) for text in texts]
        self._kept.append(ffi.new("char *[]", pointers))
        return self._kept[-1], len(pointers)

    def numbers(self, numbers: Iterable[int]) -> tuple[Any, int]:
        values = list(numbers)
        self._kept.append(ffi.new("uint32_t[]", values))
        return self._kept[-1], len(values)

    def _text(self, text: bytes) -> Any:
        if b"\0" in text:
            raise ValueError("a name or path contains NUL")
        self._kept.append(ffi.new("char[]", text))
        return self._kept[-1]


def _error(result: int, said: Any) -> Exception:
    message = ffi.string(said).decode("utf-8", "replace")
    if result == -lib.PN_EGONE:
        return SegmentUnlinked(message)
    if result == -errno.EINVAL:
        return ValueError(message)
    return OperationalError(message)
