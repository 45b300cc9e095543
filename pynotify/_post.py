"""A sender that sends and goes again: a backend slot without what a `Connection` has for receiving.

It makes the calls of the core that `Connection.notify` and `notify_many` make, and imports a
quarter of what these need: `pynotify notify` runs once for each notification of a script.
"""

from __future__ import annotations

from pynotify._closing import ClosedByWith
from pynotify._handle import Handle
from pynotify._segments import map_segment, repeat_while_unlinked
from pynotify._sender import Sender

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pynotify._transaction import OpenTransaction


class Post(ClosedByWith):
    """A slot in a segment, which is created if need be; `sender` sends."""

    def __init__(self, segment: str, database: str) -> None:
        """Errors as of `pynotify.connect`."""

        def claim() -> Handle:
            with map_segment(segment, create=True, options={}) as mapping:
                return Handle.claim(mapping.usable, segment, database, listens=False)

        self._handle = repeat_while_unlinked(claim)
        self.sender = Sender(self._handle, _None(self._handle))

    def close(self) -> None:
        """Free the slot."""
        self._handle.close()
        self._handle.let_engine_go()


class _None:
    """No transaction is ever open; one is made for a call that waits for room."""

    by_owner: dict[Any, OpenTransaction] = {}  # noqa: RUF012, nothing is put into it

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def owner(self) -> None:
        """None: no call has an owner."""

    def on_its_own(self, action: Callable[[OpenTransaction], None]) -> None:
        """Do `action` in a transaction of its own."""
        from pynotify._transaction import in_own_transaction  # noqa: PLC0415

        in_own_transaction(self._handle, action)
