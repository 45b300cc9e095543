"""How tasks wait for the lock, for room, for the disk and for a call; not for messages.

* Waiting for the writer lock: a call is tried with pn_set_never_wait().  If it would have to
  wait, a thread waits until the lock is free, one for all tasks, and then each tries again in
  the loop.  So a cancelled call has done nothing, and no state of ours is touched by threads.
* Waiting for room in a full queue: the call itself is made in a thread, one at a time, since
  only the core can wait for that.
* Waiting for the disk: a call has happened when it comes back, and what it owes to the disk
  (pn_sync_owed()) is synced in a thread.  It holds no lock, and several wait for it together.

What waits in the core does so in a thread of its own, not in the loop's executor: that has few
threads, and they are for the program.  However many tasks wait, there is one such thread for the
lock and one for room, besides those that make a connection or give something back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import _get_running_loop
from functools import partial
from itertools import starmap
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._ffi import ffi, lib
from pynotify.errors import InterfaceError, LockTimeout, WouldWait, check, native_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pynotify._handle import Handle

_T = TypeVar("_T")

_NULL = ffi.NULL


class LockWait:
    """Tasks that wait until the writer lock is free: one thread waits for all of them."""

    def __init__(self) -> None:
        self._thread: asyncio.Future[None] | None = None

    async def until_free(self, engine_handle: Any, *, without_limit: bool) -> None:
        """Wait until the lock has been free once.

        Raises `LockTimeout` when the core does, or later.
        """
        late = self._thread is not None  # it has been at it before we came
        while True:
            if self._thread is None:
                self._thread = self._start(engine_handle)
            try:
                await end_of(self._thread)
                return
            except LockTimeout as error:
                if not (late or without_limit):
                    raise LockTimeout(*error.args) from None
                late = False

    def _start(self, engine_handle: Any) -> asyncio.Future[None]:
        def take_it() -> None:
            # Any other error is for the tasks that then try to take it themselves.
            if lib.pn_await_lock(engine_handle) == -lib.PN_ELOCK:
                raise native_error(-lib.PN_ELOCK)

        thread = in_thread(take_it)
        thread.add_done_callback(self._ended)
        return thread

    def _ended(self, thread: asyncio.Future[None]) -> None:
        self._thread = None
        retrieve(thread)


class RoomWait:
    """Tasks that wait for room in the queue: one makes its call in a thread, which waits there.

    Only the core signals the laggards.  The others try again when that call is over.
    """

    def __init__(self) -> None:
        self._thread: asyncio.Future[Any] | None = None

    @property
    def taken(self) -> bool:
        """Whether a thread makes the call of another task."""
        return self._thread is not None

    async def make(self, call: Callable[[], _T]) -> _T:
        """Make the call in a thread, which a cancelled caller leaves behind as the only one."""
        self._thread = thread = in_thread(call)
        thread.add_done_callback(self._ended)
        return await end_of(thread)

    async def until_over(self) -> None:
        """Wait until that call has returned."""
        if self._thread is not None:
            await asyncio.wait([self._thread])

    def _ended(self, thread: asyncio.Future[Any]) -> None:
        self._thread = None
        retrieve(thread)


class BackgroundTasks:
    """Work that goes on when its caller is cancelled; closing the connection waits for it."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for the result of `work`, which a cancelled caller leaves running."""
        return await end_of(self.start(work))

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start `work` as a task, for which no caller waits yet."""
        task = asyncio.get_running_loop().create_task(work)
        self._add(task)
        return task

    def run_in_thread(self, work: Callable[[], object]) -> None:
        """Start a call that waits in the core, and returns nothing."""
        try:
            self._add(in_thread(work))
        except RuntimeError:  # the interpreter is being shut down
            work()

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T] | None:
        """Start a call that waits for the disk.  None: it was made here, and has returned."""
        try:
            future = in_thread(work)
        except RuntimeError:  # no thread can be started, or no loop runs
            work()
            return None
        self._add(future)
        return future

    async def are_done(self) -> None:
        """Wait until nothing is running."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def forget(self) -> None:
        """Their loop is closed, and they never end."""
        self._under_way.clear()

    def _add(self, work: asyncio.Future[Any]) -> None:
        self._under_way.add(work)
        work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self._under_way.discard(work)
        retrieve(work)


class DiskWait:
    """What the last call has written and is to be synced: in a thread, beside the loop."""

    def __init__(self, background: BackgroundTasks) -> None:
        self._background = background
        self._thread: asyncio.Future[None] | None = None

    @property
    def owes(self) -> bool:
        """Whether something is being synced."""
        return self._thread is not None

    def begin(self, handle: Handle) -> None:
        """Before a call of the core on that connection that may write."""
        self._thread = None
        lib.pn_set_put_off(handle.native)

    def end(self) -> None:
        """After that call, and after pn_set_put_off() of no connection."""
        # A call made by `for`: Ctrl-C cannot come between that and `try`.
        for owed in starmap(lib.pn_sync_owed, ((),)):
            if owed:
                once = [owed]
                try:
                    self._thread = self._background.in_thread(partial(_sync, once))
                except BaseException:  # Ctrl-C: the thread may have been started, or not
                    _sync(once)
                    raise

    async def until_synced(self) -> None:
        """Wait for the disk; a cancelled caller does not keep the data from it."""
        if self._thread is not None:
            await end_of(self._thread)


def _sync(once: list[Any]) -> None:
    with contextlib.suppress(IndexError):  # another thread does it
        check(lib.pn_sync_wait(once.pop()))


class OffLoop:
    """Calls that may have to wait, made by the tasks of one connection without blocking the loop.

    `loop`: the event loop of the connection, and the only one that may use it.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.loop = asyncio.get_running_loop()
        self.thread, self.is_running = get_ident(), self.loop.is_running
        self.background = BackgroundTasks()
        self._disk_wait = DiskWait(self.background)
        self._lock_wait = LockWait()
        self._room_wait = RoomWait()
        self._full_timeout = float(handle.options().full_timeout_ns) / 1e9

    def check_loop(self) -> None:
        """Raise `InterfaceError` in another loop, or outside of any."""
        # Nearly always settled by this: to ask for the running loop may cost a system call.
        if get_ident() == self.thread and self.is_running():
            return
        if _get_running_loop() is not self.loop:
            self._handle.check_usable()  # a forked child has another loop, too
            raise InterfaceError(
                "the connection belongs to another event loop", hint="Connect in this one."
            )

    def nowait(self, call: Callable[[], _T]) -> _T:
        """Make the call.  Raises `WouldWait`, and has done nothing, where it would have to wait."""
        # A signal handler may raise after each call, and what we set must not stay with the thread:
        # so the first call only asks, and no function of Python is called to give it back.
        before = lib.pn_set_never_wait(0)
        try:
            lib.pn_set_never_wait(1)
            self._disk_wait.begin(self._handle)
            return call()
        finally:
            try:
                lib.pn_set_put_off(_NULL)
            finally:
                lib.pn_set_never_wait(before)
            self._disk_wait.end()

    async def until_synced(self) -> None:
        """Wait until what the last call has written is on the disk, if it has to be."""
        if self._disk_wait.owes:
            await self._disk_wait.until_synced()

    async def until_free(self) -> None:
        """Wait until the writer lock has been free once, without a limit."""
        await self._lock_wait.until_free(self._handle.mapping, without_limit=True)

    async def retry(self, call: Callable[[], _T], *, without_limit: bool = False) -> _T:
        """Make the call as soon as it need not wait."""
        self.check_loop()
        engine = self._handle.mapping  # also after close(), which a commit may outlive
        began = self.loop.time()
        while True:
            try:
                result = self.nowait(call)
                if self._disk_wait.owes:
                    await self._disk_wait.until_synced()
                return result
            except WouldWait as would_wait:
                error = would_wait.error
            if isinstance(error, LockTimeout):
                await self._lock_wait.until_free(engine, without_limit=without_limit)
            elif not self._room_wait.taken:
                return await self._room_wait.make(call)
            elif self.loop.time() - began < self._full_timeout:
                await self._room_wait.until_over()
            else:
                raise error


def in_thread(call: Callable[[], _T]) -> asyncio.Future[_T]:
    """Call it in a thread; a future of the running loop.  The process waits for the thread."""
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    threading.Thread(target=_make, args=(call, future), name="pynotify-waits").start()
    return future


def _make(call: Callable[[], _T], future: asyncio.Future[_T]) -> None:
    try:
        settle = partial(future.set_result, call())
    except BaseException as error:
        settle = partial(future.set_exception, error)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        future.get_loop().call_soon_threadsafe(settle)
    del call, future, settle  # an error's traceback has this frame


async def end_of(future: asyncio.Future[_T]) -> _T:
    """Wait for the result of `future`, which a cancelled caller leaves running."""
    await asyncio.wait([future])
    return future.result()


def retrieve(future: asyncio.Future[Any]) -> None:
    """Take the exception out, of which asyncio would complain when no task waits for it."""
    if not future.cancelled():
        future.exception()
