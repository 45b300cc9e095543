"""The bridge's answers to processes that ask for a channel, see `pynotify._upstream`."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pynotify._upstream import CONTROL_DATABASE, document_of
from pynotify.errors import Error, LockTimeout, QueueFull

if TYPE_CHECKING:
    from pynotify._engine import Engine
    from pynotify._types import Gap, Notify


class ControlRequest(NamedTuple):
    """A request for a channel; `by` is sent back with the answer."""

    by: str
    channel: str


class ControlServer:
    """The bridge's side: it answers the requests of `pynotify._upstream`."""

    def __init__(self, engine: Engine, database: str) -> None:
        self._channel = database
        self._connection = engine.connect(CONTROL_DATABASE)
        self._came: deque[Notify | Gap] = deque()
        try:
            # A backend that listens to nothing watches no other, and would not hear of a death.
            self._connection.listen(database)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """Readable when there may be requests."""
        return self._connection.fileno()

    def receive(self, requests: list[ControlRequest]) -> None:
        """Append the requests that have come."""
        # A call made by `for`: Ctrl-C cannot come between reading and having it.
        for messages in map(self._connection.poll, (None,)):
            self._came += messages
        documents = map(document_of, self._came)
        asked = [
            ControlRequest(str(d["ask"]), str(d.get("channel"))) for d in documents if "ask" in d
        ]
        # No call comes in between.
        requests += asked
        self._came *= 0

    def answer(self, asked: ControlRequest, state: str, detail: str = "") -> bool:
        """Answer with a state: "listening", "down" (wait on) or "refused".

        False: not now, the queue is full.
        """
        document = {"answer": asked.by, "channel": asked.channel, "state": state}
        document["detail"] = detail[:500]
        try:
            self._connection.notify(self._channel, json.dumps(document))
        except (QueueFull, LockTimeout):
            return False
        return True

    def close(self) -> None:
        """Tell the processes that wait, and close."""
        if not self._connection.closed:
            with contextlib.suppress(Error):  # an unlinked segment has woken them already
                self._connection.notify(self._channel, json.dumps({"ended": True}))
            self._connection.close()
