"""The C connection of a `Connection` or `AsyncConnection`: claiming, using and releasing it.

Ownership: see `_ownership`.  A closed connection has the native handle CLOSED, which the core
refuses; so a caller looks `native` up for each call, and need not ask before it.
"""

from __future__ import annotations

import errno
import os

from pynotify import _guest as guest
from pynotify._ffi import again, ffi, lib
from pynotify._hot import Port
from pynotify._log import logger
from pynotify._ownership import CLOSED, adopt, keep, let_go
from pynotify._process import process
from pynotify.errors import (
    ForkedConnectionError,
    InterfaceError,
    InvalidChannelName,
    ProgrammingError,
    SegmentUnlinked,
    check,
    native_error,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

_EINTR = -errno.EINTR
_NOTICE = lib.PN_NOTICE
_NOTICE_BYTES = 1024

_LEAST_LOG_LIMIT = 1 << 20


class LatencyLog:
    """The directory of a connection's latency log, and the most bytes that its files may have."""

    __slots__ = ("directory", "limit")

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, limit: int | None = None
    ) -> None:
        self.directory = directory
        self.limit = limit

    @classmethod
    def of(cls, directory: str | os.PathLike[str] | None, limit: int | None) -> Self:
        """What a caller asks for.  Raises ValueError."""
        if limit is not None:
            if directory is None:
                raise ValueError("latency_log_limit needs latency_log, the directory it limits")
            if not isinstance(limit, int) or not _LEAST_LOG_LIMIT <= limit < 1 << 63:
                raise ValueError(
                    f"latency_log_limit is at least {_LEAST_LOG_LIMIT} bytes, not {limit!r}"
                )
        return cls(directory, limit)


NO_LOG = LatencyLog()


class Handle(Port):
    """One backend slot: the C connection, and the mapping that it keeps."""

    __slots__ = (
        "__weakref__",
        "application_name",
        "backend_id",
        "database",
        "mapping",
        "pid",
        "segment",
    )

    def __init__(self, engine: Any, native: Any, segment: str, database: str) -> None:
        self.native = native
        #: Its name when this was connected; it may mean another one by now.
        self.segment = segment
        #: The C engine, kept when the user closes the Engine; None after close().
        self.mapping = engine
        keep(self, native, engine)
        self.database = database
        self.application_name = ""
        self.pid: int = lib.pn_conn_pid(native)
        self.backend_id: int = lib.pn_conn_backend_id(native)
        self.log_notices()

    @classmethod
    def claim(
        cls,
        engine: Callable[[], Any],
        segment: str,
        database: str,
        log: LatencyLog = NO_LOG,
        wakeup: str | int | None = None,
        *,
        listens: bool = True,
    ) -> Handle:
        """Take a backend slot in the segment whose C engine `engine()` returns.

        May be repeated.  Without `listens` it never will, and no signal comes for it.
        """
        check_user(engine())
        signo = wakeup_signal(wakeup)
        if listens:
            guest.prepare(signo)
        if not isinstance(database, str):
            raise ProgrammingError(f"bad database name {database!r}: not a str")
        try:
            encoded = str.encode(database)
        except UnicodeEncodeError as error:
            raise ProgrammingError(f"bad database name {database!r}: not UTF-8") from error
        if lib.pn_engine_gone(engine()):
            raise SegmentUnlinked(f'segment "{segment}" was unlinked')
        directory = ffi.NULL if log.directory is None else os.fsencode(log.directory)
        out = ffi.new("pn_conn **")
        try:
            asked = encoded, len(encoded), signo, directory, out
            result = again(lambda: lib.pn_connect(engine(), *asked))
            if result >= 0:
                if log.limit is not None:
                    check(lib.pn_conn_limit_log(out[0], log.limit))
                return cls(engine(), adopt(out, lib.pn_conn_drop), segment, database)
        except BaseException:
            lib.pn_conn_drop(out, CLOSED)
            raise
        refused = native_error(result)
        if isinstance(refused, InvalidChannelName):
            text = str(refused).partition("\n")[0].replace("channel name", "database name")
            raise ProgrammingError(text, hint=refused.hint or "")
        raise refused

    def set_application_name(self, name: str) -> None:
        """Say what the connection is for.  May be repeated."""
        if not isinstance(name, str):
            raise TypeError(f"application_name must be a str, not {type(name).__name__}")
        self.check_usable()
        encoded = str.encode(name, "utf-8", "replace")
        check(again(lambda: lib.pn_conn_set_application_name(self.native, encoded, len(encoded))))
        self.application_name = name

    def sibling(self, database: str) -> Handle:
        """A backend slot in another database of the same segment.

        The segment is found by its mapping, since its name may mean another one by now.
        """
        return Handle.claim(self.engine, self.segment, database)

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self.native is CLOSED

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a forked child, and the connection belongs to its parent."""
        return process.pid != self.pid

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"backend {self.backend_id}"
        return f"connection pid {self.pid} database {self.database!r} ({state})"

    def check_usable(self) -> None:
        """Raise unless the connection is open and belongs to this process."""
        if self.native is CLOSED:
            raise InterfaceError("the connection is closed")
        if process.pid != self.pid:
            raise ForkedConnectionError(
                f"this connection belongs to the process with PID {self.pid}, we are PID "
                f"{process.pid}"
            )

    def engine(self) -> Any:
        """The C engine, which lives as long as the connection is open."""
        engine = self.mapping
        if engine is None:
            self.check_usable()
        return engine

    def options(self) -> Any:
        """The pn_options of the segment."""
        options = ffi.new("pn_options *")
        lib.pn_engine_options(self.engine(), options)
        return options

    def run(self, call: Callable[..., int], *arguments: Any) -> int:
        """Make the call outside of any transaction, again after each signal handler.

        May be repeated.
        """
        result = call(self.native, *arguments)
        if result == _EINTR:
            result = again(lambda: call(self.native, *arguments))
        return self.check(result)

    def call_engine(self, function: Callable[..., int], *arguments: Any) -> int:
        """Call a function of the core with the engine before the arguments; raises its error."""
        return check(again(lambda: function(self.engine(), *arguments)))

    def check(self, result: int) -> int:
        """The result without its notice bit, the notices logged; raises when negative."""
        if check(result) & _NOTICE:
            self.log_notices()
        return result & ~_NOTICE

    def log_notices(self) -> None:
        """Log what the core has to say about this connection."""
        text = ffi.new("char[]", _NOTICE_BYTES)
        while lib.pn_conn_notice(self.native, text, _NOTICE_BYTES) > 0:
            logger.warning("%s", ffi.string(text).decode("utf-8", "replace"))

    def close(self) -> Any:
        """The last reference to the C connection, which frees the slot when it goes.

        None when it was closed before, or belongs to the parent of this process.
        """
        if process.pid != self.pid:
            return None
        let_go(self)
        native, self.native = self.native, CLOSED
        return None if native is CLOSED else native

    def let_engine_go(self) -> None:
        """The last step of closing."""
        self.mapping = None


def check_user(engine: Any) -> None:
    """Raise `InterfaceError` when the process has changed its effective user."""
    owner = lib.pn_engine_owner_euid(engine)
    if os.geteuid() != owner:
        raise InterfaceError(
            f"the engine was opened by user {owner}, this is user {os.geteuid()}",
            hint="Open the segment after changing the user.",
        )


def wakeup_signal(wakeup: str | int | None) -> int:
    """The `signo` of pn_connect()."""
    if wakeup is None or wakeup == "sigusr1":
        return 0
    if wakeup == "poll":
        return -1
    import signal  # noqa: PLC0415, it brings enum, and few need it here

    if isinstance(wakeup, int) and signal.SIGRTMIN <= wakeup <= signal.SIGRTMAX:
        return int(wakeup)
    raise ValueError(
        f'wakeup must be "sigusr1", "poll" or a real-time signal from {int(signal.SIGRTMIN)} '
        f"to {int(signal.SIGRTMAX)}, not {wakeup!r}"
    )


def spell_wakeup(signo: int) -> str:
    """A `signo` of pn_connect() as the user writes `wakeup`."""
    return {0: '"sigusr1"', -1: '"poll"'}.get(signo, str(signo))
