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

from typing import Final

#: Bytes from which on an array is shared.  Below, two system calls cost more than copying it.
SHARED_FROM: Final = 64 << 10
DEFAULT_SHARED: Final = 128 << 20

#: The first byte of the locks of those that read (1).
READING: Final = 1 << 62


def block_byte(arena: int, number: int) -> int:
    """Where the locks of a block are; number 0: that of its arena's owner."""
    return arena << 32 | number
