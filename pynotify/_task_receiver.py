"""Receiving by tasks: a reader of the event loop on the connection's descriptor.

It takes what there is, puts it where it belongs, and resumes the tasks that it woke.  No thread,
no set_wakeup_fd(); so it works in any loop and any thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pynotify._descriptor import Descriptor
from pynotify._ffi import lib
from pynotify._ownership import CLOSED
from pynotify._reader import AHEAD_BYTES
from pynotify._receiver import Receiver
from pynotify._task_waiter import TaskWaiter, WaitTurn
from pynotify.errors import WouldWait

if TYPE_CHECKING:
    from pynotify._handle import Handle
    from pynotify._inbox import Inbox, MainInbox
    from pynotify._off_loop import OffLoop

READ_AHEAD = 256  # messages that are read at a time, so that other tasks get their turn


class TaskReceiver(Receiver):
    """What an `AsyncConnection` has received, and the tasks that wait for more."""

    def __init__(self, handle: Handle, off_loop: OffLoop) -> None:
        super().__init__(handle)
        self._off_loop = off_loop
        self._loop = off_loop.loop
        self.turn = WaitTurn(off_loop.loop)
        #: The loop's reader is registered.
        self.reading = False
        #: What fileno() handed out.
        self.descriptor: Descriptor | None = None
        #: Callbacks of add_listener() by channel, which get nothing more after an error.
        self.listeners: dict[str, Any] = {}
        self._core_fd = -1

    async def wait(self, timeout: float | None) -> bool:
        """Wait for poll() and notifies().  False: the time is over."""
        main, patient = self.inboxes.main, timeout is None or timeout > 0
        with self.lock:  # the commit of an UNLISTEN may go through the backlog in a thread
            if self.interrupted:  # the core does not show any more what was read then
                self.recover()
            if not main.messages and not (self.reading and patient):
                self.read_ahead()
            found = bool(main.messages)
            if patient and not found:
                waiter = TaskWaiter(self.turn)
                main.waiters.append(waiter)
        if not patient:
            return found
        if found:
            await asyncio.sleep(0)  # a task that waits and polls for ever gives others their turn
            return True
        try:
            self.start_reading()
            woken = await (waiter if timeout is None else waiter.within(timeout))
        finally:
            main.waiters.remove(waiter)
        if woken and not main.messages:
            self.handle.check_usable()
        return woken

    def fileno(self) -> int:
        """A descriptor for other loops, which shows the backlog."""
        self.handle.check_usable()
        if self.descriptor is None:
            self.descriptor = Descriptor(self._core_fileno())
            self.watched = True
        self.post()
        return self.descriptor.fileno()

    def post(self) -> None:
        """Show on that descriptor whether there is a backlog."""
        if self.descriptor is not None:
            self.descriptor.show(bool(self.backlog))

    async def drop(self, inbox: Inbox) -> None:
        """Close the inbox.  To UNSUBSCRIBE goes on when the caller is cancelled."""
        inbox.close()
        self.room_made()
        off_loop = self._off_loop
        try:
            off_loop.nowait(lambda: self.unsubscribe(inbox))
        except WouldWait:
            await off_loop.background.run(off_loop.retry(lambda: self.unsubscribe(inbox)))

    # ---- the loop's reader ---------------------------------------------------------------

    def _core_fileno(self) -> int:
        if self._core_fd < 0:
            self._core_fd = self.handle.check(lib.pn_fileno(self.handle.native))
        return self._core_fd

    def start_reading(self) -> None:
        """Have the loop read, from now on."""
        if not self.reading:
            self._off_loop.check_loop()
            self.handle.check_usable()
            descriptor = self._core_fileno()
            try:
                self.reading = True
                self._loop.add_reader(descriptor, self._on_readable)
            except BaseException:
                self.stop_reading()
                raise

    def stop_reading(self) -> None:
        """No task waits any more.  In any case: Ctrl-C may have come before the loop was told."""
        self.reading = False
        if self._core_fd >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._core_fd)

    def room_made(self) -> None:
        """Read on, when a full subscription had stopped that."""
        super().room_made()
        if self.routed and not self.reading and self.handle.native is not CLOSED:
            self.start_reading()

    def _on_readable(self) -> None:
        """Level-triggered: when something is left unread the loop calls again at once.

        A task waits for each step of this, so there are few of them.
        """
        if self.routed:
            self._read_for_subscriptions()
            return
        main = self.inboxes.main
        messages = main.messages
        waiters: list[Any] = main.waiters  # TaskWaiters
        if messages or not waiters:
            self.stop_reading()  # no task wants it now; the next one that waits starts again
            return
        try:
            try:
                if not self.take_ahead(READ_AHEAD):
                    with self.lock:
                        self.reader.read(messages, READ_AHEAD, AHEAD_BYTES)
                        if self.descriptor is not None:
                            self.post()
            except Exception as error:
                self.stop_reading()
                self._fail(error)
            if messages:
                self.turn.resume(tuple(waiters))
        except BaseException:  # Ctrl-C: the loop ends, and may run again
            self.interrupted = True
            main.wake_all()
            raise

    def _read_for_subscriptions(self) -> None:
        woken: list[TaskWaiter] = []
        self.turn.woken = woken
        try:
            with self.lock:
                room = self.dispatch(READ_AHEAD, max_bytes=AHEAD_BYTES)
            if not room:
                self.stop_reading()
        except Exception as error:
            self.stop_reading()
            self._fail(error)
        finally:
            self.turn.woken = None
            try:
                self.turn.resume(woken)
            except BaseException:  # Ctrl-C before it has resumed any
                for waiter in woken:
                    waiter.wake()
                raise

    def read_ahead(self, limit: int = 0) -> bool:
        """Read what there is, and put it where it belongs.  False: there is no room.

        0: all that may be read for others, and so stands before what the caller is looking for.
        """
        with self.lock:
            if self.routed:
                return self.dispatch(limit)
            main = self.inboxes.main
            messages = main.messages
            try:
                self.reader.read(messages, READ_AHEAD, AHEAD_BYTES)
            finally:
                if messages:
                    main.wake_all()
            if self.descriptor is not None:
                self.post()
        return True

    def _fail(self, error: Exception) -> None:
        """Raise `error` in all tasks that wait."""
        with self.lock:
            inboxes: list[Inbox | MainInbox] = [self.inboxes.main, *self.inboxes.all]
            for inbox in inboxes:
                for waiter in inbox.waiters:
                    if isinstance(waiter, TaskWaiter):
                        waiter.fail(error)
                inbox.wake_all()
        if self.listeners:
            self._loop.call_exception_handler(
                {"message": f"{self.handle!r}: listeners get nothing more", "exception": error}
            )

    def close(self) -> None:
        """Close the descriptor of fileno()."""
        if self.descriptor is not None:
            self.descriptor.close()
