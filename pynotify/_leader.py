"""Threads that wait on one connection: one reads for all.

Only one thread sleeps in the core, the leader; the others, its followers, sleep on locks of
their own and are woken when something was read for them, or to take over.  So a message wakes
the waiter it is for and no other, however many wait, and no thread of ours is needed.

The handover:

    leader                                   follower
      leader = None                            followers.append(me)
      first of followers: call                 leader is None?  then I am
                                               else sleep until woken or called

At least one of the two sees the other.  A waiter that is called stays among the followers until it
acts on it; a follower that gives up calls the next one, since it may have been called itself.

A thread that reads something for the leader kicks it out of the core: pn_conn_interrupt_wait() is
not lost, whether it comes before the leader's sleep or in it.  For that no other thread may be in
the core: a second one would take the kick.

The main thread does not sleep on a lock: a signal that comes just before it sleeps would wait for
the lock as well.  It sleeps on the bell, which a signal rings, too (native/python/sleep.c).

A signal handler of Python can interrupt a wait and wait itself.  The interrupted wait can
do nothing until that has returned, so it follows no leader until then, and when it leads the
inner one leads in its place.

An exception of a signal handler (Ctrl-C) can come at every call.  So a waiter is made first,
everything else happens inside of `try`, and leave() undoes whatever was done by then; it is done
again until it came through.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from threading import Lock, get_ident
from typing import TYPE_CHECKING

from pynotify._ffi import lib
from pynotify._hot import Election, ring, sleep_until_called

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, TypeAlias

    from pynotify._handle import Handle
    from pynotify._inbox import Waiter
    from pynotify._types import Gap, Notify

    Look: TypeAlias = Callable[["ThreadWaiter", int], bool]


class ThreadWaiter:
    """A thread that waits, once."""

    __slots__ = (
        "_by_bell",
        "_election",
        "_lock",
        "_roused",
        "called",
        "cancelled",
        "entered",
        "ident",
        "in_core",
        "interrupted",
        "left",
        "message",
        "stands_in",
        "woken",
    )

    def __init__(self, election: LeaderElection) -> None:
        self._election = election
        self._lock: Lock | None = None
        #: It is the main thread, and sleeps on the bell.
        self._by_bell = False
        self._roused = False
        self.ident = 0
        #: What was handed to it.
        self.message: Notify | Gap | None = None
        #: There is something for it.
        self.woken = False
        #: No thread leads any more; or what else it sleeps for may have come.
        self.called = False
        #: It was told not to wait any more.
        self.cancelled = False
        #: It may be among the waiters: set before it is.  And it has left them.
        self.entered = self.left = False
        #: It sleeps in the core, or is about to: set before `woken` is looked at.
        self.in_core = False
        #: The wait of the same thread that it interrupted, as a signal handler of Python can.
        self.interrupted: ThreadWaiter | None = None
        #: It leads in the place of that one.
        self.stands_in = False

    def wake(self) -> None:
        """Wake the thread: there is something for it."""
        self.woken = True
        if not self._roused:
            if self.in_core:
                self._election.kick()
            self._rouse()
            self._roused = True

    def call(self) -> None:
        """Have the thread look whether it is to lead."""
        self.called = True
        self._rouse()

    def _rouse(self) -> None:
        if self._by_bell:
            ring()
        lock = self._lock
        if lock is not None:
            with contextlib.suppress(RuntimeError):  # roused already
                lock.release()

    def sleep(self, timeout_ns: int) -> None:
        """Sleep until woken or called, or a signal comes, or the time is over; -1: no limit."""
        self._by_bell = True  # before the flags are looked at
        slept = sleep_until_called(self, timeout_ns)
        self._by_bell = False
        if not slept:
            self._sleep_on_lock(timeout_ns / 1e9 if timeout_ns >= 0 else -1)

    def _sleep_on_lock(self, seconds: float) -> None:
        lock = Lock()
        lock.acquire()
        self._lock = lock
        if not (self.woken or self.called):
            lock.acquire(timeout=seconds)
        self._lock = None


class LeaderElection(Election):
    """The waiting threads of one connection, whose lock elects the leader."""

    leader: ThreadWaiter | None
    inside: dict[int, ThreadWaiter]
    followers: deque[ThreadWaiter]

    def __init__(
        self, lock: AbstractContextManager[Any], handle: Handle, waiters: list[Waiter]
    ) -> None:
        self._handle = handle
        #: The waiter that sleeps in the core, or is about to.
        self.leader = None
        self._lock = lock
        #: The innermost waiter of each thread that is not the leader.
        self.inside = {}
        self.followers = deque()
        #: Those of the main inbox.
        self.waiters = waiters

    @property
    def occupied(self) -> bool:
        """Whether a thread waits."""
        return self.leader is not None or bool(self.inside)

    def kick(self) -> None:
        """Interrupt the leader's wait, in C or in Python."""
        if not self._handle.is_foreign:
            lib.pn_conn_interrupt_wait(self._handle.native)

    def enter(self, waiter: ThreadWaiter) -> None:
        """Make the calling thread wait; the lock is held, and the `finally` around it leaves."""
        ident = waiter.ident = get_ident()
        leader = self.leader
        if leader is None and not self.inside:
            self.leader = waiter
        elif leader is not None and leader.ident == ident:
            waiter.interrupted = leader
            waiter.stands_in = True
            self.leader = waiter
        else:
            outer = waiter.interrupted = self.inside.get(ident)
            self.inside[ident] = waiter
            if outer is not None:
                self._drop(outer)

    def leave(self, waiter: ThreadWaiter, waiters: list[Waiter]) -> None:
        """Undo enter(), however far it came, and leave `waiters` too.  May be repeated.

        Where no other thread waits the leader has done it already (`Inlet.sleep`).
        """
        if waiter in waiters:
            waiters.remove(waiter)
        outer = waiter.interrupted
        if self.inside and self.inside.get(waiter.ident) is waiter:
            if outer is None:
                del self.inside[waiter.ident]
            else:
                self.inside[waiter.ident] = outer
        if self.followers:
            self._drop(waiter)
        if self.leader is waiter:
            self.leader = outer if waiter.stands_in else None
        if outer is not None:
            outer.call()
        if self.leader is None and self.followers:
            with contextlib.suppress(IndexError):  # it has left
                self.followers[0].call()
        waiter.left = True

    def wait(self, waiter: ThreadWaiter, deadline: int, look: Look) -> bool:
        """Wait until the waiter is woken or the time is over.

        `deadline` by time.monotonic_ns(), -1: none.  `look(waiter, timeout_ns)` sleeps in the
        core, perhaps for a shorter time; its True is returned.
        """
        timeout_ns = -1
        while not waiter.woken:
            if deadline >= 0:
                timeout_ns = deadline - time.monotonic_ns()
                if timeout_ns <= 0:
                    break
            if self.leader is not waiter:
                self._follow(waiter, timeout_ns)
            elif look(waiter, timeout_ns):
                return True
        return waiter.woken

    def _try_to_lead(self, waiter: ThreadWaiter) -> bool:
        with self._lock:
            if self.leader is None:
                self.leader = waiter
        return self.leader is waiter

    def _follow(self, waiter: ThreadWaiter, timeout_ns: int) -> None:
        """Sleep until woken or called, or become the leader."""
        waiter.called = False
        self.followers.append(waiter)
        try:
            if not self._try_to_lead(waiter):
                waiter.sleep(timeout_ns)
        finally:
            self._drop(waiter)

    def _drop(self, waiter: ThreadWaiter) -> None:
        with contextlib.suppress(ValueError):  # it does not follow
            self.followers.remove(waiter)
