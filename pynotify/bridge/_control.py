"""The bridge's answers to processes that ask for a channel, see `pynotify._upstream`."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, NamedTuple

from pynotify._upstream import CONTROL_DATABASE, document_of
from pynotify.errors import Error, LockTimeout, QueueFull

if TYPE_CHECKING:
    from pynotify._engine import Engine


class ControlRequest(NamedTuple):
    """A request for a channel; `by` is sent back with the answer."""

    by: str
    channel: str


class ControlServer:
    """The bridge's side: it answers the requests of `pynotify._upstream`."""

    def __init__(self, engine: Engine, database: str) -> None:
        self._channel = database
        self._connection = engine.connect(CONTROL_DATABASE)
        try:
            # A backend that listens to nothing watches no other, and would not hear of a death.
            self._connection.listen(database)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """Readable when there may be requests."""
        return self._connection.fileno()

    def requests(self) -> list[ControlRequest]:
        """The requests that have come."""
        documents = map(document_of, self._connection.poll())
        return [
            ControlRequest(str(d["ask"]), str(d.get("channel"))) for d in documents if "ask" in d
        ]

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
