"""How tasks wait for the lock, for room, for what must come to its end; not for messages.

What waits in the core does so in a thread of its own, not in the loop's executor: that has few
threads, and they are for the program.  However many tasks wait, there is one such thread for the
lock and one for room, besides those that make a connection or give something back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._ffi import lib
from pynotify.errors import LockTimeout, native_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")


class LockWait:
    """Tasks that wait until the writer lock is free: one thread waits for all of them."""

    def __init__(self) -> None:
        self._thread: asyncio.Future[None] | None = None

    async def until_free(self, engine_handle: Any, *, without_limit: bool) -> None:
        """It was, once.  Raises `LockTimeout` when the core does, or later."""
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
            # Any other error is for those who then try to take it themselves.
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
        """Somebody makes his call."""
        return self._thread is not None

    async def make(self, call: Callable[[], _T]) -> _T:
        """Who is cancelled leaves the thread behind, and it is still the only one."""
        self._thread = thread = in_thread(call)
        thread.add_done_callback(self._ended)
        return await end_of(thread)

    async def until_over(self) -> None:
        if self._thread is not None:
            await asyncio.wait([self._thread])

    def _ended(self, thread: asyncio.Future[Any]) -> None:
        self._thread = None
        retrieve(thread)


class Errands:
    """What goes on when who asked for it is cancelled; the end of the connection waits for it."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await end_of(self.start(work))

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """For whom nobody waits yet."""
        task = asyncio.get_running_loop().create_task(work)
        self._add(task)
        return task

    def run_in_thread(self, work: Callable[[], object]) -> None:
        """For what waits in the core, and returns nothing."""
        try:
            self._add(in_thread(work))
        except RuntimeError:  # the interpreter is being shut down
            work()

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T] | None:
        """For what waits for the disk; whoever wants to know waits for it.  None: it is done."""
        try:
            future = in_thread(work)
        except RuntimeError:  # no thread can be started, or no loop runs
            work()
            return None
        self._add(future)
        return future

    async def are_done(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    def forget(self) -> None:
        """Their loop is closed: they never end."""
        self._under_way.clear()

    def _add(self, errand: asyncio.Future[Any]) -> None:
        self._under_way.add(errand)
        errand.add_done_callback(self._ended)

    def _ended(self, errand: asyncio.Future[Any]) -> None:
        self._under_way.discard(errand)
        retrieve(errand)


class DiskWait:
    """What the last call has written and is to be synced: in a thread, beside the loop."""

    def __init__(self, errands: Errands) -> None:
        self._errands = errands
        self._thread: asyncio.Future[None] | None = None

    @property
    def owes(self) -> bool:
        return self._thread is not None

    def begin(self) -> None:
        self._thread = None
        lib.pn_set_put_off(1)

    def end(self) -> None:
        lib.pn_set_put_off(0)
        owed = lib.pn_sync_owed()
        if owed:
            self._thread = self._errands.in_thread(partial(_sync, owed))

    async def until_synced(self) -> None:
        """Whoever is cancelled here does not keep it from the disk."""
        if self._thread is not None:
            await end_of(self._thread)


def _sync(owed: Any) -> None:
    result = lib.pn_sync_wait(owed)
    if result < 0:
        raise native_error(result)


def in_thread(call: Callable[[], _T]) -> asyncio.Future[_T]:
    """Its result, in the running loop.  The process does not end before the thread does."""
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
    """Its result; it goes on when who waits here is cancelled."""
    await asyncio.wait([future])
    return future.result()


def retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody may be waiting any more, and then asyncio would complain of its exception."""
    if not future.cancelled():
        future.exception()
