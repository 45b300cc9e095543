"""A process under test that only runs an event loop: it never calls wait().

Its functions are called by `sessions.Worker`, and `check_...` in the test: there the
notifications are sent.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pynotify
from receiving import payloads
from serving import Notifier
from sessions import Worker

SIGNAL = signal.SIGUSR1


class Loop:
    """An event loop that watches the descriptor of a connection."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.engine = pynotify.open(name)
        self.conn = self.engine.connect()
        self.conn.listen("c")
        self.loop.add_reader(self.conn.fileno(), self._hear)
        self._heard: list[str] = []
        self._condition: Callable[[], bool] = lambda: False

    def _hear(self) -> None:
        self._heard += payloads(self.conn.poll())
        self._look()

    def _look(self) -> None:
        if self._condition():
            self.loop.stop()

    def run_until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Until it holds for the messages that have come; these messages."""
        self._condition = lambda: condition(self._heard)
        self.loop.call_soon(self._look)
        self.loop.run_forever()
        heard, self._heard = self._heard, []
        return heard


_loops: list[Loop] = []


def start_loop(name: str) -> None:
    _loops.append(Loop(name, asyncio.new_event_loop()))


def start_loop_that_handles(name: str) -> None:
    """The loop's handler is there before the connection is."""
    loop = asyncio.new_event_loop()
    loop.add_signal_handler(SIGNAL, _calls.append, "loop")
    _loops.append(Loop(name, loop))


def hear(count: int) -> list[str]:
    """Run the loop until so many messages have come."""
    return _loops[0].run_until(lambda heard: len(heard) >= count)


def hear_and_reinstall(count: int, reinstalls: int) -> list[str]:
    """Run the loop until, moreover, the handler was installed again so many times in all."""
    engine = _loops[0].engine
    return _loops[0].run_until(
        lambda heard: len(heard) >= count and engine.stat().handler_reinstalls >= reinstalls
    )


def hear_in_a_thread(name: str, count: int) -> list[str]:
    """The loop is not the main thread's, which does nothing."""

    def body() -> None:
        start_loop(name)
        heard.extend(hear(count))

    heard: list[str] = []
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return heard


def listen_again() -> None:
    """Which looks whether the handler is still ours."""
    _loops[0].conn.listen(f"c{_loops[0].engine.stat().handler_reinstalls}")


_calls: list[str] = []


def calls() -> list[str]:
    """What the host's handlers noted; handlers of Python run before this returns."""
    return list(_calls)


def host_handler(_number: int, _frame: object) -> None:
    _calls.append("host")


def handle() -> None:
    signal.signal(SIGNAL, host_handler)


def save_and_restore() -> bool:
    """As a library that needs the signal for a moment; Python knows nothing of our handler."""
    saved = signal.signal(SIGNAL, host_handler)
    signal.signal(SIGNAL, saved)
    return saved is signal.SIG_DFL


def handle_in_loop() -> None:
    _loops[0].loop.add_signal_handler(SIGNAL, _calls.append, "loop")


def remove_from_loop() -> None:
    _loops[0].loop.remove_signal_handler(SIGNAL)


def calls_in_loop(count: int) -> list[str]:
    """Run the loop until its callback has noted so many."""

    def look() -> None:
        if len(_calls) >= count:
            loop.stop()
        else:
            loop.call_later(0.002, look)

    loop = _loops[0].loop
    loop.call_soon(look)
    loop.run_forever()
    return calls()


def check_woken(worker: Worker, notifier: Notifier, *messages: str) -> None:
    """Each of them by a signal, at once."""
    for message in messages:
        before = notifier.state().signals_sent
        notifier.notify(message)
        assert worker.call(hear, 1) == [message]
        assert notifier.state().signals_sent > before


def check_not_signalled(worker: Worker, notifier: Notifier, reinstalls: int) -> None:
    """Heard all the same, and afterwards the handler is ours again."""
    before = notifier.state().signals_sent
    messages = [f"{reinstalls}.{number}" for number in range(20)]
    notifier.notify(*messages)
    assert notifier.state().signals_sent == before
    assert worker.call(hear_and_reinstall, 20, reinstalls) == messages
