"""Arrays beside the queue: written once into shared memory, read there by every listener.

THE MODEL

 1. A block is a file in /dev/shm: 64 bytes of head, and an array.  The blocks of one PubSub are its
    arena; it makes them as it needs them and uses them again, since making one of 1 MB costs as
    much as filling it ten times.  What goes through the queue is a reference (_arrays.py).

        written by          what
        the arena's owner   the head (the block's generation) and the array, nothing else
        readers             nothing: they map a block read-only

    All else that processes know of one another are locks (OFD) on bytes of one file of the segment,
    which the kernel drops when their holder dies:

        a << 32             exclusive, by the owner of arena a as long as it lives
        a << 32 | n         shared, by each reader that has an array in block n; exclusive, by the
                            owner while nothing refers to the block, and while it writes
        2^62 + s, and up    shared, by a reader that may have read references of commits from s on
                            which it has not looked at yet (5)

 2. A block may be written to again when no listener will come with a reference to it.  The owner
    knows that when, in this order,
      a. the queue's tail has passed a position that was the head after the commit: whichever
         listener had to read the reference has read it, or is gone, or has lost its place;
      b. the byte 2^62 + s is free, where s is not before that commit: no reader has it in hand;
      c. it gets the exclusive lock on the block: no array of it is left.
    A reader does the reverse: locks 2^62 + s, reads the queue, locks the block, unlocks 2^62 + s.
    So at (a) its lock on 2^62 + s is there already, and at (b) that on the block.
 3. A reference has the block's generation, which the owner changes under the exclusive lock before
    it writes.  A reader looks at it under its shared lock.  If it is another, or the file or the
    lock is not to be had, the array is gone and the reader gets a `Gap`: never another array.
    That cannot happen to a reader of (2).  It can to one that had no descriptor for the file of
    locks, or had begun to read before there was one; and when files were removed by hand.
 4. A SIGKILL.  Of a reader: its locks are gone.  Of the owner, anywhere: the lock on its arena is
    gone, so its blocks are orphans.  Those that nothing refers to were locked or were never told
    of, and readers of the others still find them.  Orphans are removed by the next PubSub that
    makes an arena, is closed, or lets go of an array of theirs, when (2) holds for them with the
    first head and commit that it saw; by unlink() in any case.  A block that was made in part is
    an orphan like the others.
 5. Reading.  Any thread may read for all subscriptions of a connection; so the receiver asks the
    guard of each PubSub before it reads.  A block is locked when its array is handed out, and the
    guard goes on until then: so an owner that has no room can tell what will be free soon, and
    waits, from what the program keeps, and does not.
    The file of locks is made by the first arena.  Before, a reader has nothing to lock.
 6. A transaction's references count as committed when it has ended, in whatever way.
 7. A fork.  Locks belong to open files, which a child shares.  Where arrays are held, the parent
    opens another file before the fork and locks their blocks once more; the child goes on with
    that.  An owner's file is closed in the child, and never unlocked there.
 8. Descriptors: one for each arena, one for each PubSub that receives arrays, none for an array.

Rejected: a block for each message, since every process would fault its pages in; counting
readers in the block, where the dead stay; flock() of each block, which takes a descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynotify._finalizing import WeakSet
from pynotify._hot import finalizer
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._process import reset_after_fork
from pynotify.pubsub._arrays import Place, order_of
from pynotify.pubsub._memory import HEAD, LockFile, Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynotify._array_files import ArrayFiles
    from pynotify._transaction import OpenTransaction
    from pynotify.pubsub._arrays import Array, Layout, Reference

#: Bytes from which on an array is shared.  Below, two system calls cost more than copying it.
SHARED_FROM: Final = 64 << 10
DEFAULT_SHARED: Final = 128 << 20

_PAGE: Final = 4096
_READING: Final = 1 << 62
_ARENA_BITS: Final = 30
#: Bytes of blocks that a reader keeps mapped for the next arrays in them.
_KEPT: Final = 64 << 20
#: So many blocks are looked at for one that is free.
_AT_ONCE: Final = 32
#: After so many bytes of arrays the owner looks which blocks are free again.  Were it to wait until
#: it has no free one, it would go round in all that it may have: out of the processor's caches,
#: and a copy to memory takes several times as long.
_WARM: Final = 2 << 20


class Queue(NamedTuple):
    """The queue's head and tail, and then the number of the last commit."""

    head: int
    tail: int
    commit: int


def _block_byte(arena: int, number: int) -> int:
    return arena << 32 | number


# ---- the sending side ----------------------------------------------------------------------------


class Block:
    """One of an arena.  `sent` when its reference may be on the way."""

    __slots__ = ("at", "commit", "mapping", "number", "position", "transaction")

    def __init__(self, number: int, at: int, mapping: Mapping) -> None:
        self.number, self.at, self.mapping = number, at, mapping
        self.transaction: weakref.ref[OpenTransaction] | None = None
        #: Head and last commit at a time when its reference had been committed.
        self.position = self.commit = 0

    @property
    def is_committed(self) -> bool:
        """Whether its reference is in the queue, or never will be."""
        transaction = None if self.transaction is None else self.transaction()
        return transaction is None or transaction.ended


class Arena:
    """The blocks of one PubSub, which may have up to `limit` bytes.

    `queue` asks the engine, and may raise; what was asked of the arena has then not begun.
    """

    def __init__(self, files: ArrayFiles, limit: int, queue: Callable[[], Queue]) -> None:
        self._files, self._limit, self._queue = files, limit, queue
        self._lock = RLock()
        #: The thread that has the lock is in place().
        self._placing = False
        self._locks: LockFile | None = None
        self._number = self._generation = self._next = self._dropped = self._bytes = 0
        #: Locked, and written to by no thread; the last one is the warmest.
        self._free: list[Block] = []
        #: Those that were sent, in the order in which they go on: in transactions, or not known to
        #: be committed; by position until the tail has passed it; and until no reader has them.
        self._sent: deque[Block] = deque()
        self._unread: deque[Block] = deque()
        self._read: deque[Block] = deque()
        self._in_hand = 0
        #: Bytes of blocks taken since the last look for free ones.
        self._taken = 0
        self._warned = self._closed = False
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Forget the parent's blocks.  Closed, not unlocked."""
        self._lock, self._placing, self._closed = RLock(), False, True
        if self._locks is not None:
            self._locks.close()
        self._free, self._sent, self._unread, self._read = [], deque(), deque(), deque()

    def place(self, array: Array) -> tuple[Block, Place] | None:
        """Write the array into a block, to be given to `sent`.  None: there is no room."""
        import numpy as np  # noqa: PLC0415

        block = None
        try:
            with self._lock:
                if self._placing:  # a signal handler that has interrupted it
                    return None
                try:
                    self._placing = True
                    block = self._take(HEAD + array.nbytes)
                finally:
                    self._placing = False
                    if self._closed:  # by such a handler
                        self.close()
                if block is None:
                    return None
                self._generation += 1
                generation = self._generation
            mapping = block.mapping
            mapping.generation = generation
            order: Any = order_of(array)
            memory = mapping.bytes_at(HEAD, array.nbytes, mapping)
            np.copyto(np.ndarray(array.shape, array.dtype, memory, order=order), array)
            locks = self._locks
            assert locks is not None
            locks.drop(block.at)
        except BaseException:
            if block is not None:
                self.sent(block)
            raise
        place = Place(
            self._number, block.number, generation, self._dropped, locks.inode, array.nbytes
        )
        return block, place

    def sent(self, block: Block, transaction: OpenTransaction | None = None) -> None:
        """Its reference was committed, or will be when the transaction ends, or never."""
        block.transaction = None if transaction is None else weakref.ref(transaction)
        self._sent += (block,)

    @property
    def awaited(self) -> int:
        """Blocks that listeners have not read or not looked at, when all were last looked at.

        None that a signal handler waits for that has interrupted place().
        """
        with self._lock:
            return 0 if self._placing else len(self._unread) + self._in_hand

    def _take(self, size: int) -> Block | None:
        if self._closed:
            return None
        try:
            self._open()
            looked = self._taken >= _WARM
            if looked:
                self._reclaim()
            block = self._fitting(size)
            if block is None and self._number and not looked:
                self._reclaim()
                block = self._fitting(size)
            if block is None:
                block = self._make(size)
            self._taken += size
            return block
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "PubSub: an array of %d bytes finds no place in %s and goes through the queue:"
                    " %s",
                    *(size - HEAD, os.path.dirname(self._files.lock_path), error),
                )
            return None

    def _open(self) -> None:
        """Take the name of an arena that no process has, and that has left nothing."""
        if self._locks is not None:
            if not self._locks.is_open:
                raise OSError(errno.EBADF, "the program has closed the file of locks")
            return
        remove_orphans(self._files, self._queue, {})
        locks = LockFile(self._files.lock_path, create=True)
        there = self._files.blocks()
        while True:
            number = int.from_bytes(os.urandom(4), "little") >> (32 - _ARENA_BITS)
            if number not in there and locks.own(_block_byte(number, 0)):
                break
        self._number = number
        self._locks = locks

    def _fitting(self, size: int) -> Block | None:
        """A free block of that size, and not of much more."""
        for at in range(len(self._free) - 1, -1, -1):
            if size <= self._free[at].mapping.length <= 2 * size:
                return self._free.pop(at)
        return None

    def _reclaim(self, *, whole: bool = False) -> None:
        """Find blocks that nothing refers to any more (2); `whole`: all of them."""
        self._taken = 0
        sent, unread, read = self._sent, self._unread, self._read
        # Before the engine is asked: what others commit meanwhile is beyond that head.
        before = list(sent)
        committed = {block for block in before if block.is_committed}
        locks, queue = self._locks, self._queue()
        assert locks is not None
        for _ in before:
            block = sent.popleft()
            if block in committed:
                block.position, block.commit = queue.head, queue.commit
                unread.append(block)
            else:
                sent.append(block)
        while unread and unread[0].position <= queue.tail:
            read.append(unread.popleft())
        # A reader locks everything from some commit on.
        cleared, barred = -1, queue.commit + 1
        for _ in range(len(read) if whole else min(len(read), _AT_ONCE)):
            block = read.popleft()
            if cleared < block.commit < barred:
                if locks.is_free(_READING + block.commit):
                    cleared = block.commit
                else:
                    barred = block.commit
            if block.commit <= cleared and locks.own(block.at):
                self._free.append(block)
            else:
                read.append(block)
        self._in_hand = sum(block.commit >= barred for block in read)

    def _make(self, size: int) -> Block | None:
        step = max(_PAGE, 1 << max(size.bit_length() - 4, 0))
        length = -(-size // step) * step
        while self._free and self._bytes + length > self._limit:
            self._remove(self._free.pop(0))
        if self._bytes + length > self._limit:
            return None
        try:
            return self._made(length)
        except OSError:
            if not self._free:
                raise
        while self._free:  # of other sizes, and what they have may be what there is no room for
            self._remove(self._free.pop())
        return self._made(length)

    def _made(self, length: int) -> Block:
        locks = self._locks
        assert locks is not None
        self._next += 1
        number, path = self._next, self._files.block_path(self._number, self._next)
        at = _block_byte(self._number, number)
        locks.own(at)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, length)  # else writing to it may be a SIGBUS
            block = Block(number, at, Mapping(fd, length, writable=True))
        except BaseException:
            os.unlink(path)
            locks.drop(at)
            raise
        finally:
            os.close(fd)
        self._bytes += length
        return block

    def _remove(self, block: Block) -> None:
        """Remove a block that is locked; a reader keeps what it has mapped."""
        self._dropped += 1
        self._bytes -= block.mapping.length
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._files.block_path(self._number, block.number))
        if self._locks is not None:
            self._locks.drop(block.at)

    def prepare_to_close(self) -> None:
        """Find what nothing refers to.  May be repeated."""
        with self._lock:
            if self._number and not (self._closed or self._placing):
                self._reclaim(whole=True)

    def close(self) -> None:
        """Remove what nothing refers to, and leave the rest to the last that reads it."""
        with self._lock:
            self._closed = True
            if self._placing:
                return  # a signal handler has interrupted place(), which does the rest
            while self._free:
                self._remove(self._free.pop())
            if self._locks is not None:
                self._locks.drop(0, 0)  # a child of a fork may not have closed it yet
                self._locks.close()


def remove_orphans(files: ArrayFiles, queue: Callable[[], Queue], seen: dict[int, Queue]) -> None:
    """Remove the blocks of dead owners that nothing refers to any more (4).

    `seen`: the queue as it was when each of them was first found to be dead.
    """
    try:
        locks = LockFile(files.lock_path)
    except OSError:  # there never was an arena, or no descriptor is left
        return
    try:
        blocks = files.blocks()
        for arena in seen.keys() - blocks.keys():
            del seen[arena]
        dead = [arena for arena in blocks if locks.is_free(_block_byte(arena, 0))]
        if not dead:
            return
        now = queue()  # after that: all that they have committed is before this head
        for arena in dead:
            first = seen.setdefault(arena, now)
            if now.tail >= first.head and locks.is_free(_READING + first.commit):
                _remove_unheld(files, locks, arena, blocks[arena])
    finally:
        locks.close()


def _remove_unheld(files: ArrayFiles, locks: LockFile, arena: int, numbers: Iterable[int]) -> None:
    for number in numbers:
        if locks.own(_block_byte(arena, number)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(files.block_path(arena, number))


# ---- the receiving side --------------------------------------------------------------------------


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

        at = _block_byte(place.arena, place.number)
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
            if self.locks.is_free(_block_byte(arena, 0)):
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
                    locks.share(_READING + self._since, 0)
                    self._locked = locks

    def read(self) -> None:
        """It was read; in `pending` is whether the PubSub has got something."""
        if self.pending:
            self.reading()  # the first arena may have been made meanwhile
        elif self._locked is not None:
            if self._locked.fd >= 0:
                self._locked.drop(_READING, 0)
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
                locks.drop(_READING + before, commit - before)
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
