"""Standard output as a terminal, a pipe or a file: what may be written to it, and when it closed.

Names, payloads and commands are other people's text: on a terminal it could move the cursor, or
worse, so that nothing is written there that is not printable.
"""

from __future__ import annotations

import contextlib
import os
import sys

from pynotify._table import escape
from pynotify._time import milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import FrameType
    from typing import NoReturn


def decode(data: bytes) -> str:
    """Bytes that should be UTF-8 and may be anything."""
    return data.decode("utf-8", "backslashreplace")


def is_terminal() -> bool:
    """Whether a person is reading."""
    return sys.stdout.isatty()


def can_redraw() -> bool:
    """Whether standard output understands the usual escape sequences."""
    return is_terminal() and os.environ.get("TERM", "dumb") != "dumb"


def coloured(text: str, code: str) -> str:
    """The text with the SGR code, unless NO_COLOR is set or it would not be seen."""
    if not (text and code) or not can_redraw() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str) -> None:
    """A line on standard error, or several."""
    print("\n".join(map(escape, text.split("\n"))), file=sys.stderr, flush=True)


def complain(command: str, error: BaseException, advice: str | None = None) -> None:
    """What went wrong; `advice` stands in for the error's own, which is about the Python API."""
    text = str(error)
    if advice is not None:
        text = text.partition("\n")[0] + f"\n{advice}"
    say(f"pynotify {command}: {text}")


class Watch:
    """Waits for descriptors, and for the reader of standard output to go away.

    A reader that has had enough, `head -1`, is otherwise noticed at the next write only, and
    that may never come.
    """

    def __init__(self, *descriptors: int) -> None:
        import select  # noqa: PLC0415

        self._poll = select.poll()
        self._output = sys.stdout.fileno()
        self._poll.register(self._output, 0)
        for descriptor in descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout: float | None) -> Collection[int]:
        """The descriptors that are readable or closed; none after `timeout` seconds, or a week.

        Raises BrokenPipeError when standard output is not read any more.
        """
        ready = [descriptor for descriptor, _ in self._poll.poll(milliseconds(timeout))]
        if self._output in ready:
            raise BrokenPipeError
        return ready

    def forget(self, descriptor: int) -> None:
        """Do not look at it any more."""
        self._poll.unregister(descriptor)


class _Ended(BaseException):
    """SIGTERM or SIGHUP, on its way through the `finally` blocks."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _raise_ended(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended(number)


@contextlib.contextmanager
def tidied_up() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exception does, and then the process as ever."""
    import signal  # noqa: PLC0415

    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _raise_ended) for number in endings}
    try:
        yield
    except _Ended as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        signal.raise_signal(ended.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
