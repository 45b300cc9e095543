"""A task that waits for a message, and how it is resumed: at once.

1. The waiter is a future of asyncio, with one liberty.  A future has the loop resume its task,
   by call_soon(): in another turn, which begins with a system call.  The loop's reader that has
   read the message has nothing else to do, and resumes the task itself, as its last act.
2. That is what the loop would do: run the callback that the task has added, in the context given
   with it, in the loop's thread, while no task is being executed.  A reader is a callback of the
   loop, so this holds there, and only there; code that wakes a task from elsewhere does it by
   set_result(), as every future's owner.
3. It is done for asyncio's own tasks.  A callback of any other kind, also of a task of a derived
   class, is left to the loop; so is everything in debug mode, where the loop says which task was
   slow.  Nothing of asyncio is replaced, and of the task no more is known than that its callback
   is the first of what it waits for, as asyncio's futures show it: if not, the loop resumes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import Context
    from typing import Any


class WaitTurn:
    """The turn of a connection's reader in the event loop."""

    __slots__ = ("loop", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: The waiters it has woken until now, some several times; None while it does not read.
        self.woken: list[TaskWaiter] | None = None

    def resume(self, woken: Iterable[TaskWaiter]) -> None:
        """The last act of the reader: nothing may be left to do or to hold for it."""
        all_of_them = tuple(woken)
        try:
            for waiter in all_of_them:
                waiter.resume()
        except BaseException as error:
            # It has ended a task, or it is Ctrl-C in here.  So ends the loop, as from any callback;
            # but from a reader uvloop would not take it.
            self.loop.call_soon(_throw, error)
            for waiter in all_of_them:
                waiter.wake()


class TaskWaiter(asyncio.Future[bool]):
    """Awaited by one task; says whether it was woken, and not just that the time was over."""

    __slots__ = ("_debug", "_turn", "message")

    def __init__(self, turn: WaitTurn) -> None:
        super().__init__(loop=turn.loop)
        #: What was handed to it.
        self.message: Any = None
        self._turn = turn
        # Asked before it sleeps: each call of Python between a message and its task costs both.
        self._debug = turn.loop.get_debug()

    def wake(self) -> None:
        """At the end of the reader's turn, or else soon."""
        woken = self._turn.woken
        if woken is not None:
            woken.append(self)
        elif not self.done():
            self.set_result(True)

    def resume(self) -> None:
        """Wake it, and let the task go on before this returns.  Only for a callback of the loop."""
        if self.done():  # cancelled in the same turn, or woken more than once
            return
        # What resumes the task, where that may be done at once.  Not learned when the task adds it:
        # Ctrl-C in a method of Python that the task calls for that would leave a task that nothing
        # resumes.
        step: Callable[[TaskWaiter], object] | None = None
        context: Context | None = None
        callbacks: list[tuple[Any, Any]] | None = getattr(self, "_callbacks", None)
        if callbacks and not self._debug:
            step, context = callbacks[0]
            if type(getattr(step, "__self__", None)) is not asyncio.Task:
                step = None
        ours = True  # the step is not among the callbacks any more, and was not called
        try:
            if step is None or context is None or not self.remove_done_callback(step):
                ours = False
                self.set_result(True)
                return
            self.set_result(True)
            ours = False
            context.run(step, self)
        except BaseException:  # of the task; or Ctrl-C, and it would wait for ever
            if not self.done():
                if ours and step is not None:
                    self.remove_done_callback(step)
                    super().add_done_callback(step, context=context)
                self.set_result(True)
            elif ours and step is not None:
                self._turn.loop.call_soon(step, self, context=context)
            raise

    def fail(self, error: Exception) -> None:
        """Make it raise; each waiter gets its own."""
        if not self.done():
            self.set_exception(type(error)(*error.args))
            # Looked at, or asyncio would complain of a task that is cancelled before it sees it.
            self.exception()

    async def within(self, timeout: float) -> bool:
        """Awaits it for so long."""
        timer = self._turn.loop.call_later(timeout, self._time_is_over)
        try:
            return await self
        finally:
            timer.cancel()

    def _time_is_over(self) -> None:
        if not self.done():
            self.set_result(False)


def _throw(error: BaseException) -> NoReturn:
    raise error
