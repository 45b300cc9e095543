"""Locks on bytes of a file, and blocks mapped into memory, for _arena.py and _guard.py."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Any, Final

from pynotify._hot import finalizer, map_shared

#: Bytes of a block before its array.
HEAD: Final = 64
_GENERATION = struct.Struct("<Q")
_FLOCK = struct.Struct("@hhqqi4x")


class LockFile:
    """The file of locks, opened once more: its locks are this object's."""

    __slots__ = ("__weakref__", "fd", "inode")

    def __init__(self, path: str, *, create: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        self.fd = os.open(path, flags, 0o600)
        self.inode = os.fstat(self.fd).st_ino

    def _lock(self, kind: int, at: int, length: int) -> bool:
        wanted = _FLOCK.pack(kind, 0, at, length, 0)
        if self.fd < 0:  # no call comes between this and its use: a signal handler may close it
            return False
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            if self.fd < 0:  # another thread has closed it meanwhile
                return False
            raise
        return True

    def share(self, at: int, length: int = 1) -> bool:
        """Lock bytes as others may, too; length 0: up to the end.  False: one has them alone."""
        return self._lock(fcntl.F_RDLCK, at, length)

    def own(self, at: int) -> bool:
        """Lock a byte alone.  False: another has it."""
        return self._lock(fcntl.F_WRLCK, at, 1)

    def drop(self, at: int, length: int = 1) -> None:
        """Unlock."""
        self._lock(fcntl.F_UNLCK, at, length)

    def is_free(self, at: int) -> bool:
        """Whether no other has a lock on the byte; False when this was closed."""
        wanted = _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0)
        if self.fd < 0:
            return False
        found = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, wanted)
        return bool(_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)

    @property
    def is_open(self) -> bool:
        """False too when the program has closed the descriptor, and another file has its number."""
        try:
            return self.fd >= 0 and os.fstat(self.fd).st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        """Drop all locks.  Closing twice is allowed."""
        if self.is_open:
            fd, self.fd = self.fd, -1
            os.close(fd)
        self.fd = -1

    @finalizer
    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


class Mapping:
    """A block in this process's memory, until the last reference to it goes."""

    __slots__ = ("_address", "_head", "_kept", "_writable", "length")

    def __init__(self, fd: int, length: int, *, writable: bool = False) -> None:
        self.length, self._writable = length, writable
        self._kept, self._address = map_shared(fd, length, writable)
        self._head: Any = self.bytes_at(0, HEAD, self)

    def bytes_at(self, start: int, size: int, holder: Any) -> Any:
        """An array of bytes, which keeps `holder`."""
        import numpy as np  # noqa: PLC0415

        interface = {
            "data": (self._address + start, not self._writable),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        return np.asarray(_Bytes(interface, None if holder is self else holder))

    @property
    def generation(self) -> int:
        """The block's, as its owner has left it."""
        return int(_GENERATION.unpack_from(self._head)[0])

    @generation.setter
    def generation(self, value: int) -> None:
        """Set it; by the owner."""
        _GENERATION.pack_into(self._head, 0, value)


class _Bytes:
    """What numpy makes an array of."""

    __slots__ = ("__array_interface__", "_holder")

    def __init__(self, interface: dict[str, Any], holder: Any) -> None:
        self.__array_interface__ = interface
        self._holder = holder
