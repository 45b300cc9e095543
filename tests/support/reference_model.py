"""LISTEN and NOTIFY in plain Python: what `pynotify` promises, without memory, locks or signals.

One `Model` is one segment; `ModelConnection` has the methods of `pynotify.Connection`.  A
message is heard by a connection if its channel, or a pattern that matches it, is listened to when
it is committed.  It is delivered once, unless the connection has stopped listening to all of these
before it reads; by its channel, or else by the pattern that was listened to first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from globs import fits


class Message(NamedTuple):
    channel: str
    payload: str
    sender: int
    commit: int
    pattern: str | None = None
    headers: dict[str, str] | None = None


class Key(NamedTuple):
    """What is listened to: a channel or a pattern."""

    is_pattern: bool
    name: str

    def fits(self, channel: str) -> bool:
        return fits(self.name, channel) if self.is_pattern else self.name == channel


@dataclass
class Level:
    """A transaction (the first level) or a savepoint: its ordered actions and notifications."""

    name: str | None = None
    actions: list[tuple[str, Key]] = field(default_factory=list)
    #: With the headers of the first of those that are equal.
    notifications: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)

    def notify(self, channel: str, payload: str, headers: Mapping[str, str]) -> None:
        self.notifications.setdefault((channel, payload), headers)

    def absorb(self, child: Level) -> None:
        self.actions += child.actions
        for notification, headers in child.notifications.items():
            self.notify(*notification, headers)


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
        #: In the order of their LISTENs; each hears the commits after its number.
        self._keys: dict[Key, int] = {}
        self.inbox: list[Message] = []
        self.levels: list[Level] = []

    @property
    def in_transaction(self) -> bool:
        return bool(self.levels)

    @property
    def listening(self) -> set[str]:
        return {key.name for key in self._keys if not key.is_pattern}

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(key.name for key in self._keys if key.is_pattern)

    def savepoint_names(self) -> list[str]:
        return [level.name for level in self.levels[1:] if level.name is not None]

    def close(self) -> None:
        self._model.connections.remove(self)

    # ---- statements: each in the open transaction, or in one of its own ------------------------

    def listen(self, *channels: str) -> None:
        self._act("listen", [Key(False, channel) for channel in channels])

    def unlisten(self, *channels: str) -> None:
        self._act("unlisten", [Key(False, channel) for channel in channels])

    def listen_pattern(self, *patterns: str) -> None:
        self._act("listen", [Key(True, pattern) for pattern in patterns])

    def unlisten_pattern(self, *patterns: str) -> None:
        self._act("unlisten", [Key(True, pattern) for pattern in patterns])

    def unlisten_all(self) -> None:
        self._act("unlisten all", [Key(True, "*")])

    def _act(self, action: str, keys: list[Key]) -> None:
        alone = not self.levels
        if alone:
            self.begin()
        self.levels[-1].actions += [(action, key) for key in keys]
        if alone:
            self.commit()

    def notify(self, channel: str, payload: str, headers: Mapping[str, str]) -> None:
        self.notify_many(channel, [payload], headers)

    def notify_many(self, channel: str, payloads: list[str], headers: Mapping[str, str]) -> None:
        alone = not self.levels
        if alone:
            self.begin()
        for payload in payloads:
            self.levels[-1].notify(channel, payload, headers)
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
                    message
                    for (channel, payload), headers in level.notifications.items()
                    for message in [
                        Message(
                            channel,
                            payload,
                            self.number,
                            self._model.commits,
                            headers=dict(headers),
                        )
                    ]
                    if connection._owed_by(message) is not None
                ]

    def _apply(self, actions: list[tuple[str, Key]]) -> None:
        wanted = dict(self._keys)
        for action, key in actions:
            if action == "listen":
                wanted.setdefault(key, self._model.commits - 1)
            elif action == "unlisten":
                wanted.pop(key, None)
            else:
                wanted.clear()
        # What was listened to before, and is again, has never ended.
        old = {key: since for key, since in self._keys.items() if key in wanted}
        self._keys = old | {key: since for key, since in wanted.items() if key not in old}
        self.inbox = [message for message in self.inbox if self._owed_by(message) is not None]

    def _owed_by(self, message: Message) -> Key | None:
        owing = [
            key
            for key, since in self._keys.items()
            if since < message.commit and key.fits(message.channel)
        ]
        return min(owing, key=lambda key: key.is_pattern, default=None)

    def _delivered(self, message: Message) -> Message:
        key = self._owed_by(message)
        assert key is not None
        return message._replace(pattern=key.name if key.is_pattern else None)

    # ---- receiving -----------------------------------------------------------------------------

    def poll(self, limit: int | None) -> list[Message]:
        if self.levels:
            return []
        count = len(self.inbox) if limit is None else limit
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return [self._delivered(message) for message in taken]
