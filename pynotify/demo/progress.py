"""The bar on stderr: one line that is rewritten on a terminal, a line each 10 % elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 30
_REDRAW_S = 0.1


class Progress:
    """Counts to `total`, and names the stage that the run is in."""

    def __init__(self, fd: int = 2) -> None:
        # Its own descriptor, so that it goes on when Java's standard error is sent elsewhere.
        self._stream: TextIO = open(os.dup(fd), "w")  # noqa: SIM115  # closed by close()
        self._tty = self._stream.isatty()
        self._total = 0
        self._begun = self._drawn = 0.0
        self._tenths = 0
        self._complete = False
        self._open_line = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._end_line()
        print(text, file=self._stream, flush=True)

    def begin(self, total: int) -> None:
        """The bar starts at 0 of `total`."""
        self._total = total
        self._begun = time.monotonic()
        self._tenths = 0
        self._complete = False

    def show(self, count: int) -> None:
        """`count` of the total are done."""
        if self._complete:
            return
        self._complete = count >= self._total
        now = time.monotonic()
        if self._tty:
            if now - self._drawn >= _REDRAW_S or self._complete:
                self._drawn = now
                self._rewrite(self._bar(count, now))
            return
        tenths = count * 10 // self._total
        if tenths > self._tenths:
            self._tenths = tenths
            self.say(self._bar(count, now))

    def _bar(self, count: int, now: float) -> str:
        share = count / self._total
        elapsed = now - self._begun
        rate = count / elapsed if elapsed > 0 else 0.0
        left = (self._total - count) / rate if rate > 0 else 0.0
        filled = int(share * _WIDTH)
        return (
            f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%} {count:>9,}/{self._total:,}"
            f" {rate:>8,.0f}/s" + (f"  {left:3.0f} s left" if count < self._total else "")
        )

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Something that cannot be counted: on a terminal its seconds run."""
        begun = time.monotonic()
        over = threading.Event()

        def tick() -> None:
            while not over.wait(1.0):
                self._rewrite(f"{text} ... {time.monotonic() - begun:.0f} s")

        self._end_line()
        clock = threading.Thread(target=tick, daemon=True)
        if self._tty:
            self._rewrite(f"{text} ...")
            clock.start()
        else:
            self.say(f"{text} ...")
        try:
            yield
        finally:
            over.set()
            if self._tty:
                clock.join()
                self._rewrite("")
        self.say(f"{text}: {time.monotonic() - begun:.1f} s")

    def close(self) -> None:
        """Leave the cursor at the start of a line, and close the stream."""
        self._end_line()
        self._stream.close()

    def _rewrite(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
        self._open_line = bool(text)

    def _end_line(self) -> None:
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False
