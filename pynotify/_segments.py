"""Segments by name: opening, creating, replacing, unlinking and listing them.

posix_ipc opens and unlinks the name; the core creates, maps and checks what is behind it.
A process that unlinks a segment first takes an exclusive flock() on it and then makes sure that
the name still means it: without that, two processes that both found a segment to be replaced could
unlink the new one that the first of them has just made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

import posix_ipc

from pynotify._array_files import array_files, remove_array_files
from pynotify._closing import ClosedByWith
from pynotify._configured import configured
from pynotify._ffi import again, ffi, lib
from pynotify._log import logger
from pynotify._options import SegmentOptions
from pynotify._ownership import adopt, keep, let_go
from pynotify._public import public
from pynotify.errors import (
    InterfaceError,
    LayoutMismatch,
    OperationalError,
    ProgrammingError,
    SegmentNotFound,
    SegmentUnlinked,
    check,
    native_error,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Mapping as Options
    from typing import Any, TypeVar

    from pynotify._types import SegmentInfo

    _Made = TypeVar("_Made")

# Creating, attaching and replacing race with other processes: for so long another try is made.
_PATIENCE = float(lib.PN_OPEN_PATIENCE_S)
_PAUSE = 0.005  # before looking again at what another process is about to remove
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_LONGEST_NAME = 100
_SHM_DIRECTORY = "/dev/shm"
_PID_NAMESPACE = "belongs to pid namespace"


class Mapping(ClosedByWith):
    """A segment that is mapped; an `Engine` has one, and a connection keeps what is behind it."""

    __slots__ = ("__weakref__", "_native", "name")

    def __init__(self, name: str, out: Any) -> None:
        self.name = name
        self._native = adopt(out, lib.pn_engine_drop)
        keep(self, self._native)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._native is None

    def usable(self) -> Any:
        """The C engine, looked up once: another thread may close the mapping."""
        native = self._native
        if native is None:
            raise InterfaceError("the engine is closed", hint="Open the segment again.")
        return native

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """Call a function of the core with the engine before the arguments; raises its error."""
        return check(again(lambda: function(self.usable(), *arguments)))

    def close(self) -> None:
        """Unmap the segment once its connections are closed too."""
        let_go(self)
        self._native = None


def map_segment(name: str, *, create: bool, options: Options[str, object]) -> Mapping:
    """What `pynotify.open` does, apart from making an Engine of it."""
    check_name(name)
    # Without `create` it is looked at as it is.
    wanted = SegmentOptions(options, configured(name) if create else None)
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
                check(result)
        else:
            with contextlib.closing(descriptor):
                mapping = _take(descriptor, name, wanted, create=create)
            if mapping is not None:
                return mapping
        if time.monotonic() > deadline:
            raise OperationalError(
                f'segment "{name}" was created and unlinked again all the time',
                hint="See which processes unlink it.",
            )


def _take(
    descriptor: _Descriptor, name: str, wanted: SegmentOptions, *, create: bool
) -> Mapping | None:
    """The mapping of what has the name, or None when the name has to be looked at again."""
    mapping, mismatch = _attach(descriptor, name, wanted)
    if mapping is not None and lib.pn_engine_gone(mapping.usable()):
        try:  # the process that unlinks it is at it, or was killed
            _remove(descriptor, name, mapping, force=True, wait=False)
        except BlockingIOError:
            time.sleep(_PAUSE)
        return None
    if mapping is not None and not mismatch:
        return mapping
    if not descriptor.is_behind(name):
        return None  # unlinked, and perhaps created again, since we opened it
    pids = live_pids(name)
    if pids or not create:
        raise _layout_mismatch(name, mismatch, pids)
    if mapping is not None:
        _lose_no_messages(name, mismatch, mapping)
    if not _remove(descriptor, name, mapping):  # a process has connected in between
        pids = _users(name, mapping)
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
        mapping, _ = _attach(descriptor, name, SegmentOptions({}), tolerant=True)
        while not _remove(descriptor, name, mapping, force=force):
            _refuse(name, _users(name, mapping))  # none: they have gone again


def _users(name: str, mapping: Mapping | None) -> list[int]:
    """Processes with a connection: by their locks, or if none has its own any more by the slots."""
    pids = live_pids(name)
    if pids or mapping is None:
        return pids
    stat, rows = backend_rows(mapping.call)
    return sorted({rows[i].pid for i in range(stat.backends)})


def _refuse(name: str, pids: list[int]) -> None:
    if pids:
        raise OperationalError(
            f'segment "{name}" is used by processes {_join(pids)}',
            hint="End them or close their connections first, or pass force=True.",
        )


def _remove_orphans(name: str) -> None:
    """Lock files and shared arrays of a segment whose name was removed by hand.

    Listed before the name is looked at once more: then they are not of one made since.
    """
    import re  # noqa: PLC0415, not for every command

    prefix = f"pynotify-lock.{os.geteuid()}.{name}."
    number = re.compile(re.escape(prefix) + r"[0-9a-f]{16}\.[0-9]+")
    with contextlib.suppress(FileNotFoundError):
        files = [entry for entry in os.listdir(_SHM_DIRECTORY) if number.fullmatch(entry)]
        files += array_files(name)
        descriptor = _open_file(name)
        if descriptor is not None:
            descriptor.close()
        elif not live_pids(name):
            for entry in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(_SHM_DIRECTORY, entry))


def segments() -> list[SegmentInfo]:
    """Every segment of the calling user, by name."""
    from pynotify._types import SegmentInfo  # noqa: PLC0415, dataclasses are dear to import

    return [SegmentInfo(**fields) for fields in survey_segments()]


def survey_segments() -> list[dict[str, Any]]:
    """The fields of the `SegmentInfo` of each."""
    prefix = _shm_name("")[1:]
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.listdir(_SHM_DIRECTORY)):
            name = entry.removeprefix(prefix)
            if entry.startswith(prefix) and _is_name(name):
                fields = _survey(name)
                if fields is not None:
                    found.append(fields)
    return found


class _Memory(posix_ipc.SharedMemory):  # type: ignore[misc]
    """Owns its descriptor from the moment at which it has one: a signal handler may raise then."""

    __del__ = posix_ipc.SharedMemory.close_fd  # twice does nothing; and no Python runs in it


class _Descriptor:
    """The open segment file, whatever it holds."""

    def __init__(self, memory: _Memory) -> None:
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
        # Without flags and size: a size would resize another process's segment.
        found = _Descriptor(_Memory(_shm_name(name)))
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
) -> tuple[Mapping | None, str]:
    """The mapping, if it could be attached, and what is wrong with it, if anything.

    With `tolerant`, whatever is wrong is only told; else what replacing does not cure raises.
    """
    out = ffi.new("pn_engine **")
    try:
        result = lib.pn_attach(descriptor.fd, name.encode(), out)
        if result >= 0:
            mapping = Mapping(name, out)
            return mapping, _mismatch(mapping, wanted)
    except BaseException:
        lib.pn_engine_drop(out, ffi.NULL)
        raise
    error = native_error(result)
    if tolerant or isinstance(error, LayoutMismatch):
        return None, str(error).partition("\n")[0]
    if not descriptor.is_behind(name):
        return None, ""
    raise error


def _mismatch(mapping: Mapping, wanted: SegmentOptions) -> str:
    """In which options the segment is another than the wanted one."""
    native = ffi.new("pn_options *")
    lib.pn_engine_options(mapping.usable(), native)
    differences = "; ".join(wanted.mismatches(native))
    return f'segment "{mapping.name}" was created with {differences}' if differences else ""


def _remove(
    descriptor: _Descriptor,
    name: str,
    mapping: Mapping | None,
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
        if mapping is not None:
            result = 0 if force else again(lambda: lib.pn_retire(mapping.usable()))
            if result == -errno.EBUSY:
                return False
            lib.pn_announce_gone(mapping.usable())
            # corrupt or locked for ever: all the more reason to remove it
            if result not in (0, -lib.PN_EGONE):
                logger.warning("unlinking segment %r: %s", name, native_error(result))
            lib.pn_remove_spill_files(mapping.usable())
            mapping.close()
        # Before the name is free: afterwards the files may be those of a new segment.
        check(lib.pn_remove_lock_files(name.encode()))
        remove_array_files(name)
        with contextlib.suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(_shm_name(name))
    return True


def segment_info(name: str) -> SegmentInfo | None:
    """None when there is no such segment (any more), or what has the name is none of ours."""
    from pynotify._types import SegmentInfo  # noqa: PLC0415, dataclasses are dear to import

    fields = _survey(name)
    return None if fields is None else SegmentInfo(**fields)


def _survey(name: str) -> dict[str, Any] | None:
    try:
        descriptor = _open_file(name)
    except OperationalError:  # another user's, or no segment
        return None
    if descriptor is None:
        return None
    with contextlib.closing(descriptor):
        mapping, mismatch = _attach(descriptor, name, SegmentOptions({}), tolerant=True)
        if mapping is None:
            status = descriptor.status
            pids = live_pids(name)
            outside = bool(pids) and _PID_NAMESPACE in mismatch
            return {
                "name": name,
                "size": status.st_size,
                "created": status.st_ctime,
                "backends": len(pids),
                "stale": not outside,
                "other_pid_namespace": outside,
                "last_used": status.st_ctime,
            }
        with mapping:
            created = lib.pn_engine_created_ns(mapping.usable()) / 1e9
            used = lib.pn_engine_used_ns(mapping.usable()) / 1e9
            size = lib.pn_engine_size(mapping.usable())
            try:
                backends = lib.pn_engine_backends(mapping.usable())
            except OperationalError:  # corrupt or unlinked, but listing goes on
                backends = len(live_pids(name))
        return {
            "name": name,
            "size": size,
            "created": created,
            "backends": backends,
            "stale": False,
            "other_pid_namespace": False,
            "last_used": used,
        }


def backend_rows(call: Callable[..., int]) -> tuple[Any, Any]:
    """A pn_stat, and the pn_backend_stat of its `backends`; the dead are reaped first.

    `call` calls a function of the core with the engine before the arguments, and raises what it
    returns.
    """
    stat = ffi.new("pn_stat *")
    room = 64
    while True:
        rows = ffi.new("pn_backend_stat[]", room)
        call(lib.pn_engine_stat, stat, rows, room)
        if stat.backends <= room:
            return stat, rows
        room = 2 * stat.backends


def live_pids(name: str) -> list[int]:
    """The processes that hold a backend slot in any segment called `name`."""
    room = 64
    while True:
        pids = ffi.new("int32_t[]", room)
        count = check(lib.pn_live_pids(name.encode(), pids, room))
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


def _lose_no_messages(name: str, mismatch: str, mapping: Mapping) -> None:
    count = again(lambda: lib.pn_engine_messages(mapping.usable()))
    if count > 0:  # below 0 they are lost in any case
        raise LayoutMismatch(
            f"{mismatch}, and its topics hold {count} messages",
            hint=f'Ask for what the segment has, or lose them with unlink("{name}").',
        )


def check_name(name: str) -> None:
    """Raise a `ProgrammingError` for a bad segment name."""
    if not isinstance(name, str) or not _is_name(name):
        raise ProgrammingError(
            f"bad segment name {name!r}",
            hint="Use 1 to 100 of A-Z a-z 0-9 _ . - and no leading dot.",
        )


def _is_name(name: str) -> bool:
    letters_fit = 0 < len(name) <= _LONGEST_NAME and _LETTERS.issuperset(name)
    return letters_fit and not name.startswith(".")


def _shm_name(name: str) -> str:
    return f"/pynotify.{os.geteuid()}.{name}"


def _path(name: str) -> str:
    return _SHM_DIRECTORY + _shm_name(name)


def _join(pids: list[int]) -> str:
    """0 stands for a process of another pid namespace: the kernel does not tell its pid."""
    return ", ".join(str(pid) if pid else "(in another pid namespace)" for pid in pids)


public(segments, unlink)
