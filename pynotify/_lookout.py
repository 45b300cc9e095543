"""Threads that wait on one connection: one looks out for all.

Only one thread sleeps in the core, the leader; the others, its followers, sleep on locks of
their own and are woken when something was read for them, or to take over.  So a message wakes
whom it is for and nobody else, however many wait, and no thread of ours is needed.

The handover:

    leader                                   follower
      leader = None                            followers.append(me)
      first of followers: call                 leader is None?  then I am
                                               else sleep until woken or called

At least one of the two sees the other.  A follower that gives up calls the next one, since it
may have been called itself.

Who reads something for a leader kicks it out of the core: pn_conn_kick() is not lost, whether it
comes before its sleep or in it.

An exception of a signal handler (Ctrl-C) can come between any two steps.  So a waiter is made
first, everything else happens inside of `try`, and leave() undoes whatever was done by then.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from threading import Lock, get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock
    from typing import TypeAlias

    from pynotify._types import Gap, Notify

    Look: TypeAlias = Callable[["ThreadWaiter", int], bool]


class ThreadWaiter:
    """A thread that waits, once."""

    #: What was handed to it.
    message: Notify | Gap | None = None
    #: There is something for it.
    woken = False
    #: Nobody leads any more.
    called = False
    #: It interrupted another wait of the same thread, as a signal handler of Python can.
    nested = False
    #: Nobody wants it to wait any more.
    cancelled = False
    ident = 0
    _lock: Lock | None = None

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout

    def wake(self) -> None:
        self.woken = True
        self._rouse()

    def call(self) -> None:
        self.called = True
        self._rouse()

    def _rouse(self) -> None:
        # The flag is set before this; a sleeper looks at it after it became leader or had a lock.
        if (self._lookout.leader is self or self.nested) and self.ident != get_ident():
            self._lookout.kick()
        lock = self._lock
        if lock is not None:
            with contextlib.suppress(RuntimeError):  # roused already
                lock.release()

    def sleep(self, seconds: float) -> None:
        """Until woken or called, or the time is over; -1: no limit."""
        lock = Lock()
        lock.acquire()
        self._lock = lock
        if not (self.woken or self.called):
            lock.acquire(timeout=seconds)
        self._lock = None


class Lookout:
    """The waiting threads of one connection, whose lock elects the leader."""

    def __init__(self, election: RLock, kick: Callable[[], None]) -> None:
        self.kick = kick
        #: Who sleeps in the core, or is about to.
        self.leader: ThreadWaiter | None = None
        self._election = election
        #: Threads that found somebody leading.
        self._inside: set[int] = set()
        self._followers: deque[ThreadWaiter] = deque()

    @property
    def occupied(self) -> bool:
        """Somebody waits."""
        return self.leader is not None or bool(self._inside)

    def enter(self, waiter: ThreadWaiter) -> None:
        """For the calling thread, the lock held, inside the `try` whose `finally` leaves."""
        waiter.ident = ident = get_ident()
        leader = self.leader
        if leader is None and not self._inside:
            self.leader = waiter
        elif ident in self._inside or (leader is not None and leader.ident == ident):
            waiter.nested = True
        else:
            self._inside.add(ident)

    def leave(self, waiter: ThreadWaiter) -> None:
        if self._inside and not waiter.nested:
            self._inside.discard(waiter.ident)
        if self.leader is waiter:
            self.leader = None
        if self._followers and self.leader is None:
            with contextlib.suppress(IndexError):  # somebody else called it
                self._followers.popleft().call()

    def wait(self, waiter: ThreadWaiter, deadline: int, look: Look) -> bool:
        """Until the waiter is woken or the time is over.

        `deadline` by time.monotonic_ns(), -1: none, 0: look once.  `look(waiter, timeout_ns)`
        sleeps in the core, perhaps for a shorter time; its True is returned.
        """
        timeout_ns = deadline
        while not waiter.woken:
            if deadline > 0:
                timeout_ns = max(0, deadline - time.monotonic_ns())
            if self.leader is waiter or waiter.nested or timeout_ns == 0:
                if look(waiter, timeout_ns):
                    return True
            else:
                self._follow(waiter, timeout_ns)
            if timeout_ns == 0:
                break
        return waiter.woken

    def _try_to_lead(self, waiter: ThreadWaiter) -> bool:
        with self._election:
            if self.leader is None:
                self.leader = waiter
        return self.leader is waiter

    def _follow(self, waiter: ThreadWaiter, timeout_ns: int) -> None:
        """Sleep until woken or called, or become the leader."""
        waiter.called = False
        self._followers.append(waiter)
        try:
            if not self._try_to_lead(waiter):
                waiter.sleep(timeout_ns / 1e9 if timeout_ns >= 0 else -1)
        finally:
            with contextlib.suppress(ValueError):  # taken out by who called it
                self._followers.remove(waiter)
