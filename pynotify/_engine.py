"""Segments by name, and the mapped segment.

posix_ipc opens and unlinks the name; the core creates, maps and checks what is behind it.
Who unlinks a segment first takes an exclusive flock() on it and then makes sure that the name
still means it: without that, two processes that both found a segment to be replaced could
unlink the new one that the first of them has just made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import signal
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import posix_ipc

from pynotify import _guest as guest
from pynotify._connection import Connection
from pynotify._ffi import again, ffi, lib
from pynotify._options import SegmentOptions
from pynotify._ownership import CLOSED, adopt, keep, let_go
from pynotify._types import BackendStat, CheckReport, EngineStat, SegmentInfo
from pynotify.errors import (
    InterfaceError,
    InvalidChannelName,
    LayoutMismatch,
    OperationalError,
    ProgrammingError,
    SegmentCorrupt,
    SegmentNotFound,
    SegmentUnlinked,
    native_error,
)
from pynotify.topics._survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from pynotify.topics import TopicStats

_Made = TypeVar("_Made")

logger = logging.getLogger("pynotify")

# Creating, attaching and replacing race with other processes: for so long another try is made.
_PATIENCE = float(lib.PN_OPEN_PATIENCE_S)
_PAUSE = 0.005  # before looking again at what another process is about to remove
_NAME = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,100}")
_SHM_DIRECTORY = "/dev/shm"
_CHECK_TEXT_BYTES = 1 << 16
_PID_NAMESPACE = "belongs to pid namespace"
_BRIDGES = {lib.PN_BRIDGE_ONE_WAY: "one way", lib.PN_BRIDGE_BOTH: "both ways"}
_LOCK_TIMEOUT = 10.0  # the core's own, in seconds


class Engine:
    """A mapped segment: cheap, thread-safe, and it survives fork.

    Made by `pynotify.open`.  Pickles by name: unpickling attaches to the segment of that name
    and never creates one (`SegmentNotFound`).  All methods raise `InterfaceError` when the
    engine is closed or the process has changed its effective user since.
    """

    def __init__(self, name: str, handle: Any) -> None:
        self._name = name
        self._handle = ffi.gc(handle, lib.pn_engine_close)
        keep(self, self._handle)
        self._euid = lib.pn_engine_owner_euid(handle)

    @property
    def name(self) -> str:
        """The segment's name, as given to `pynotify.open`."""
        return self._name

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._handle is None

    def connect(
        self,
        database: str = "default",
        latency_log: str | os.PathLike[str] | None = None,
        wakeup: str | int | None = None,
    ) -> Connection:
        """Take a backend slot.

        `database` is a name space that notifications never cross; its name follows the rule
        for channels (else `ProgrammingError`).  `latency_log` is the directory for latency
        logs.  `wakeup` is "sigusr1" (the default), the number of a real-time signal, or "poll"
        (no signals).  Raises `TooManyBackends`, `SegmentUnlinked`, `SegmentCorrupt`,
        `LockTimeout`.
        """
        handle = self._claim(database, latency_log, wakeup)
        return Connection(self, handle, database)

    def _claim(
        self, database: str, latency_log: str | os.PathLike[str] | None, wakeup: str | int | None
    ) -> Any:
        """The C connection, for a `Connection` or an `AsyncConnection`.  May be repeated."""
        self._check_usable()
        signo = _wakeup_signal(wakeup)
        guest.prepare(signo)
        if not isinstance(database, str):
            raise ProgrammingError(f"bad database name {database!r}: not a str")
        try:
            encoded = database.encode()
        except UnicodeEncodeError as error:
            raise ProgrammingError(f"bad database name {database!r}: not UTF-8") from error
        if lib.pn_engine_gone(self._usable()):
            raise SegmentUnlinked(f'segment "{self._name}" was unlinked')
        directory = ffi.NULL if latency_log is None else os.fsencode(latency_log)
        out = ffi.new("pn_conn **")
        try:
            asked = encoded, len(encoded), signo, directory, out
            result = again(lambda: lib.pn_connect(self._usable(), *asked))
            if result >= 0:
                return adopt(out, lib.pn_conn_drop)
        except BaseException:
            lib.pn_conn_drop(out, CLOSED)
            raise
        refused = native_error(result)
        if isinstance(refused, InvalidChannelName):
            text = str(refused).partition("\n")[0].replace("channel name", "database name")
            raise ProgrammingError(text, hint=refused.hint or "")
        raise refused

    def stat(self, *, timeout: float = _LOCK_TIMEOUT) -> EngineStat:
        """Counters and present state; frees the slots of dead processes first.

        Raises `LockTimeout` when the writer lock is not to be had within `timeout` seconds (10 at
        the most), since a process that holds it was stopped.
        """
        self._check_usable()
        stat = ffi.new("pn_stat *")
        room = 64
        while True:
            rows = ffi.new("pn_backend_stat[]", room)
            _call_in_time(timeout, partial(self._call, lib.pn_engine_stat, stat, rows, room))
            if stat.backends <= room:
                break
            room = 2 * stat.backends
        return EngineStat(
            commits=stat.commits,
            notifications=stat.notifications,
            collapsed=stat.collapsed,
            signals_sent=stat.signals_sent,
            signals_elided=stat.signals_elided,
            signals_unsent=stat.signals_unsent,
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
            subscriptions=stat.subscriptions,
            generations=stat.generations,
            backends=[_backend_stat(rows[i]) for i in range(stat.backends)],
        )

    def topics(
        self, database: str | None = None, *, timeout: float = _LOCK_TIMEOUT
    ) -> list[TopicStats]:
        """The topics of all databases, or of one, with their channels; by database and name.

        Only looking: it needs no connection and takes no backend slot, changes nothing and signals
        nobody.  What has fallen due and nobody has come by to move is counted where it goes to, up
        to 4096 deliveries for each topic.  `timeout` as of `stat`, each time it takes the lock.
        """
        self._check_usable()

        def call(function: Callable[..., int], *arguments: Any) -> int:
            return _call_in_time(timeout, partial(self._call, function, *arguments))

        return survey(call, database)

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        return function(self._usable(), *arguments)

    def _lock_holder(self) -> int:
        """The pid of who holds the writer lock, after a `LockTimeout`."""
        self._check_usable()
        return int(lib.pn_engine_lock_holder(self._usable()))

    def log_stack(self, pid: int) -> int:
        """Ask process `pid`, which has a connection to this segment, for its Python stacks.

        It prints them to its own stderr at once, whatever it is doing.  Returns 1, or 0 when it
        cannot be signalled: it has no connection here, polls, or has never listened.
        """
        self._check_usable()
        return _check(lib.pn_log_stack(self._usable(), pid))

    def check(self) -> CheckReport:
        """Check every invariant of the segment."""
        self._check_usable()
        text = ffi.new("char[]", _CHECK_TEXT_BYTES)
        result = again(lambda: lib.pn_check(self._usable(), text, _CHECK_TEXT_BYTES))
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
        let_go(self)
        self._handle = None

    def _usable(self) -> Any:
        """The handle, looked up once: another thread may close the engine."""
        handle = self._handle
        if handle is None:
            raise InterfaceError("the engine is closed", hint="Open the segment again.")
        return handle

    def _check_usable(self) -> None:
        self._usable()
        if os.geteuid() != self._euid:
            raise InterfaceError(
                f"the engine was opened by user {self._euid}, this is user {os.geteuid()}",
                hint="Open the segment after changing the user.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._name,))

    def __repr__(self) -> str:
        return f"<pynotify.Engine {self._name!r}{' (closed)' if self.closed else ''}>"


def open(name: str = "default", *, create: bool = True, **options: Any) -> Engine:
    """Map the segment `name` of this user, creating it if there is none and `create` is true.

    `options` are fixed when the segment is created; a later opener may omit them.  A creating
    open that finds another layout, other options or a segment of an earlier boot replaces it
    when no process has a connection to it, and raises `LayoutMismatch`, which lists their
    pids, when one has; also when only the options are others and topics hold messages that
    would be lost.  A non-creating open always raises `LayoutMismatch` then.  A bad name
    raises `ProgrammingError`, an unknown option `TypeError`, a bad value `ValueError`, no room
    in /dev/shm `SegmentFull`, a missing segment `SegmentNotFound`.
    """
    check_name(name)
    wanted = SegmentOptions(options)
    native = wanted.to_native() if create else None
    deadline = time.monotonic() + _PATIENCE
    while True:
        descriptor = _open_file(name)
        if descriptor is None:
            if native is None:
                raise SegmentNotFound(f'segment "{name}" does not exist')
            result = lib.pn_create(name.encode(), native)
            if result == -errno.EINVAL:
                raise ValueError(str(native_error(result)))
            if result != -errno.EEXIST:
                _check(result)
        else:
            with contextlib.closing(descriptor):
                engine = _take(descriptor, name, wanted, create=create)
            if engine is not None:
                return engine
        if time.monotonic() > deadline:
            raise OperationalError(
                f'segment "{name}" was created and unlinked again all the time',
                hint="See which processes unlink it.",
            )


def _take(
    descriptor: _Descriptor, name: str, wanted: SegmentOptions, *, create: bool
) -> Engine | None:
    """The engine of what has the name, or None when the name has to be looked at again."""
    engine, mismatch = _attach(descriptor, name, wanted)
    if engine is not None and lib.pn_engine_gone(engine._handle):
        try:  # the process that unlinks it is at it, or was killed
            _remove(descriptor, name, engine, force=True, wait=False)
        except BlockingIOError:
            time.sleep(_PAUSE)
        return None
    if engine is not None and not mismatch:
        return engine
    if not descriptor.is_behind(name):
        return None  # unlinked, and perhaps created again, since we opened it
    pids = live_pids(name)
    if pids or not create:
        raise _layout_mismatch(name, mismatch, pids)
    if engine is not None:
        _lose_no_messages(name, mismatch, engine)
    if not _remove(descriptor, name, engine):  # a process has connected in between
        pids = _users(name, engine)
        if pids:
            raise _layout_mismatch(name, mismatch, pids)
    return None


def repeat_while_unlinked(make: Callable[[], _Made]) -> _Made:
    """What opens a segment and connects to it, again when it was unlinked in between."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return make()
        except SegmentUnlinked:
            if time.monotonic() > deadline:
                raise


def unlink(name: str, *, missing_ok: bool = False, force: bool = False) -> None:
    """Remove the segment and every file of it.

    Refuses with an `OperationalError` that lists their pids while processes have connections
    to it, unless `force`: then they are woken, and raise `SegmentUnlinked` from there on.
    Raises `SegmentNotFound` unless `missing_ok`.
    """
    check_name(name)
    descriptor = _open_file(name)
    if descriptor is None:
        _remove_orphans(name)
        if missing_ok:
            return
        raise SegmentNotFound(
            f'segment "{name}" does not exist', hint="Pass missing_ok=True if that is all right."
        )
    with contextlib.closing(descriptor):
        if not force:
            _refuse(name, live_pids(name))
        engine, _ = _attach(descriptor, name, SegmentOptions({}), tolerant=True)
        while not _remove(descriptor, name, engine, force=force):
            _refuse(name, _users(name, engine))  # none: they have gone again


def _users(name: str, engine: Engine | None) -> list[int]:
    """Processes with a connection: by their locks, or if none has its own any more by the slots."""
    pids = live_pids(name)
    if pids or engine is None:
        return pids
    return sorted({backend.pid for backend in engine.stat().backends})


def _refuse(name: str, pids: list[int]) -> None:
    if pids:
        raise OperationalError(
            f'segment "{name}" is used by processes {_join(pids)}',
            hint="End them or close their connections first, or pass force=True.",
        )


def _remove_orphans(name: str) -> None:
    """Lock files of a segment whose name was removed by hand.

    Listed before the name is looked at once more: then they are not of one made meanwhile.
    """
    prefix = f"pynotify-lock.{os.geteuid()}.{name}."
    number = re.compile(re.escape(prefix) + r"[0-9a-f]{16}\.[0-9]+")
    with contextlib.suppress(FileNotFoundError):
        files = [entry for entry in os.listdir(_SHM_DIRECTORY) if number.fullmatch(entry)]
        descriptor = _open_file(name)
        if descriptor is not None:
            descriptor.close()
        elif not live_pids(name):
            for entry in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_SHM_DIRECTORY, entry))


def segments() -> list[SegmentInfo]:
    """Every segment of the calling user, by name."""
    prefix = _shm_name("")[1:]
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.listdir(_SHM_DIRECTORY)):
            name = entry.removeprefix(prefix)
            if entry.startswith(prefix) and _NAME.fullmatch(name):
                info = _segment_info(name)
                if info is not None:
                    found.append(info)
    return found


class _Descriptor:
    """The open segment file, whatever it holds."""

    def __init__(self, memory: posix_ipc.SharedMemory) -> None:
        self._memory = memory
        self.fd: int = memory.fd
        self.status = os.fstat(self.fd)

    def is_behind(self, name: str) -> bool:
        """Whether `name` still means this file."""
        other = _open_file(name)
        if other is None:
            return False
        with contextlib.closing(other):
            return os.path.samestat(self.status, other.status)

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        fcntl.flock(self.fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self._memory.close_fd()


def _open_file(name: str) -> _Descriptor | None:
    """None when there is no segment of that name."""
    try:
        # Without flags and size: a size would resize the segment of somebody else.
        found = _Descriptor(posix_ipc.SharedMemory(_shm_name(name)))
    except posix_ipc.ExistentialError:
        return None
    except posix_ipc.PermissionsError as error:
        raise _of_another_user(name, os.lstat(_path(name)).st_uid) from error
    except (OSError, ValueError) as error:
        if not _is_no_file(name):  # it is a signal handler's, say a TimeoutError
            raise
        raise LayoutMismatch(
            f'"{name}" is not a segment: {error}', hint="Remove it, or use another name."
        ) from error
    status = found.status
    if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
        return found
    found.close()
    if status.st_uid != os.geteuid():
        raise _of_another_user(name, status.st_uid)
    raise LayoutMismatch(
        f'"{name}" is not a segment: not a plain file', hint="Remove it, or use another name."
    )


def _is_no_file(name: str) -> bool:
    """A symbolic link, a directory, a device."""
    try:
        return not stat.S_ISREG(os.lstat(_path(name)).st_mode)
    except FileNotFoundError:
        return False


def _of_another_user(name: str, owner: int) -> OperationalError:
    return OperationalError(
        f'segment "{name}" belongs to user {owner}, we are user {os.geteuid()}',
        hint="Another user has put a file there: have it removed, or use another name.",
    )


def _attach(
    descriptor: _Descriptor, name: str, wanted: SegmentOptions, *, tolerant: bool = False
) -> tuple[Engine | None, str]:
    """The engine, if it could be attached, and what is wrong with it, if anything.

    With `tolerant`, whatever is wrong is only told; else what replacing does not cure raises.
    """
    out = ffi.new("pn_engine **")
    result = lib.pn_attach(descriptor.fd, name.encode(), out)
    if result < 0:
        error = native_error(result)
        if tolerant or isinstance(error, LayoutMismatch):
            return None, str(error).partition("\n")[0]
        if not descriptor.is_behind(name):
            return None, ""
        raise error
    native = ffi.new("pn_options *")
    lib.pn_engine_options(out[0], native)
    differences = "; ".join(wanted.mismatches(native))
    mismatch = f'segment "{name}" was created with {differences}' if differences else ""
    return Engine(name, out[0]), mismatch


def _remove(
    descriptor: _Descriptor,
    name: str,
    engine: Engine | None,
    *,
    force: bool = False,
    wait: bool = True,
) -> bool:
    """Unlink the segment and its files, unless another process has done so.

    False when a process has a connection to it, and not `force`. Without `wait` BlockingIOError
    when another process is at it.
    """
    with descriptor.locked(wait=wait):
        if not descriptor.is_behind(name):
            return True
        if engine is not None:
            result = 0 if force else _retire(engine)
            if result == -errno.EBUSY:
                return False
            lib.pn_announce_gone(engine._handle)
            # corrupt or locked for ever: all the more reason to remove it
            if result not in (0, -lib.PN_EGONE):
                logger.warning("unlinking segment %r: %s", name, native_error(result))
            lib.pn_remove_spill_files(engine._handle)
            engine.close()
        # Before the name is free: afterwards the files may be those of a new segment.
        _check(lib.pn_remove_lock_files(name.encode()))
        with contextlib.suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(_shm_name(name))
    return True


def _retire(engine: Engine) -> int:
    return again(lambda: lib.pn_retire(engine._handle))


def _segment_info(name: str) -> SegmentInfo | None:
    """None when there is no such segment (any more), or what has the name is none of ours."""
    try:
        descriptor = _open_file(name)
    except OperationalError:  # another user's, or no segment
        return None
    if descriptor is None:
        return None
    with contextlib.closing(descriptor):
        engine, mismatch = _attach(descriptor, name, SegmentOptions({}), tolerant=True)
        if engine is None:
            status = descriptor.status
            pids = live_pids(name)
            outside = bool(pids) and _PID_NAMESPACE in mismatch
            return SegmentInfo(
                name,
                status.st_size,
                status.st_ctime,
                len(pids),
                stale=not outside,
                other_pid_namespace=outside,
            )
        with engine:
            created = lib.pn_engine_created_ns(engine._handle) / 1e9
            size = lib.pn_engine_size(engine._handle)
            try:
                backends = lib.pn_engine_backends(engine._handle)
            except OperationalError:  # corrupt or unlinked, but listing goes on
                backends = len(live_pids(name))
        return SegmentInfo(name, size, created, backends, stale=False)


def live_pids(name: str) -> list[int]:
    """The processes that hold a backend slot in any segment called `name`."""
    room = 64
    while True:
        pids = ffi.new("int32_t[]", room)
        count = _check(lib.pn_live_pids(name.encode(), pids, room))
        if count <= room:
            return sorted(set(ffi.unpack(pids, count)))
        room = 2 * count


def _layout_mismatch(name: str, mismatch: str, pids: list[int]) -> LayoutMismatch:
    if pids and _PID_NAMESPACE in mismatch:
        return LayoutMismatch(
            f"{mismatch} (used by processes {_join(pids)})",
            hint="Share the pid namespace with them (docker run --pid=container:NAME), or give "
            "each container a segment name of its own.",
        )
    if pids:
        return LayoutMismatch(
            f"{mismatch} (used by processes {_join(pids)})",
            hint="End these processes first, or ask for what the segment has.",
        )
    return LayoutMismatch(
        mismatch, hint=f'Open it with create=True, which replaces it, or unlink("{name}").'
    )


def _lose_no_messages(name: str, mismatch: str, engine: Engine) -> None:
    count = again(lambda: lib.pn_engine_messages(engine._handle))
    if count > 0:  # below 0 nobody will ever get them
        raise LayoutMismatch(
            f"{mismatch}, and its topics hold {count} messages",
            hint=f'Ask for what the segment has, or lose them with unlink("{name}").',
        )


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
    )


def _wakeup_signal(wakeup: str | int | None) -> int:
    """The `signo` of pn_connect()."""
    if wakeup is None or wakeup == "sigusr1":
        return 0
    if wakeup == "poll":
        return -1
    if isinstance(wakeup, int) and signal.SIGRTMIN <= wakeup <= signal.SIGRTMAX:
        return int(wakeup)
    raise ValueError(
        f'wakeup must be "sigusr1", "poll" or a real-time signal from {int(signal.SIGRTMIN)} '
        f"to {int(signal.SIGRTMAX)}, not {wakeup!r}"
    )


def check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProgrammingError(
            f"bad segment name {name!r}",
            hint="Use 1 to 100 of A-Z a-z 0-9 _ . - and no leading dot.",
        )


def _shm_name(name: str) -> str:
    return f"/pynotify.{os.geteuid()}.{name}"


def _path(name: str) -> str:
    return _SHM_DIRECTORY + _shm_name(name)


def _reopen(name: str) -> Engine:
    return open(name, create=False)


def _join(pids: list[int]) -> str:
    """0 stands for a process of another pid namespace: the kernel does not tell its pid."""
    return ", ".join(str(pid) if pid else "(in another pid namespace)" for pid in pids)


@contextlib.contextmanager
def _lock_timeout(seconds: float) -> Iterator[None]:
    """How long this thread waits for the writer lock.  Nothing but calls of the core inside."""
    before = lib.pn_set_lock_timeout(max(0, round(min(seconds, _LOCK_TIMEOUT) * 1e9)))
    try:
        yield
    finally:
        lib.pn_set_lock_timeout(before)


def _call_in_time(seconds: float, call: Callable[[], int]) -> int:
    """Signal handlers, which run between the calls, have the usual time."""

    def limited() -> int:
        with _lock_timeout(seconds):
            return call()

    return _check(again(limited))


def _check(result: int) -> int:
    if result < 0:
        raise native_error(result)
    return result
