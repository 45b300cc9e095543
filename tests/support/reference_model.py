"""LISTEN and NOTIFY in plain Python: what `pynotify` promises, without memory, locks or signals.

One `Model` is one segment; `ModelConnection` has the methods of `pynotify.Connection`.  A
message is heard by a connection if its channel is listened to when it is committed, and is
delivered unless the connection has stopped listening before it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Message(NamedTuple):
    channel: str
    payload: str
    sender: int
    commit: int


@dataclass
class Level:
    """A transaction (the first level) or a savepoint: its ordered actions and notifications."""

    name: str | None = None
    actions: list[tuple[str, str]] = field(default_factory=list)
    notifications: list[tuple[str, str]] = field(default_factory=list)

    def notify(self, channel: str, payload: str) -> None:
        if (channel, payload) not in self.notifications:
            self.notifications.append((channel, payload))

    def absorb(self, child: Level) -> None:
        self.actions += child.actions
        for notification in child.notifications:
            self.notify(*notification)


class Model:
    def __init__(self) -> None:
        self.connections: list[ModelConnection] = []
        self.commits = 0
        self.notifications = 0

    def connect(self, database: str, number: int) -> ModelConnection:
        self.connections.append(ModelConnection(self, database, number))
        return self.connections[-1]


class ModelConnection:
    def __init__(self, model: Model, database: str, number: int) -> None:
        self._model, self.database, self.number = model, database, number
        self.listening: set[str] = set()
        self.inbox: list[Message] = []
        self.levels: list[Level] = []

    @property
    def in_transaction(self) -> bool:
        return bool(self.levels)

    def savepoint_names(self) -> list[str]:
        return [level.name for level in self.levels[1:] if level.name is not None]

    def close(self) -> None:
        self._model.connections.remove(self)

    # ---- statements: each in the open transaction, or in one of its own ------------------------

    def listen(self, *channels: str) -> None:
        self._act("listen", channels)

    def unlisten(self, *channels: str) -> None:
        self._act("unlisten", channels)

    def unlisten_all(self) -> None:
        self._act("unlisten all", ("*",))

    def _act(self, action: str, channels: tuple[str, ...]) -> None:
        alone = not self.levels
        if alone:
            self.begin()
        self.levels[-1].actions += [(action, channel) for channel in channels]
        if alone:
            self.commit()

    def notify(self, channel: str, payload: str) -> None:
        self.notify_many(channel, [payload])

    def notify_many(self, channel: str, payloads: list[str]) -> None:
        alone = not self.levels
        if alone:
            self.begin()
        for payload in payloads:
            self.levels[-1].notify(channel, payload)
        if alone:
            self.commit()

    # ---- transactions --------------------------------------------------------------------------

    def begin(self) -> None:
        self.levels = [Level()]

    def rollback(self) -> None:
        self.levels = []

    def savepoint(self, name: str) -> None:
        self.levels.append(Level(name))

    def _place_of(self, name: str) -> int:
        """The newest savepoint of that name hides the older ones."""
        return max(place for place, level in enumerate(self.levels) if level.name == name)

    def release(self, name: str) -> None:
        place = self._place_of(name)
        while len(self.levels) > place:
            child = self.levels.pop()
            self.levels[-1].absorb(child)

    def rollback_to(self, name: str) -> None:
        del self.levels[self._place_of(name) :]
        self.levels.append(Level(name))

    def commit(self) -> None:
        while len(self.levels) > 1:
            child = self.levels.pop()
            self.levels[-1].absorb(child)
        (level,) = self.levels
        self.levels = []
        if level.notifications or level.actions:
            self._model.commits += 1
        self._model.notifications += len(level.notifications)
        self._apply(level.actions)
        for connection in self._model.connections:
            if connection.database == self.database:
                connection.inbox += [
                    Message(channel, payload, self.number, self._model.commits)
                    for channel, payload in level.notifications
                    if channel in connection.listening
                ]

    def _apply(self, actions: list[tuple[str, str]]) -> None:
        wanted = set(self.listening)
        for action, channel in actions:
            if action == "listen":
                wanted.add(channel)
            elif action == "unlisten":
                wanted.discard(channel)
            else:
                wanted.clear()
        self.listening = wanted
        self.inbox = [message for message in self.inbox if message.channel in wanted]

    # ---- receiving -----------------------------------------------------------------------------

    def poll(self, limit: int | None) -> list[Message]:
        if self.levels:
            return []
        count = len(self.inbox) if limit is None else limit
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return taken
