"""What is called for every message, in C: native/python."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeVar, final, overload

from typing_extensions import Buffer

from pynotify._types import Gap

_F = TypeVar("_F", bound=Callable[..., Any])

@final
class Notify:
    """One notification, as psycopg's `Notify`: unpacks and compares as (channel, payload, pid).

    * `channel`: str
    * `payload`: str; `data`: the same as bytes
    * `pid`, `backend_id`: the sender's process and backend slot
    * `seq`: commit sequence number, one per commit, common to all databases
    * `sent_ns`: CLOCK_MONOTONIC at the sender's commit, nanoseconds
    * `pattern`: the pattern by which it came; None: its channel is listened to itself
    * `headers`: what it was sent with beside the payload, str to str; `raw_headers`: as bytes

    Immutable; it hashes by its contents.
    """

    __match_args__: ClassVar[tuple[str, str, str]]
    channel: Final[str]
    data: Final[bytes]
    pid: Final[int]
    seq: Final[int]
    sent_ns: Final[int]
    sender: Final[int]
    pattern: Final[str | None]
    def __init__(
        self,
        channel: str,
        payload: str | Buffer,
        pid: int = 0,
        seq: int = 0,
        sent_ns: int = 0,
        sender: int = 0,
        index: int = 0,
        pattern: str | None = None,
        headers: Mapping[str, str] | bytes | None = None,
    ) -> None: ...
    @property
    def headers(self) -> dict[str, str]:
        """The headers that it was sent with, str to str: a dict of the caller's own."""

    @property
    def raw_headers(self) -> bytes:
        """The same as bytes, as they were sent; empty: none."""

    @property
    def payload(self) -> str:
        """The payload as text.

        Raises `PayloadDecodeError`, which is also a ValueError, when it is not UTF-8.
        """

    @property
    def backend_id(self) -> int:
        """The sender's backend slot."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the messages that one connection has read in the order of their commits."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __lt__(self, other: Notify | tuple[Any, ...]) -> bool: ...
    def __le__(self, other: Notify | tuple[Any, ...]) -> bool: ...
    def __gt__(self, other: Notify | tuple[Any, ...]) -> bool: ...
    def __ge__(self, other: Notify | tuple[Any, ...]) -> bool: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Port:
    """The C connection under a connection of Python."""

    native: Any

class Pending:
    """What a transaction is to do."""

    _native: Any
    failed: bool
    prepared: bool
    committing: bool

class Notifier:
    """What a connection sends."""

    _handle: Any
    _transactions: Any
    _owner: Callable[[], Hashable]
    def notify(
        self,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a notification; outside a transaction it is committed at once.

        `channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:
        str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both
        limits are options of the segment.  `headers`: str to str, which go along beside the
        payload (`Notify.headers`).  Raises `QueueFull`, at commit inside a transaction.
        """

    def notify_many(
        self,
        channel: str,
        payloads: Iterable[str | Buffer],
        *,
        dedup: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send any number of notifications on one channel, all or none.

        Outside a transaction they are one of their own.  `dedup=False` keeps duplicates among
        them; each has the `headers`.  Returns how many are left after collapsing, heard or not.
        Errors as `notify`.
        """

class Publisher:
    """What a topic publishes where nothing is out of the ordinary."""

    _handle: Any
    _open: Any
    _owner: Callable[[], Hashable]
    _ref: int
    #: It is not durable.
    in_memory: bool
    def publish(
        self,
        body: str | Buffer,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message and return its id, 16 hex digits.

        `body`: str (published as UTF-8) or bytes-like, 1 byte to the segment's `max_body`, else
        `ProgrammingError` or `PayloadTooLong`.  `delay`: seconds before it is delivered; `ttl`:
        seconds after which it no longer is; both from the commit on.  `headers`: str to str.
        Raises `TopicFull`, at commit inside a transaction; `SyncFailed` of a topic with
        `fsync="always"`: the message is published, but not known to be on the disk.
        """

    # Publish all of them; the numbers of their ids.  None: it did not.
    def publish_at_once(
        self, bodies: Iterable[str | Buffer], delay: float, ttl: float | None, /
    ) -> range | None: ...

#: So many messages, or bytes of payload and one message more, are taken with the GIL held.
AT_ONCE: Final[int]
AT_ONCE_BYTES: Final[int]

class Batch:
    """Reads for one connection, whose lock the caller holds."""

    channels: Final[list[str]]
    pending: bool
    busy: bool
    def __init__(self, make_gap: Callable[[int, int, str | None], Gap], /) -> None: ...
    def read(
        self,
        handle: Port,
        sink: list[Notify | Gap] | deque[Notify | Gap],
        limit: int,
        max_bytes: int,
        /,
    ) -> bool: ...
    def read_routed(
        self,
        handle: Port,
        sink: deque[tuple[Notify | Gap, int]],
        limit: int,
        max_bytes: int,
        /,
    ) -> list[Notify | Gap]: ...
    def read_columns(self, handle: Port, sink: list[Columns], limit: int, /) -> bool: ...

class Columns:
    """Messages as columns; each is a buffer of its own that is not copied."""

    def __init__(
        self,
        seq: bytes,
        sent_ns: bytes,
        pid: bytes,
        sender: bytes,
        channel_index: bytes,
        pattern_index: bytes,
        headers_offsets: bytes,
        headers: bytes,
        offsets: bytes,
        blob: bytes,
        channels: list[str],
        before: int,
        /,
    ) -> None: ...
    @property
    def seq(self) -> Buffer: ...
    @property
    def sent_ns(self) -> Buffer: ...
    @property
    def pid(self) -> Buffer: ...
    @property
    def sender(self) -> Buffer: ...
    @property
    def channel_index(self) -> Buffer: ...
    @property
    def pattern_index(self) -> Buffer: ...
    @property
    def blob(self) -> Buffer: ...
    @property
    def channels(self) -> list[str]: ...
    def payloads(self) -> list[bytes]: ...
    def messages(self) -> list[Notify]: ...
    def extent(self, index: int, /) -> tuple[int, int]: ...
    def headers(self, index: int, /) -> bytes: ...
    def __len__(self) -> int: ...

@final
class Lock:
    """A lock that no thread keeps when a signal handler raises just after `with` has taken it."""

    # A lock of threading's.
    def __new__(cls, inner: Any, /) -> Self: ...
    acquire: Callable[..., bool]
    release: Callable[[], None]
    def __enter__(self) -> bool: ...
    # Each look-up makes a new one, which gives the lock back when it is dropped, too.
    def __exit__(self, kind: Any, value: Any, places: Any, /) -> None: ...

class Counter:
    """The value of a shared generation counter."""

    _index: int
    # The engine has to be kept as long as the object.
    def _read_from(self, engine: Any, /) -> None: ...
    @property
    def value(self) -> int:
        """How often the counter was bumped: one load from shared memory.

        It can be read by any thread, in a forked child, and after the connection was closed.
        """

    @property
    def changed_at(self) -> float | None:
        """When it was bumped last, in seconds as those of `time.time()`; None: never.

        It is the time of that transaction's commit, by this host's clock, which may be set back.
        After a value was read it is the time of that value or of a later one; read before the
        value, it may be of one that is about to be seen.  Like `value` it can be read by any
        thread, in a forked child, and after the connection was closed.
        """

class Inlet:
    """What receives, where nothing is out of the ordinary."""

    handle: Any
    batch: Batch
    backlog: deque[Notify | Gap]
    handlers: list[Callable[[Notify], object]]
    routed: bool
    interrupted: bool
    watched: bool
    def take(self, messages: list[Notify | Gap], max: int | None, /) -> bool: ...
    # Put up to `count` messages into the empty backlog; False: a read under the lock has to.
    def take_ahead(self, count: int, /) -> bool: ...
    # Take the objects of these ids, which the caller holds, out of the backlog, in one step.
    def take_out(self, ids: set[int], /) -> None: ...
    # wait() of the election's leader.  None: something came, no other thread waits, the leader has
    # left, and up to `ahead` messages are in the backlog.
    def sleep(
        self, election: Election, waiter: Any, timeout_ns: int, ahead: int, /
    ) -> int | None: ...

class Election:
    """The waiting threads of a connection, one of which leads."""

    leader: Any
    inside: dict[int, Any]
    followers: deque[Any]
    waiters: list[Any]

class Taker:
    """What a consumer does where nothing is out of the ordinary."""

    _handle: Any
    _out: Any
    handle: Any
    open_transactions: Any
    owner: Callable[[], Hashable]
    draining: bool
    in_memory: bool
    in_core: bool
    # pn_consumer_get(), into `_out`.
    def get_in_core(self, timeout_ns: int, /) -> int: ...
    # Append fields, body and headers of what is there; None: nothing is; False: it did not look.
    # Of a durable topic one thread at a time may call it, and none may be in get_in_core().
    def take_at_once(self, found: list[tuple[tuple[int, ...], bytes, bytes]], /) -> bool | None: ...
    # Finish that message; or the transaction that does; False: it did not.
    # Raises SyncFailed, and then has finished it.
    def finish_at_once(self, fields: tuple[int, ...], /) -> Any: ...

# pn_wait().
def wait(handle: Port, timeout_ns: int, /) -> int: ...

# Sleep until `waiter.woken` or `waiter.called` and ring(), or a signal comes, or the time is over;
# -1: no limit.  False: it did not, since it is not the main thread, or there is nothing to ring.
def sleep_until_called(waiter: Any, timeout_ns: int, /) -> bool: ...
def ring() -> None: ...
def finalizer(function: _F, /) -> _F:
    """For `__del__` and callbacks of weak references: Ctrl-C is raised behind them.

    It is called again when a signal handler raised in it, until it comes to its end.
    """

# A shared mapping of the file: what keeps it, and its address.  Raises OSError.
def map_shared(fd: int, length: int, writable: bool, /) -> tuple[object, int]: ...
def join(sequence: Sequence[Any] | Parts, /) -> tuple[bytes, bytes] | None: ...

# The first messages that are parts of one object and continue each other, up to `most` bytes of it.
def run_of_parts(messages: Iterable[object], most: int, /) -> list[Notify]: ...

# The parts of a container, `flag` and `body`, from and up to these bytes of it; `size` of each.
def cut_parts(
    flag: bytes, body: bytes, number: int, begin: int, end: int, size: int, /
) -> Parts: ...

@final
class Parts:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> bytes: ...
    def __iter__(self) -> Iterator[bytes]: ...
