"""What a Redis does for a connection: pub/sub, and nothing else.

1. A channel of Redis is a channel of the segment, a subscribed pattern is one as well: a publisher
   sends to the channel, and to each pattern that matches.
2. The patterns are read from the segment's table of channels when a shared counter says that they
   have changed.  So a publish without patterns costs one load, and a listener is not woken for what
   it has no pattern for.
3. How many received is how many connections listen, as Redis counts: its clients' PubSub objects
   have a connection each.

Nothing here waits for messages; the connections of threads and of tasks do.
"""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from pynotify._types import Gap
from pynotify.contrib._names import fitting
from pynotify.pubsub._arrays import is_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Reply = Any

#: The counter that says that patterns have come or gone.
PATTERNS = "redis:patterns"
#: Commands that a client sends when it connects.
_POLITE = {"CLIENT SETINFO", "CLIENT SETNAME", "SELECT", "AUTH"}


class NotPubSub(ResponseError, NotImplementedError):
    """A command that is no pub/sub: there is no Redis that could run it."""


class Kind(NamedTuple):
    """What one can subscribe to: its name in replies, and how names in the segment begin."""

    word: str
    text: str
    binary: str


CHANNEL = Kind("", "redis:c:", "redis:C:")
PATTERN = Kind("p", "redis:p:", "redis:P:")
SHARD = Kind("s", "redis:s:", "redis:S:")


def address(kind: Kind, name: bytes, limit: int) -> str:
    """The channel of the segment; one that is too long is a digest, and not in lists."""
    try:
        found = kind.text + name.decode()
    except UnicodeDecodeError:
        found = kind.binary + name.hex()
    if "\0" in found:
        found = kind.binary + name.hex()
    if len(found.encode()) <= limit:
        return found
    if kind is PATTERN:
        raise ResponseError(
            f"a pattern has at most {limit - len(kind.text)} bytes in this segment; make it with"
            " max_channel_name=255"
        )
    return fitting(kind.text[:-1], name.hex(), 0)


def name_of(kind: Kind, found: str) -> bytes | None:
    """What `address` made the channel of; None when that is not known."""
    if found.startswith(kind.text):
        return found[len(kind.text) :].encode()
    if found.startswith(kind.binary):
        return bytes.fromhex(found[len(kind.binary) :])
    return None


def matcher(pattern: bytes) -> re.Pattern[bytes]:
    """A glob as Redis has it: `*`, `?`, `[a-z]`, `[^a]`, and a backslash before any of them."""
    out, at = [], 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        at += 1
        if char == b"*":
            out.append(b".*")
        elif char == b"?":
            out.append(b".")
        elif char == b"\\" and at < len(pattern):
            out.append(re.escape(pattern[at : at + 1]))
            at += 1
        elif char == b"[" and (end := pattern.find(b"]", at)) >= 0:
            inside = pattern[at:end].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            out.append(b"[" + inside + b"]" if inside.strip(b"^") else b"(?!)")
            at = end + 1
        else:
            out.append(re.escape(char))
    return re.compile(b"".join(out), re.DOTALL)


def with_channel(channel: bytes, data: bytes) -> bytes:
    """What subscribers of a pattern are sent."""
    return len(channel).to_bytes(4, "little") + channel + data


class Patterns:
    """The patterns that are subscribed to anywhere, as last read."""

    def __init__(self) -> None:
        self.seen = -1
        self._known: list[tuple[re.Pattern[bytes], str]] = []

    def read(self, seen: int, channels: Iterable[str]) -> None:
        """Take the patterns of the table of channels."""
        names = ((name_of(PATTERN, each), each) for each in channels)
        self._known = [(matcher(name), each) for name, each in names if name is not None]
        self.seen = seen

    def matching(self, channel: bytes) -> list[str]:
        """The addresses of those that match."""
        return [each for pattern, each in self._known if pattern.fullmatch(channel)]


class Session:
    """The subscriptions of one connection, and the replies that were not read yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.replies: deque[Reply] = deque()
        self._names: dict[Kind, dict[bytes, str]] = {CHANNEL: {}, PATTERN: {}, SHARD: {}}
        self._of_address: dict[str, tuple[Kind, bytes]] = {}
        #: One of each command whose replies are not to be read yet.
        self._under_way: deque[None] = deque()

    @property
    def readable(self) -> bool:
        """Whether there is a reply or message, and what its command says is the case."""
        return bool(self.replies) and not self._under_way

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Its replies are noted before the messages that come, and read when it has ended."""
        self._under_way.append(None)
        try:
            yield
        finally:
            self._under_way.pop()

    # ---- subscribing -----------------------------------------------------------------------

    def subscribing(self, kind: Kind, names: Iterable[bytes]) -> list[str]:
        """Note them and their replies; their addresses.

        Also of those that are known: subscribing to them may have been cancelled, or interrupted.
        """
        addresses = []
        for name in names:
            found = address(kind, name, self.limit)
            self._names[kind][name] = found
            self._of_address[found] = (kind, name)
            addresses.append(found)
            self._reply(kind, "subscribe", name)
        return addresses

    def unsubscribing(self, kind: Kind, names: Iterable[bytes]) -> list[str]:
        """Forget them, or all of the kind; the addresses that are not needed any more."""
        gone = []
        asked: list[bytes | None] = [*names] or [*self._names[kind]] or [None]
        for name in asked:
            found = self._names[kind].pop(name, None) if name is not None else None
            if found is not None:
                del self._of_address[found]
                gone.append(found)
            self._reply(kind, "unsubscribe", name)
        return gone

    def _reply(self, kind: Kind, what: str, name: bytes | None) -> None:
        shards = len(self._names[SHARD])
        count = shards if kind is SHARD else sum(map(len, self._names.values())) - shards
        self.replies.append([(kind.word + what).encode(), name, count])

    @property
    def subscribed(self) -> bool:
        """Whether it is subscribed to anything."""
        return bool(self._of_address)

    # ---- what comes ------------------------------------------------------------------------

    def came(self, found: str | None, data: Any, warn: Callable[[str], None]) -> None:
        """A message on a channel of the segment."""
        if isinstance(data, Gap):
            warn(data.reason)
            return
        kind, name = self._of_address.get(found or "", (None, b""))
        if kind is PATTERN:
            if not isinstance(data, bytes) or len(data) < 4:
                warn(f"a message of another program on channel {found!r}")
                return
            end = 4 + int.from_bytes(data[:4], "little")
            self.replies.append([b"pmessage", name, data[4:end], data[end:]])
        elif kind is not None:
            self.replies.append([(kind.word + "message").encode(), name, _as_bytes(data)])

    # ---- the other commands ----------------------------------------------------------------

    def ping(self, words: list[bytes]) -> None:
        """PING, which a connection that is subscribed answers otherwise."""
        if self.subscribed:
            self.replies.append([b"pong", words[0] if words else b""])
        else:
            self.replies.append(words[0] if words else b"PONG")

    def polite(self, command: str, words: list[bytes]) -> bool:
        """Answer what a client says of itself when it connects; False for anything else."""
        said = " ".join([command, *(word.decode("latin-1").upper() for word in words[:1])])
        polite = command in _POLITE or said in _POLITE
        if polite:
            self.replies.append(b"OK")
        return polite


def _as_bytes(data: Any) -> bytes:
    """What a client of Redis would have sent for it; other programs send objects of all kinds."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if data is None:
        return b""
    if isinstance(data, bytes) or is_array(data):
        return bytes(data)
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")


KINDS = {
    "SUBSCRIBE": CHANNEL, "UNSUBSCRIBE": CHANNEL, "PSUBSCRIBE": PATTERN, "PUNSUBSCRIBE": PATTERN,
    "SSUBSCRIBE": SHARD, "SUNSUBSCRIBE": SHARD, "PUBLISH": CHANNEL, "SPUBLISH": SHARD,
}  # fmt: skip


def refuse(command: str) -> NotPubSub:
    """The error for a command that is no pub/sub."""
    return NotPubSub(
        f"{command}: pynotify.compat.redis has pub/sub and no other commands; use a Redis for it"
    )


def answer_pubsub(words: list[bytes], counts: Callable[[str], dict[str, int]], limit: int) -> Any:
    """PUBSUB; `counts` are the listened channels of the segment with a beginning."""
    what = words[0].upper().decode() if words else ""
    if what == "NUMPAT":
        return sum(1 for each in counts(PATTERN.text[:-2]) if name_of(PATTERN, each) is not None)
    kind = SHARD if what.startswith("SHARD") else CHANNEL
    listened = counts("redis:")
    if what.removeprefix("SHARD") == "CHANNELS":
        fits = matcher(words[1]) if len(words) > 1 else matcher(b"*")
        names = (name_of(kind, each) for each in listened)
        return [name for name in names if name is not None and fits.fullmatch(name)]
    if what.removeprefix("SHARD") == "NUMSUB":
        reply: list[Any] = []
        for name in words[1:]:
            reply += [name, listened.get(address(kind, name, limit), 0)]
        return reply
    raise refuse(f"PUBSUB {what}")
