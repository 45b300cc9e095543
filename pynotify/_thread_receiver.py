"""Receiving by threads: one of those that wait reads for all, see `_leader`.

Nothing is read ahead while another thread sleeps or the program watches `fileno()`: both are told
only of what the core has unread.
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from pynotify._ffi import lib
from pynotify._hot import wait as wait_in_core
from pynotify._leader import LeaderElection, ThreadWaiter
from pynotify._ownership import CLOSED
from pynotify._reader import AHEAD_BYTES
from pynotify._receiver import Receiver
from pynotify.errors import native_error

if TYPE_CHECKING:
    from pynotify._handle import Handle

_NOTICE = lib.PN_NOTICE

_WATCH_NS = 1_000_000_000


class ThreadReceiver(Receiver):
    """What a `Connection` has received, and the threads that wait for more."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self.election = LeaderElection(self.lock, handle, self.inboxes.main.waiters)
        #: The leader while a full subscription forbids it to read.
        self._stalled: ThreadWaiter | None = None

    def reset_in_child(self) -> None:
        """Forget the parent's waiters as well."""
        super().reset_in_child()
        self.election = LeaderElection(self.lock, self.handle, self.inboxes.main.waiters)

    def wait(self, timeout_ns: int, ahead: int = 0) -> bool:
        """What `Connection.wait` returns; -1: without a limit.

        Up to `ahead` messages may be in the backlog then.
        """
        if timeout_ns == 0:
            return self._poll_once()
        deadline = time.monotonic_ns() + timeout_ns if timeout_ns > 0 else -1
        election, waiters = self.election, self.inboxes.main.waiters
        waiter = ThreadWaiter(election)
        try:
            with self.lock:
                # Before it looks: a leader that reads ahead without the lock sees it, or has read.
                waiters.append(waiter)
                if self.backlog:
                    self.handle.check_usable()
                    return True
                election.enter(waiter)
            if not (waiter.interrupted or self.routed or self.interrupted):
                # The usual case, without detours.
                waiter.in_core = True
                if not waiter.woken and election.leader is waiter:
                    result = self.sleep(election, waiter, timeout_ns, ahead)
                    if result is None:
                        waiter.left = True
                        return True
                    if (result == 1 or self._wait_result(result)) and not self.routed:
                        return True
                waiter.in_core = False
            found = election.wait(waiter, deadline, self.look)
            if self.handle.native is CLOSED:
                self.handle.check_usable()
            return found
        finally:
            interruption = None
            while not waiter.left:
                try:
                    election.leave(waiter, waiters)
                except BaseException as error:  # Ctrl-C: no thread would lead any more
                    interruption = error
            if interruption is not None:
                raise interruption

    def _poll_once(self) -> bool:
        """wait(0).  Not by the core's wait(), which would take the kick meant for the leader."""
        with self.lock:
            if self.interrupted:
                self.recover()
            if self.routed:
                self.dispatch()
            if self.backlog:
                self.handle.check_usable()
                return True
        return not self.routed and self._sleep_in_core(0)

    def look(self, waiter: ThreadWaiter, timeout_ns: int) -> bool:
        """What the leader does.  True: there may be something for poll()."""
        inboxes = self.inboxes
        if self.interrupted:
            with self.lock:
                self.recover()
        if inboxes.blocking and inboxes.room() == 0 and self._stall(waiter, timeout_ns):
            timeout_ns = 0
        try:
            waiter.in_core = True
            found = not waiter.woken and self._sleep_in_core(timeout_ns)
        finally:
            waiter.in_core = False
        if not self.routed:
            return found
        if found:
            with self.lock:
                self.dispatch(max_bytes=AHEAD_BYTES)  # a thread that waits on reads the rest
        return False  # the waiters that it was for were woken

    def _sleep_in_core(self, timeout_ns: int) -> bool:
        return self._wait_result(wait_in_core(self.handle, timeout_ns))

    def _wait_result(self, result: int) -> bool:
        """What pn_wait() returned.  True: there may be something for poll()."""
        if result < 0:
            if result != -errno.EINTR:
                raise native_error(result)
            # Python's handlers have run by now.  The sign hides whether there is a notice.
            self.handle.log_notices()
            return False
        if result & _NOTICE:
            self.handle.log_notices()
        return bool(result & ~_NOTICE)

    def _stall(self, waiter: ThreadWaiter, timeout_ns: int) -> bool:
        """Sleep until a full subscription lets us read on.  False: no subscription is full.

        Not longer than the core's slow timer takes, which has its work at the same time.
        """
        with self.lock:
            if self.inboxes.room() != 0:
                return False
            waiter.called = False
            before, self._stalled = self._stalled, waiter
        try:
            waiter.sleep(_WATCH_NS if timeout_ns < 0 else min(timeout_ns, _WATCH_NS))
        finally:
            self._stalled = before
        return True

    def room_made(self) -> None:
        """Wake the leader as well, when it is stalled."""
        super().room_made()
        stalled = self._stalled
        if stalled is not None:
            stalled.call()

    def read_ahead(self, count: int) -> None:
        """Read up to `count` messages into the backlog, when no other thread waits for them."""
        try:
            with self.lock:
                if self.interrupted:
                    self.recover()  # wakes those that have come meanwhile
                if not (self.backlog or self.routed):
                    alone = not (self.watched or self.election.occupied)
                    count = count if alone else 1
                    self.reader.read(self.backlog, count, AHEAD_BYTES)
        except BaseException:
            self.interrupted = True
            self.give_back(())
            raise

    def fileno(self) -> int:
        """The core's descriptor, which is to show the backlog from now on."""
        self.handle.check_usable()
        descriptor = self.handle.check(lib.pn_fileno(self.handle.native))
        self.watched = True  # once there is one: what was read ahead meanwhile, post() shows
        if self.interrupted:
            with self.lock:
                self.recover()
        self.post()
        return descriptor

    def _ask_others(self) -> None:
        leader = self.election.leader
        if leader is not None and leader.in_core:
            self.election.kick()
