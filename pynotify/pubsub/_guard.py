"""Arrays beside the queue, the receiving side: what is held of them, and the lock around reading.

Numbers in parentheses are those of the model in _shared.py.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from pynotify._finalizing import WeakSet
from pynotify._hot import finalizer
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._process import reset_after_fork
from pynotify.pubsub._memory import HEAD, LockFile, Mapping
from pynotify.pubsub._shared import READING, block_byte

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynotify._array_files import ArrayFiles
    from pynotify.pubsub._arrays import Array, Layout, Place, Reference

#: Bytes of blocks that a reader keeps mapped for the next arrays in them.
_KEPT: Final = 64 << 20


class _Holder:
    """Holds a block as long as an array of it lives."""

    __slots__ = ("_at", "_held", "_mapping")

    def __init__(self, held: _Held, at: Iterator[int], mapping: Mapping) -> None:
        self._held, self._at, self._mapping = held, at, mapping

    @finalizer
    def __del__(self) -> None:
        self._held.let_go(self._at)


class _Held:
    """What one open file of locks holds.

    An array may be collected at any step, also of a method here in the same thread: so what is let
    go of is put down, and done by the next thread that has the lock and is in no method.  Each
    attach() has an iterator of its place, so that it is put down once, whatever interrupts it.
    """

    def __init__(self, files: ArrayFiles) -> None:
        self._files = files
        self.locks = LockFile(files.lock_path)
        self._lock = RLock()
        #: The thread that has the lock is in a method.
        self._busy = False
        self._counts: dict[int, int] = {}
        self._gone: deque[int] = deque()
        self._kept: OrderedDict[int, Mapping] = OrderedDict()
        self._bytes = 0
        #: Of each arena, how many blocks it had dropped.
        self._dropped: dict[int, int] = {}
        self._at_fork: LockFile | None = None
        self._in_child: LockFile | None = None
        self._locked = False
        #: Its locks are the parent's: the child could not have its own.
        self._borrowed = False
        #: An array was let go of whose arena has no owner any more.
        self.orphaned = False
        _all_held.add(self)

    def attach(self, reference: Reference) -> Array | None:
        """The array; None: it is gone."""
        try:
            with self._lock:
                before = self._busy
                try:
                    self._busy = True
                    return self._attach(reference.place, reference.layout)
                finally:
                    self._busy = before
        finally:
            self._settle()

    def _attach(self, place: Place, layout: Layout) -> Array | None:
        import numpy as np  # noqa: PLC0415

        at = block_byte(place.arena, place.number)
        once = iter((at,))
        holder = mapping = None
        self._counts[at] = self._counts.get(at, 0) + 1  # nothing comes between this and `try`
        try:
            if self.locks.is_open and self.locks.share(at):
                mapping = self._mapping(place, at)
            if mapping is not None and mapping.generation == place.generation:
                holder = _Holder(self, once, mapping)
        finally:
            if holder is None:
                self._gone.extend(once)
        if holder is None or mapping is None:
            return None
        memory = mapping.bytes_at(HEAD, place.size, holder)
        order: Any = layout.order
        return np.ndarray(layout.shape, layout.dtype, memory, order=order)

    def _mapping(self, place: Place, at: int) -> Mapping | None:
        if self._dropped.get(place.arena) != place.dropped:
            self._dropped[place.arena] = place.dropped
            self._forget(place.arena)
        mapping = self._kept.get(at)
        if mapping is None:
            path = self._files.block_path(place.arena, place.number)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            try:
                length = os.fstat(fd).st_size
                if length < HEAD + place.size:
                    return None
                mapping = Mapping(fd, length)
            finally:
                os.close(fd)
            self._keep(at, mapping)
        elif at in self._kept:
            self._kept.move_to_end(at)
        return mapping

    def _keep(self, at: int, mapping: Mapping) -> None:
        self._kept[at] = mapping
        self._bytes += mapping.length
        while self._bytes > _KEPT and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].length

    def _forget(self, arena: int) -> None:
        for at in [at for at in self._kept if at >> 32 == arena]:
            self._bytes -= self._kept.pop(at).length

    def let_go(self, at: Iterator[int]) -> None:
        """An array is gone; nothing more when its place has been taken from the iterator."""
        self._gone.extend(at)
        self._settle()

    def _settle(self) -> None:
        while self._gone and not self._busy:
            with self._lock:
                if self._busy:  # of this thread, which does it at its end
                    return  # type: ignore[unreachable]
                try:
                    self._busy = True
                    while self._gone:
                        self._release(self._gone[0])
                finally:
                    self._busy = False

    def _release(self, at: int) -> None:
        """An exception of a signal handler may come after each call: then it is done again."""
        left = self._counts.get(at, 0) - 1
        if left <= 0 and not self._borrowed and self.locks.fd >= 0:
            self.locks.drop(at)
            arena = at >> 32
            if self.locks.is_free(block_byte(arena, 0)):
                self.orphaned = True
                self._forget(arena)
                self._dropped.pop(arena, None)
        self._counts[at] = left
        if left <= 0:
            del self._counts[at]
        self._gone.popleft()

    def forget_mappings(self) -> None:
        """Keep no memory but that of arrays."""
        with self._lock:
            self._kept.clear()
            self._dropped.clear()
            self._bytes = 0
        self._settle()

    # ---- fork (7) ---------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Make the locks that the child is to have."""
        self._at_fork = self.locks
        # Without the lock, when this very thread has it or another is at work: that is no array
        # of the child's yet.
        if not self._locked:
            # A call made by `for`: Ctrl-C cannot come between having the lock and noting it.
            for locked in map(self._lock.acquire, (False,)):
                self._locked = locked
        if self._counts and self._in_child is None:
            with contextlib.suppress(OSError):
                locks = LockFile(self._files.lock_path)
                if locks.inode == self.locks.inode and all(map(locks.share, self._counts)):
                    self._in_child = locks

    def after_fork_in_parent(self) -> None:
        """Go on as before."""
        if self._locked:
            self._locked = False  # nothing comes between this and the call
            self._lock.release()
        if self._in_child is not None:
            self._in_child.close()
            self._in_child = None
        self._settle()

    def after_fork_in_child(self) -> None:
        """Have other locks on the same blocks."""
        self._lock, self._busy, self._locked = RLock(), False, False
        if self._in_child is not None:
            self.locks.close()
            self.locks, self._in_child = self._in_child, None
        elif self.locks is self._at_fork:  # else this is called again
            if self._counts:
                self._borrowed = True
            else:
                self.locks.close()
        self._settle()


_all_held: WeakSet[_Held] = WeakSet()


# Python prints what they raise, Ctrl-C too, and forgets it.


@finalizer
def _before_fork() -> None:
    for held in tuple(_all_held):
        held.before_fork()


@finalizer
def _after_fork_in_parent() -> None:
    for held in tuple(_all_held):
        held.after_fork_in_parent()


@finalizer
def _after_fork_in_child() -> None:
    for held in tuple(_all_held):
        held.after_fork_in_child()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


class Guard:
    """What one PubSub receives arrays with, and the lock of (2) around reading.

    `reading` and `read` are called, and `pending` is set, with the lock of the receiver held.
    """

    def __init__(self, files: ArrayFiles) -> None:
        self._files = files
        self._held: _Held | None = None
        #: A message was read that was not taken in, or a reference whose block is not locked.
        self.pending = False
        #: A caller is about to take in what was read.
        self.taking = False
        self._locked: LockFile | None = None
        #: The last commit of which everything before it was taken in.
        self._since = 0
        self._closed = False
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """The PubSub is the parent's, and so is the lock."""
        self._locked, self._closed = None, True

    def reading(self) -> None:
        """The queue is about to be read."""
        if self._locked is None:
            locks = self._lock_file()
            if locks is not None:
                with contextlib.suppress(OSError):
                    locks.share(READING + self._since, 0)
                    self._locked = locks

    def read(self) -> None:
        """It was read; in `pending` is whether the PubSub has got something."""
        if self.pending:
            self.reading()  # the first arena may have been made meanwhile
        elif self._locked is not None:
            if self._locked.fd >= 0:
                self._locked.drop(READING, 0)
            self._locked = None

    def settle(self, commit: int) -> None:
        """The blocks of everything that was read are locked; the last of it is of that commit."""
        self._since = max(self._since, commit)
        self.pending = False
        self.read()

    def advance(self, commit: int) -> None:
        """The blocks of everything before that commit are locked."""
        before, locks = self._since, self._locked
        if commit > before:
            if locks is not None:
                locks.drop(READING + before, commit - before)
            self._since = commit

    def _lock_file(self) -> LockFile | None:
        """None: there are no arrays in this segment yet."""
        if self._held is None:
            if self._closed or not os.access(self._files.lock_path, os.F_OK):
                return None
            try:
                self._held = _Held(self._files)
            except OSError:
                return None
        locks = self._held.locks
        return locks if locks.fd >= 0 else None

    def attach(self, reference: Reference) -> Array | None:
        """The array; None: it is gone, or cannot be mapped."""
        try:
            self._lock_file()
            held = self._held  # another thread may close this
            if held is not None and held.locks.inode != reference.place.lock_file:
                # Files were removed: the owner looks at another one.
                self._held = held = _Held(self._files)
            if held is None or held.locks.inode != reference.place.lock_file:
                return None
            return held.attach(reference)
        except OSError as error:
            logger.warning("PubSub: an array cannot be mapped: %s", error)
            return None

    @property
    def orphaned(self) -> bool:
        """Whether there may be blocks to remove, asked once."""
        held = self._held
        if held is None or not held.orphaned:
            return False
        held.orphaned = False
        return True

    def close(self) -> None:
        """Hold nothing but the arrays that live."""
        self._closed, self.pending = True, False
        self.read()
        held, self._held = self._held, None
        if held is not None:
            held.forget_mappings()
