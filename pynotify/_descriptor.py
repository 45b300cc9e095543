"""The descriptor of an AsyncConnection, for other loops than its own."""

from __future__ import annotations

import os
import select

from pynotify._hot import finalizer


class Descriptor:
    """Readable when the core's is, or when something is shown.

    Not the core's own: that has our reader, and a loop has one for each descriptor.  And what
    was read ahead must not call our reader again and again.
    """

    def __init__(self, core: int) -> None:
        self._shown = False
        self._event = -1
        self._both = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for descriptor in (core, self._event):
            self._both.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor."""
        return self._both.fileno()

    def show(self, something: bool) -> None:
        """Make it readable or not, apart from the core's."""
        if something and not self._shown:
            os.eventfd_write(self._event, 1)
        elif self._shown and not something:
            os.eventfd_read(self._event)
        self._shown = something

    def close(self) -> None:
        """Close the descriptor.  Closing twice is allowed."""
        self._both.close()
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    @finalizer
    def __del__(self) -> None:
        if self._event >= 0:
            self.close()
