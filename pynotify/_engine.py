"""A mapped segment, as a user has it; what happens to segments by name is in `_segments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynotify._closing import ClosedByWith
from pynotify._connection import Connection
from pynotify._ffi import again, ffi, lib
from pynotify._handle import Handle, LatencyLog, check_user
from pynotify._listeners import channels_of_all
from pynotify._public import public
from pynotify._segments import backend_rows, map_segment
from pynotify._time import nanoseconds
from pynotify._types import BackendStat, CheckReport, EngineStat
from pynotify.errors import SegmentCorrupt, check, native_error
from pynotify.topics._survey import survey

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Unpack

    from pynotify._open_options import OpenOptions
    from pynotify._segments import Mapping
    from pynotify._types import ListenedChannel
    from pynotify.topics import TopicStats

_CHECK_TEXT_BYTES = 1 << 16
_BRIDGES = {lib.PN_BRIDGE_ONE_WAY: "one way", lib.PN_BRIDGE_BOTH: "both ways"}
_LOCK_TIMEOUT = 10.0  # the core's own, in seconds
_USUAL = -1  # the same, for pn_set_lock_timeout()


class Engine(ClosedByWith):
    """A mapped segment: cheap, thread-safe, and it survives fork.

    Made by `pynotify.open`.  Pickles by name: unpickling attaches to the segment of that name
    and never creates one (`SegmentNotFound`).  All methods raise `InterfaceError` when the
    engine is closed or the process has changed its effective user since.
    """

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    @property
    def name(self) -> str:
        """The segment's name, as given to `pynotify.open`."""
        return self._mapping.name

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._mapping.closed

    def connect(
        self,
        database: str = "default",
        latency_log: str | os.PathLike[str] | None = None,
        wakeup: str | int | None = None,
        *,
        latency_log_limit: int | None = None,
        application_name: str = "",
    ) -> Connection:
        """Take a backend slot.

        `database` is a name space that notifications never cross; its name follows the rule
        for channels (else `ProgrammingError`).  `latency_log` is the directory for latency
        logs.  `wakeup` is "sigusr1" (the default), the number of a real-time signal, or "poll"
        (no signals).  `latency_log_limit`: the most bytes that the files in that directory may
        have, whatever processes write there (4 GiB unless it is said); for a new file the oldest
        that no process writes are removed.  `application_name` is that of the connection, which
        can be changed.  Raises `TooManyBackends`, `SegmentUnlinked`, `SegmentCorrupt`,
        `LockTimeout`.
        """
        log = LatencyLog.of(latency_log, latency_log_limit)
        self._check_usable()
        handle = Handle.claim(self._mapping.usable, self.name, database, log, wakeup)
        if application_name:
            handle.set_application_name(application_name)
        return Connection(handle)

    def stat(self, *, timeout: float = _LOCK_TIMEOUT) -> EngineStat:
        """Counters and present state; frees the slots of dead processes first.

        Raises `LockTimeout` when the writer lock is not free within `timeout` seconds (10 at the
        most), since a process that holds it was stopped.
        """
        self._check_usable()
        stat, rows = backend_rows(self._in_time(timeout))
        return EngineStat(
            commits=stat.commits,
            notifications=stat.notifications,
            collapsed=stat.collapsed,
            signals_sent=stat.signals_sent,
            signals_elided=stat.signals_elided,
            signals_unsent=stat.signals_unsent,
            log_records_dropped=stat.log_records_dropped,
            log_files_recycled=stat.log_files_recycled,
            wakeups_useful=stat.wakeups_useful,
            wakeups_useless=stat.wakeups_useless,
            slot_writes=stat.slot_writes,
            handler_reinstalls=stat.handler_reinstalls,
            recoveries=stat.recoveries,
            evictions=stat.evictions,
            spilled_pages=stat.spilled_pages,
            queue_usage=stat.queue_usage,
            queue_pages=stat.queue_pages,
            max_queue_pages=stat.max_queue_pages,
            head=stat.head,
            tail=stat.tail,
            mem_tail=stat.mem_tail,
            tail_holder_pid=stat.tail_holder_pid or None,
            channels=stat.channels,
            patterns=stat.patterns,
            subscriptions=stat.subscriptions,
            generations=stat.generations,
            backends=[_backend_stat(rows[i]) for i in range(stat.backends)],
        )

    def topics(
        self, database: str | None = None, *, timeout: float = _LOCK_TIMEOUT
    ) -> list[TopicStats]:
        """The topics of all databases, or of one, with their channels; by database and name.

        It needs no connection and takes no backend slot, changes nothing and signals no process.
        What has fallen due and has not been moved yet is counted where it goes to, up to 4096
        deliveries for each topic.  `timeout` as of `stat`, each time it takes the lock.
        """
        self._check_usable()
        return survey(self._in_time(timeout), database)

    def channels(
        self, database: str | None = None, prefix: str = "", *, timeout: float = _LOCK_TIMEOUT
    ) -> list[ListenedChannel]:
        """The channels that are listened to in all databases, or in one; by database and name.

        Only those that begin with `prefix`; the slots of dead processes are freed first.  It needs
        no connection.  It is no snapshot: the writer lock is given back in between, and `timeout`
        holds, as of `stat`, each time it is taken.
        """
        self._check_usable()
        return channels_of_all(self._in_time(timeout), database, prefix)

    def patterns(
        self, database: str | None = None, prefix: str = "", *, timeout: float = _LOCK_TIMEOUT
    ) -> list[ListenedChannel]:
        """The patterns that are listened to, as `channels` says it of channels."""
        self._check_usable()
        return channels_of_all(self._in_time(timeout), database, prefix, patterns=True)

    def _in_time(self, seconds: float) -> Callable[..., int]:
        """Calls the core with the engine, and waits only so long for the writer lock.

        Signal handlers, which run between two tries, have the usual time.
        """
        timeout_ns = nanoseconds(min(seconds, _LOCK_TIMEOUT))

        def limited(function: Callable[..., int], *arguments: Any) -> int:
            # The usual time comes first, so that a signal handler that raises in between leaves it.
            before = lib.pn_set_lock_timeout(_USUAL)
            try:
                lib.pn_set_lock_timeout(timeout_ns)
                return function(*arguments)
            finally:
                lib.pn_set_lock_timeout(before)

        return lambda function, *arguments: self._mapping.call(
            lambda engine: limited(function, engine, *arguments)
        )

    def lock_holder(self) -> int:
        """The pid of the process that holds the writer lock, for use after a `LockTimeout`."""
        self._check_usable()
        return int(lib.pn_engine_lock_holder(self._mapping.usable()))

    def log_stack(self, pid: int) -> int:
        """Ask process `pid`, which has a connection to this segment, for its Python stacks.

        It prints them to its own stderr at once, whatever it is doing.  Returns 1, or 0 when it
        cannot be signalled: it has no connection here, polls, or has never listened.
        """
        self._check_usable()
        return check(lib.pn_log_stack(self._mapping.usable(), pid))

    def check(self) -> CheckReport:
        """Check every invariant of the segment."""
        self._check_usable()
        text = ffi.new("char[]", _CHECK_TEXT_BYTES)
        result = again(lambda: lib.pn_check(self._mapping.usable(), text, _CHECK_TEXT_BYTES))
        if result < 0:
            error = native_error(result)
            if not isinstance(error, SegmentCorrupt):
                raise error
            return CheckReport([str(error).partition("\n")[0]])
        problems = ffi.string(text).decode("utf-8", "replace").splitlines()
        # The texts may be cut off; that there are problems may not.
        problems += ["(text of the problem was cut off)"] * (result - len(problems))
        return CheckReport(problems)

    def close(self) -> None:
        """Unmap the segment once its connections are closed too.  Closing twice is allowed."""
        self._mapping.close()

    def _check_usable(self) -> None:
        check_user(self._mapping.usable())

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.name,))

    def __repr__(self) -> str:
        return f"<pynotify.Engine {self.name!r}{' (closed)' if self.closed else ''}>"


def open(name: str = "default", *, create: bool = True, **options: Unpack[OpenOptions]) -> Engine:
    """Map the segment `name` of this user, creating it if there is none and `create` is true.

    `options` are fixed when the segment is created; a later opener may omit them.  A creating open
    also takes those of the variable PYNOTIFY_NAME, "max_payload=1MiB,on_full=block", and of the
    table [tool.pynotify.NAME] in the file that PYNOTIFY_CONFIG names; an argument comes before the
    variable, and the variable before the file.  A creating
    open that finds another layout, other options or a segment of an earlier boot replaces it
    when no process has a connection to it, and raises `LayoutMismatch`, which lists their
    pids, when one has; also when only the options are others and topics hold messages that
    would be lost.  A non-creating open always raises `LayoutMismatch` then.  A bad name
    raises `ProgrammingError`, an unknown option `TypeError`, a bad value `ValueError`, no room
    in /dev/shm `SegmentFull`, a missing segment `SegmentNotFound`.
    """
    return Engine(map_segment(name, create=create, options=options))


def _reopen(name: str) -> Engine:
    return open(name, create=False)


def _backend_stat(row: Any) -> BackendStat:
    return BackendStat(
        backend_id=row.backend_id,
        pid=row.pid,
        database=ffi.string(row.database).decode("utf-8", "replace"),
        channels=row.channels,
        lag_bytes=row.lag_bytes,
        asleep=bool(row.asleep),
        in_transaction=bool(row.in_transaction),
        wakeup=row.signo if row.signo > 0 else "poll",
        bridge=_BRIDGES.get(row.bridge),
        application_name=ffi.string(row.application_name).decode("utf-8", "replace"),
    )


public(Engine, open)
