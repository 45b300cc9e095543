"""Arrays beside the queue, the sending side: the blocks of an arena, and those of dead owners.

Numbers in parentheses are those of the model in _shared.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._process import reset_after_fork
from pynotify.pubsub._arrays import Place, order_of
from pynotify.pubsub._memory import HEAD, LockFile, Mapping
from pynotify.pubsub._shared import READING, block_byte

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynotify._array_files import ArrayFiles
    from pynotify._transaction import OpenTransaction
    from pynotify.pubsub._arrays import Array

_PAGE: Final = 4096
_ARENA_BITS: Final = 30
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
            if number not in there and locks.own(block_byte(number, 0)):
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
                if locks.is_free(READING + block.commit):
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
        at = block_byte(self._number, number)
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
        dead = [arena for arena in blocks if locks.is_free(block_byte(arena, 0))]
        if not dead:
            return
        now = queue()  # after that: all that they have committed is before this head
        for arena in dead:
            first = seen.setdefault(arena, now)
            if now.tail >= first.head and locks.is_free(READING + first.commit):
                _remove_unheld(files, locks, arena, blocks[arena])
    finally:
        locks.close()


def _remove_unheld(files: ArrayFiles, locks: LockFile, arena: int, numbers: Iterable[int]) -> None:
    for number in numbers:
        if locks.own(block_byte(arena, number)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(files.block_path(arena, number))
