"""A data directory without its segment: what the log of durable topics in it has, what is damaged.

The C core reads it (native/src/api/api_dir.c), as the next segment of that name would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynotify._ffi import ffi, lib
from pynotify.errors import native_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG_FILE = re.compile(r"log\.[0-9a-f]{16}\.[0-9a-f]{16}")
_OVERFLOW_FILE = re.compile(r"(pynotify\.\d+\.(.+)\.([0-9a-f]{16})\.d\.)[0-9a-f]{16}")

#: What a process leaves that is killed in the middle of a write: the next one cuts it off.
_HARMLESS = "unfinished"
_REASONS = {
    lib.PN_DIR_UNREADABLE: "unreadable",
    lib.PN_DIR_SPOILT: "spoilt",
    lib.PN_DIR_TORN: "torn",
    lib.PN_DIR_MISSING: "missing",
    lib.PN_DIR_UNFINISHED: _HARMLESS,
    lib.PN_DIR_BAD_END: "bad end",
}


@dataclass(frozen=True)
class Holder:
    """The process that opened a directory in use last; pid 0: it is not known which."""

    pid: int
    host: str


@dataclass(frozen=True)
class Damage:
    """What cannot be read in a file from `offset` on, or that the file is missing."""

    file: str
    reason: str
    offset: int = 0
    records: int = 0
    bytes: int = 0

    @property
    def harmless(self) -> bool:
        """Whether nothing is lost by it."""
        return self.reason == _HARMLESS


@dataclass
class LoggedTopic:
    """A topic that the log speaks of; `channels` by number."""

    name: str
    database: str
    paused: bool
    channels: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """One channel's copy of a message; `due_ns`: CLOCK_REALTIME, 0: at once."""

    channel: str
    attempts: int
    due_ns: int


@dataclass(frozen=True)
class LoggedMessage:
    """A message that some channel, or the topic itself, still has.  Times as `due_ns`."""

    topic: LoggedTopic
    id: int
    published_ns: int
    due_ns: int
    expires_ns: int
    own: bool
    copies: list[Copy]
    headers: bytes
    body: bytes


def holder(path: Path) -> Holder | None:
    """The user of a log's directory; None: nothing uses it."""
    pid, host = ffi.new("int32_t *"), ffi.new("char[64]")
    held = lib.pn_dir_holder(bytes(path), pid, host)
    if held < 0:
        raise native_error(held)
    return Holder(pid[0], ffi.string(host).decode("utf-8", "replace")) if held else None


def logs(path: Path) -> list[Path]:
    """The directories with a log: this one, or those in it."""
    return [each for each in (path, *sorted(path.iterdir())) if each.is_dir() and _is_log(each)]


def _is_log(path: Path) -> bool:
    return any(entry.name == "lock" or _LOG_FILE.fullmatch(entry.name) for entry in path.iterdir())


class Reading:
    """Everything that a directory has, for a with statement that goes through it once."""

    def __init__(self, path: Path, prefix: str | None = None, instance: int = 0) -> None:
        out, about = ffi.new("pn_dir **"), ffi.new("pn_dir_about *")
        spill = ffi.NULL if prefix is None else prefix.encode()
        result = lib.pn_dir_open(bytes(path), spill, instance, out, about)
        if result < 0:
            raise native_error(result)
        self._native = out[0]
        self._prefix = ffi.string(about.prefix).decode() if prefix is None else prefix
        self._item = ffi.new("pn_dir_item *")
        self.topics: dict[int, LoggedTopic] = {}
        self.empty = about.last_file == 0

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading, and let the directory go."""
        if self._native != ffi.NULL:
            lib.pn_dir_close(self._native)
        self._native = ffi.NULL

    def __iter__(self) -> Iterator[Damage | LoggedMessage]:
        """Damage and messages; `topics` is complete before the first message comes."""
        while (result := lib.pn_dir_next(self._native, self._item)) == 1:
            item = self._item[0]
            if item.kind == lib.PN_DIR_TOPIC:
                name, database = _text(item.name), _text(item.database)
                self.topics[item.topic] = LoggedTopic(name, database, bool(item.paused))
            elif item.kind == lib.PN_DIR_CHANNEL:
                self.topics[item.topic].channels[item.channel] = _text(item.name)
            elif item.kind == lib.PN_DIR_DAMAGE:
                name = f"{self._prefix}{item.file:016x}"
                reason = _REASONS[item.why]
                yield Damage(name, reason, item.at, item.records, item.bytes)
            else:
                yield self._message(item)
        if result < 0:
            raise native_error(result)

    def _message(self, item: Any) -> LoggedMessage:
        topic = self.topics[item.topic]
        copies = [item.copies[i] for i in range(item.ncopies)]
        return LoggedMessage(
            topic=topic,
            id=item.id,
            published_ns=item.published_ns,
            due_ns=item.due_ns,
            expires_ns=item.expires_ns,
            own=bool(item.own),
            copies=[Copy(topic.channels[c.channel], c.attempts, c.due_ns) for c in copies],
            headers=bytes(ffi.buffer(item.headers, item.headers_len)),
            body=bytes(ffi.buffer(item.body, item.body_len)),
        )


def _text(name: Any) -> str:
    return ffi.string(name).decode("utf-8", "backslashreplace")


@dataclass
class Overflow:
    """Files of messages that had no room in the memory of one segment."""

    segment: str
    instance: str
    files: int = 0
    bytes: int = 0
    damage: list[Damage] = field(default_factory=list)


def overflow(path: Path) -> list[Overflow]:
    """By segment.  How many of their messages are over already, only the segment knows."""
    found: dict[str, Overflow] = {}
    for entry in sorted(path.iterdir()):
        match = _OVERFLOW_FILE.fullmatch(entry.name)
        if match and entry.is_file():
            queue = found.setdefault(match[1], Overflow(match[2], match[3]))
            queue.files += 1
            queue.bytes += entry.stat().st_size
    for prefix, queue in found.items():
        with Reading(path, prefix, int(queue.instance, 16)) as reading:
            queue.damage = [item for item in reading if isinstance(item, Damage)]
    return list(found.values())
